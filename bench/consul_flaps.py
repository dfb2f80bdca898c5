"""Consul at size: from Consul to ready, from a flap to a proxy, and what Consul is asked for it.

    CONSUL=/path/to/consul python bench/consul_flaps.py --services 2000 --instances 5 --flaps 200

Starts a Consul in dev mode, with its limit of 200 connections a client unless there are to be more, and a control plane
in this process; the proxy is an ADS stream that follows the endpoints of half of the services. A flap is a check that
is set to critical and back, of another service each time; it is over when the proxy has new endpoints. An instance
arrives in a service that was quiet, moves to another port, and leaves. At last Consul is restarted with its data, and
another instance arrives.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import structlog
import trio
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from google.protobuf.json_format import ParseDict

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.app.control_plane import ControlPlane, control_plane
from mesh_pilot.app.settings import Settings
from mesh_pilot.cli.demo.consul_process import find_consul
from mesh_pilot.consul.source import Agent, ConsulRegistry, ConsulSettings
from mesh_pilot.model.resource import ENDPOINT
from mesh_pilot.net.rpc import Cardinality, open_channel

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
PORT = 8080
REGISTRATIONS = 20
PATIENCE = 60.0
"""Seconds that a proxy may wait for a change before this gives up."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=2000)
    parser.add_argument("--instances", type=int, default=5)
    parser.add_argument("--flaps", type=int, default=200)
    parser.add_argument("--max-queries", type=int, default=60, help="queries at once; 0: one a service")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    trio.run(run, arguments.services, arguments.instances, arguments.flaps, arguments.max_queries)


async def run(services: int, instances: int, flaps: int, max_queries: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        http, *others = random.sample(range(10_000, 30_000), 4)
        processes: list[subprocess.Popen[bytes]] = []

        def start() -> None:
            while processes:
                process = processes.pop()
                process.kill()
                process.wait()
            processes.append(start_consul(Path(name), http, others, 200 if max_queries else services + 1000))

        start()
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{http}", timeout=30, trust_env=False) as client:
                await ready(client)
                await filled(client, services, instances)
                address = f"http://127.0.0.1:{http}"
                await measured(client, address, services, flaps, max_queries or services + 30, start)
        finally:
            processes[0].kill()
            processes[0].wait()


def start_consul(
    folder: Path, http: int, others: Sequence[int], connections: int, binary: Path | None = None
) -> subprocess.Popen[bytes]:
    """A server of its own; ``connections``: of a client at a time."""
    server, lan, wan = others
    config = {
        "bind_addr": "127.0.0.1",
        "ports": {"http": http, "dns": -1, "grpc": -1, "server": server, "serf_lan": lan, "serf_wan": wan},
        "limits": {"http_max_conns_per_client": connections},
        "log_level": "err",
        "server": True,
        "bootstrap_expect": 1,
        "data_dir": str(folder / "data"),
        "performance": {"raft_multiplier": 1},
    }
    path = folder / "consul.json"
    path.write_text(json.dumps(config))
    command = [str(binary or find_consul()), "agent", "-config-file", str(path)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ)


async def ready(client: httpx.AsyncClient) -> None:
    """Wait until Consul takes writes."""
    while True:
        try:
            reply = await client.put("/v1/catalog/register", json={"Node": "n", "Address": "10.0.0.1"})
            if reply.status_code == 200:
                return
        except httpx.TransportError:
            pass
        await trio.sleep(0.1)


async def filled(client: httpx.AsyncClient, services: int, instances: int) -> None:
    """Put services into the catalog, as nodes of their own would: a node an instance's rank."""
    async with trio.open_nursery() as nursery:
        for part in range(8):
            nursery.start_soon(register, client, range(part, services, 8), instances)


async def register(client: httpx.AsyncClient, numbers: range, instances: int) -> None:
    for number in numbers:
        for rank in range(instances):
            await put(client, number, rank, "passing")


async def put(client: httpx.AsyncClient, number: int, rank: int, status: str, port: int = PORT) -> None:
    """An instance with a check in some state."""
    service, id = f"s-{number}", f"s-{number}-{rank}"
    body = {
        "Node": f"node-{rank}",
        "Address": f"10.{rank}.0.1",
        "Service": {
            "ID": id,
            "Service": service,
            "Port": port,
            "Meta": {"service_port": str(PORT)},
            "Address": f"10.{rank}.{number // 250}.{number % 250 + 1}",
        },
        "Check": {"CheckID": f"service:{id}", "Name": "c", "Status": status, "ServiceID": id},
    }
    (await client.put("/v1/catalog/register", json=body)).raise_for_status()


async def measured(
    client: httpx.AsyncClient, address: str, services: int, flaps: int, max_queries: int, restart: Callable[[], None]
) -> None:
    anywhere = "127.0.0.1:0"
    settings = Settings(
        registries=(ConsulRegistry((ConsulSettings(agent=Agent(address), max_queries=max_queries),)),),
        grpc_addr=anywhere,
        secure_grpc_addr=anywhere,
        http_addr=anywhere,
        monitoring_addr=anywhere,
        shutdown_seconds=0.5,
    )
    began, used = time.perf_counter(), time.process_time()
    async with control_plane(settings) as plane:
        await plane.wait_ready()
        print(f"{services} services from Consul to ready: {since(began)}, CPU {time.process_time() - used:.1f} s")
        await trio.sleep(5)
        before, used = queries(plane), time.process_time()
        await trio.sleep(5)
        print(
            f"idle: {(queries(plane) - before) / 5:.1f} queries a second, CPU {time.process_time() - used:.2f} s in 5 s"
        )
        watched = services // 2
        quiet = min(REGISTRATIONS, watched - watched // 2)
        async with proxy(plane, watched) as told:
            changes = (
                ("flap", flaps, flap),
                ("arrival", quiet, arrival),
                ("move", quiet, move),
                ("leaving", quiet, leaving),
            )
            for what, count, change in changes:
                before, began, used = queries(plane), time.perf_counter(), time.process_time()
                spent = [await timed(change(client, n, watched), told) for n in range(count)]
                asked, cpu = queries(plane) - before, time.process_time() - used
                cuts = statistics.quantiles(spent, n=100)
                print(
                    f"{what} to proxy, {count} times: p50 {cuts[49]:.0f} ms, p99 {cuts[98]:.0f} ms, "
                    f"max {max(spent):.0f} ms; {asked / count:.1f} queries each, "
                    f"{asked / (time.perf_counter() - began):.0f} a second; CPU {cpu / count * 1000:.1f} ms each"
                )
            restart()
            await ready(client)
            before, used = queries(plane), time.process_time()
            spent_after = await timed(arrival(client, 0, watched), told)
            asked, cpu = queries(plane) - before, time.process_time() - used
            print(f"arrival after a restart of Consul: {spent_after:.0f} ms; {asked} queries; CPU {cpu:.1f} s")


def since(began: float) -> str:
    return f"{time.perf_counter() - began:.1f} s"


async def flap(client: httpx.AsyncClient, number: int, watched: int) -> int:
    service = number // 2 % watched
    await put(client, service, 0, "passing" if number % 2 else "critical")
    return service


async def arrival(client: httpx.AsyncClient, number: int, watched: int) -> int:
    service = watched // 2 + number
    await put(client, service, 9, "passing")
    return service


async def move(client: httpx.AsyncClient, number: int, watched: int) -> int:
    """In place: what no summary shows."""
    service = watched // 2 + number
    await put(client, service, 9, "passing", port=PORT + 1)
    return service


async def leaving(client: httpx.AsyncClient, number: int, watched: int) -> int:
    service = watched // 2 + number
    gone = {"Node": "node-9", "ServiceID": f"s-{service}-9"}
    (await client.put("/v1/catalog/deregister", json=gone)).raise_for_status()
    return service


async def timed(change: Awaitable[int], told: Callable[[int], Awaitable[None]]) -> float:
    """How long it took until the proxy was told of a change of a service, in milliseconds."""
    began = time.perf_counter()
    with trio.fail_after(PATIENCE):
        await told(await change)
    return (time.perf_counter() - began) * 1000


def queries(plane: ControlPlane) -> int:
    source = next(s.source for s in plane.state.supervisors if s.source.name == "consul")
    return int(getattr(source.statistics(), "queries", 0))


@asynccontextmanager
async def proxy(plane: ControlPlane, watched: int) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
    """A proxy that follows the endpoints of some services; gives what waits until it was sent those of a service."""
    node = ParseDict(EnvoyNode("bench", "default", "10.255.0.1").to_dict(), Node())
    names = [f"outbound|{PORT}||s-{number}.service.consul" for number in range(watched)]
    kinds = (Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse)
    async with open_channel(plane.addresses.grpc) as channel, channel.request(ADS, *kinds) as call:
        await call.send_message(DiscoveryRequest(node=node, type_url=ENDPOINT, resource_names=names))

        async def told(service: int) -> None:
            while True:
                response = await call.recv_message()
                assert response is not None
                acknowledged = DiscoveryRequest(
                    type_url=ENDPOINT,
                    resource_names=names,
                    version_info=response.version_info,
                    response_nonce=response.nonce,
                )
                await call.send_message(acknowledged)
                if any(names[service].encode() in resource.value for resource in response.resources):
                    return

        await told(0)
        yield told


if __name__ == "__main__":
    main()
