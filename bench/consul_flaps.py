"""Consul at size: from Consul to ready, from a flap to a proxy, and what Consul is asked for it.

    CONSUL=/path/to/consul python bench/consul_flaps.py --services 2000 --instances 5 --flaps 200

Starts a Consul in dev mode and a control plane in this process; the proxy is an ADS stream that follows the endpoints
of some services. A flap is a TTL check that is set to critical and back; it is over when the proxy has new endpoints.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import trio
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from google.protobuf.json_format import ParseDict

from mesh_pilot.bootstrap import ControlPlane, Settings, control_plane
from mesh_pilot.cli.consul_process import find_consul
from mesh_pilot.cli.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.resource import ENDPOINT
from mesh_pilot.rpc import Cardinality, open_channel
from mesh_pilot.sources.consul import Agent, ConsulSettings

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
PORT = 8080
WATCHED = 50
"""Services whose endpoints the proxy follows; those are the ones that flap."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=2000)
    parser.add_argument("--instances", type=int, default=5)
    parser.add_argument("--flaps", type=int, default=200)
    parser.add_argument("--max-queries", type=int, default=0, help="blocking queries at once; 0: one a service")
    arguments = parser.parse_args()
    trio.run(run, arguments.services, arguments.instances, arguments.flaps, arguments.max_queries)


async def run(services: int, instances: int, flaps: int, max_queries: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        http, *others = random.sample(range(10_000, 30_000), 4)
        process = start_consul(Path(name), http, others, connections=services + 1000)
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{http}", timeout=30, trust_env=False) as client:
                await filled(client, services, instances)
                await measured(client, f"http://127.0.0.1:{http}", services, flaps, max_queries or services + 10)
        finally:
            process.kill()
            process.wait()


def start_consul(folder: Path, http: int, others: Sequence[int], connections: int) -> subprocess.Popen[bytes]:
    server, lan, wan = others
    config = {
        "bind_addr": "127.0.0.1",
        "ports": {"http": http, "dns": -1, "grpc": -1, "server": server, "serf_lan": lan, "serf_wan": wan},
        "limits": {"http_max_conns_per_client": connections},
        "log_level": "err",
    }
    path = folder / "consul.json"
    path.write_text(json.dumps(config))
    command = [find_consul(), "agent", "-dev", "-config-file", path]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ)


async def filled(client: httpx.AsyncClient, services: int, instances: int) -> None:
    """Put services into the catalog, as nodes of their own would: a node an instance's rank."""
    while True:
        try:
            reply = await client.put("/v1/catalog/register", json={"Node": "n", "Address": "10.0.0.1"})
            if reply.status_code == 200:
                break
        except httpx.TransportError:
            pass
        await trio.sleep(0.1)
    async with trio.open_nursery() as nursery:
        for part in range(8):
            nursery.start_soon(register, client, range(part, services, 8), instances)


async def register(client: httpx.AsyncClient, numbers: range, instances: int) -> None:
    for number in numbers:
        for rank in range(instances):
            await put(client, number, rank, "passing")


async def put(client: httpx.AsyncClient, number: int, rank: int, status: str) -> None:
    """An instance with a check in some state."""
    service, id = f"s-{number}", f"s-{number}-{rank}"
    body = {
        "Node": f"node-{rank}",
        "Address": f"10.{rank}.0.1",
        "Service": {
            "ID": id,
            "Service": service,
            "Port": PORT,
            "Address": f"10.{rank}.{number // 250}.{number % 250 + 1}",
        },
        "Check": {"CheckID": f"service:{id}", "Name": "c", "Status": status, "ServiceID": id},
    }
    (await client.put("/v1/catalog/register", json=body)).raise_for_status()


async def measured(client: httpx.AsyncClient, address: str, services: int, flaps: int, max_queries: int) -> None:
    anywhere = "127.0.0.1:0"
    settings = Settings(
        consul=(ConsulSettings(agent=Agent(address), max_queries=max_queries),),
        grpc_addr=anywhere,
        http_addr=anywhere,
        monitoring_addr=anywhere,
        shutdown_seconds=0.5,
    )
    began = time.perf_counter()
    async with control_plane(settings) as plane:
        await plane.wait_ready()
        print(f"{services} services from Consul to ready: {time.perf_counter() - began:.1f} s")
        await trio.sleep(5)
        before = queries(plane)
        await trio.sleep(5)
        print(f"idle: {(queries(plane) - before) / 5:.1f} queries a second")
        before = queries(plane)
        began = time.perf_counter()
        milliseconds = await flapped(client, plane, flaps, min(services, WATCHED))
        spent = time.perf_counter() - began
    cuts = statistics.quantiles(milliseconds, n=100)
    print(f"flap to proxy, {flaps} flaps: p50 {cuts[49]:.0f} ms, p99 {cuts[98]:.0f} ms, max {max(milliseconds):.0f} ms")
    print(f"queries: {(queries(plane) - before) / flaps:.1f} a flap, {(queries(plane) - before) / spent:.0f} a second")


def queries(plane: ControlPlane) -> int:
    source = next(s.source for s in plane.state.supervisors if s.source.name == "consul")
    return int(getattr(source.statistics(), "queries", 0))


async def flapped(client: httpx.AsyncClient, plane: ControlPlane, flaps: int, watched: int) -> list[float]:
    """How long each flap took until the proxy had it."""
    node = ParseDict(EnvoyNode("bench", "default", "10.255.0.1").to_dict(), Node())
    names = [f"outbound|{PORT}||s-{number}.service.consul" for number in range(watched)]
    kinds = (Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse)
    spent: list[float] = []
    async with open_channel(plane.addresses.grpc) as channel, channel.request(ADS, *kinds) as call:
        await call.send_message(DiscoveryRequest(node=node, type_url=ENDPOINT, resource_names=names))

        async def next_response() -> None:
            response = await call.recv_message()
            assert response is not None
            acknowledged = DiscoveryRequest(
                type_url=ENDPOINT,
                resource_names=names,
                version_info=response.version_info,
                response_nonce=response.nonce,
            )
            await call.send_message(acknowledged)

        await next_response()
        for flap in range(flaps):
            began = time.perf_counter()
            await put(client, flap // 2 % watched, 0, "passing" if flap % 2 else "critical")
            await next_response()
            spent.append((time.perf_counter() - began) * 1000)
    return spent


if __name__ == "__main__":
    main()
