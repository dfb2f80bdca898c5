"""A Kubernetes at size: from its API server to ready, memory of a pod, from a pod's flap to a proxy.

    python -m bench.kubernetes_flaps --services 1000 --pods 10 --flaps 200 [--kubeconfig FILE]

The API server is the tests' double in a separate process, or with ``--kubeconfig`` a real one, in which the objects
are made. The control plane is in this process; the proxy is an ADS stream that follows the endpoints of all services. A
flap is a pod that becomes unready and ready again: its status, then the slice of its service. It is over when the proxy
has new endpoints. A heartbeat is a status of a pod in which nothing changes that counts.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import structlog
import trio
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from google.protobuf.json_format import ParseDict

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.app.control_plane import ControlPlane, control_plane
from mesh_pilot.app.settings import Settings
from mesh_pilot.kubernetes.apiserver import Access, ApiClient, ApiResource, Pem, load_access
from mesh_pilot.kubernetes.source import KubernetesRegistry
from mesh_pilot.kubernetes.source.registry import ENDPOINT_SLICES, ENDPOINTS, NAMESPACES, NODES, PODS, SERVICES
from mesh_pilot.model.resource import ENDPOINT
from mesh_pilot.net.rpc import Cardinality, open_channel

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
ACCOUNTS = ApiResource("", ("v1",), "serviceaccounts", "ServiceAccount")
NAMESPACE = "bench"
HEARTBEATS = 1000
PATIENCE = 60.0
"""Seconds that a proxy may wait for a change before this gives up."""

Object = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=10, help="of each service")
    parser.add_argument("--flaps", type=int, default=200)
    parser.add_argument("--kubeconfig", type=Path, help="a real API server")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--drive", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    size = (arguments.services, arguments.pods)
    if arguments.serve:
        trio.run(serve, *size)
    elif arguments.drive:
        server, token = arguments.drive
        access = load_access(Path(server)) if token == "-" else Access(server=server, token=Pem(text=token.encode()))
        trio.run(drive, access, *size)
    elif arguments.kubeconfig:
        access = load_access(arguments.kubeconfig)
        trio.run(filled, access, *size)
        with driver(str(arguments.kubeconfig), "-", *size) as driving:
            trio.run(measured, access, driving, *size, arguments.flaps)
    else:
        with double(*size) as access, driver(access.server, access.token.text.decode(), *size) as driving:
            trio.run(measured, access, driving, *size, arguments.flaps)


# -- the API server


def objects(services: int, pods: int) -> Iterator[tuple[ApiResource, Object]]:
    yield NAMESPACES, {"metadata": {"name": NAMESPACE}}
    for number in range(10):
        labels = {"topology.kubernetes.io/region": "eu", "topology.kubernetes.io/zone": f"eu-{number % 3}"}
        yield NODES, {"metadata": {"name": f"node-{number}", "labels": labels}}
    for number in range(services):
        spec = {"selector": {"app": f"s-{number}"}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}
        yield SERVICES, {"metadata": {"name": f"s-{number}", "namespace": NAMESPACE}, "spec": spec}
        for rank in range(pods):
            yield PODS, pod(number, rank)
        yield ENDPOINT_SLICES, endpoint_slice(number, pods)


def address(number: int, rank: int) -> str:
    return f"10.{rank + 1}.{number // 250}.{number % 250 + 1}"


def pod(number: int, rank: int) -> Object:
    """About as large as a pod is: 5 kB."""
    environment = [{"name": f"VARIABLE_{each}", "value": "a value of some length" * 2} for each in range(30)]
    container = {"name": "app", "image": "registry.test/app:1", "env": environment, "ports": [{"containerPort": 8080}]}
    return {
        "metadata": {
            "name": f"s-{number}-{rank}",
            "namespace": NAMESPACE,
            "labels": {"app": f"s-{number}", "version": "v1", "security.istio.io/tlsMode": "istio"},
        },
        "spec": {"serviceAccountName": "app", "nodeName": f"node-{(number + rank) % 10}", "containers": [container]},
        "status": status(number, rank, True),
    }


def status(number: int, rank: int, ready: bool, beat: int = 0) -> Object:
    ip = address(number, rank)
    conditions = [{"type": "Ready", "status": str(ready)}, {"type": "Beat", "status": "True", "reason": f"b{beat}"}]
    return {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": conditions}


def endpoint_slice(number: int, pods: int, unready: int = -1) -> Object:
    return {
        "metadata": {
            "name": f"s-{number}-abcde",
            "namespace": NAMESPACE,
            "labels": {"kubernetes.io/service-name": f"s-{number}"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [
            {
                "addresses": [address(number, rank)],
                "conditions": {"ready": rank != unready, "serving": rank != unready, "terminating": False},
                "targetRef": {"kind": "Pod", "name": f"s-{number}-{rank}", "namespace": NAMESPACE},
                "nodeName": f"node-{(number + rank) % 10}",
            }
            for rank in range(pods)
        ],
    }


@contextmanager
def double(services: int, pods: int) -> Iterator[Access]:
    """The double, in a separate process, as full as this."""
    command = [sys.executable, "-m", "bench.kubernetes_flaps", "--serve", f"--services={services}", f"--pods={pods}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        server, token = process.stdout.readline().split()
        yield Access(server=server, token=Pem(text=token.encode()))
    finally:
        process.kill()
        process.wait()


async def serve(services: int, pods: int) -> None:
    from tests.support.api_double import TOKEN, ApiDouble, serving

    api = ApiDouble([SERVICES, ENDPOINT_SLICES, ENDPOINTS, PODS, NODES, NAMESPACES])
    for resource, found in objects(services, pods):
        api.put(resource, found)
    async with serving(api) as access:
        print(access.server, TOKEN, flush=True)
        await trio.sleep_forever()


async def filled(access: Access, services: int, pods: int) -> None:
    """Put the objects into a real API server."""
    async with ApiClient(access) as client, trio.open_nursery() as nursery:
        await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        await client.create(ACCOUNTS, {"metadata": {"name": "app"}}, NAMESPACE)
        all_objects = list(objects(services, pods))[1:]
        for part in range(8):
            nursery.start_soon(_create, client, all_objects[part::8])


async def _create(client: ApiClient, found: list[tuple[ApiResource, Object]]) -> None:
    for resource, each in found:
        namespace = each["metadata"].get("namespace", "")
        await client.create(resource, each, namespace)
        if resource is PODS:
            name = each["metadata"]["name"]
            await client.patch(PODS, name, {"status": each["status"]}, namespace, subresource="status")


# -- the cluster's controllers, in their own process


Driving = Callable[[str], float]
"""Has a line done, ``flap 3`` or ``heartbeats 100``; gives when the API server was asked for the last change."""


@contextmanager
def driver(server: str, token: str, services: int, pods: int) -> Iterator[Driving]:
    command = [sys.executable, "-m", "bench.kubernetes_flaps", "--drive", server, token]
    command += [f"--services={services}", f"--pods={pods}"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    sender, answers = process.stdin, process.stdout
    assert sender is not None and answers is not None

    def driving(line: str) -> float:
        sender.write(f"{line}\n")
        return float(answers.readline())

    try:
        yield driving
    finally:
        process.kill()
        process.wait()


async def drive(access: Access, services: int, pods: int) -> None:
    async with ApiClient(access) as client:
        for line in await trio.to_thread.run_sync(lambda: iter(sys.stdin)):
            what, number = line.split()
            if what == "flap":
                began = await flap(client, int(number), services, pods)
            else:
                for each in range(int(number)):
                    await heartbeat(client, each, services)
                began = time.perf_counter()
            print(began, flush=True)


# -- measuring


async def measured(access: Access, driving: Driving, services: int, pods: int, flaps: int) -> None:
    anywhere = "127.0.0.1:0"
    settings = Settings(
        registries=(KubernetesRegistry(access),),
        grpc_addr=anywhere,
        secure_grpc_addr=anywhere,
        http_addr=anywhere,
        monitoring_addr=anywhere,
        shutdown_seconds=0.5,
    )
    held, began, used = resident(), time.perf_counter(), time.process_time()
    async with control_plane(settings) as plane:
        await plane.wait_ready()
        print(
            f"{services} services x {pods} pods to ready: {time.perf_counter() - began:.1f} s,"
            f" CPU {time.process_time() - used:.1f} s;"
            f" memory {(resident() - held) / services / pods:.1f} kB a pod, of all that serves it"
        )
        async with proxy(plane, services) as told:
            await trio.sleep(1)
            used = time.process_time()
            await trio.to_thread.run_sync(driving, f"heartbeats {HEARTBEATS}")
            await told_after(driving, 0, services, told)
            cpu = (time.process_time() - used) / HEARTBEATS
            print(f"heartbeat of a pod: CPU {cpu * 1000:.2f} ms")
            used = time.process_time()
            spent = [await told_after(driving, number, services, told) for number in range(1, flaps)]
            cpu = (time.process_time() - used) / len(spent)
            cuts = statistics.quantiles(spent, n=100)
            print(
                f"flap to proxy, {len(spent)} times: p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms,"
                f" max {max(spent):.1f} ms; CPU {cpu * 1000:.2f} ms each, with the proxy's stream"
            )


def resident() -> int:
    """The memory of this process in kB."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(text.partition("VmRSS:")[2].split()[0])


async def heartbeat(client: ApiClient, number: int, services: int) -> None:
    changed = {"status": status(number % services, 0, True, number + 1)}
    await client.patch(PODS, f"s-{number % services}-0", changed, NAMESPACE, subresource="status")


async def flap(client: ApiClient, number: int, services: int, pods: int) -> float:
    """When the API server was asked to change the endpoints."""
    service, ready = number // 2 % services, bool(number % 2)
    changed = {"status": status(service, 0, ready, number)}
    await client.patch(PODS, f"s-{service}-0", changed, NAMESPACE, subresource="status")
    began = time.perf_counter()
    found = endpoint_slice(service, pods, -1 if ready else 0)
    await client.patch(ENDPOINT_SLICES, f"s-{service}-abcde", {"endpoints": found["endpoints"]}, NAMESPACE)
    return began


async def told_after(driving: Driving, number: int, services: int, told: Callable[[int], Awaitable[float]]) -> float:
    """The time until the proxy was told of a flap, in milliseconds."""
    began = 0.0

    async def change() -> None:
        nonlocal began
        began = await trio.to_thread.run_sync(driving, f"flap {number}")

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(change)
            at = await told(number // 2 % services)
    return (at - began) * 1000


@asynccontextmanager
async def proxy(plane: ControlPlane, services: int) -> AsyncIterator[Callable[[int], Awaitable[float]]]:
    """A proxy that follows the endpoints of all services; gives what waits until it was sent those of a service."""
    node = ParseDict(EnvoyNode("bench", NAMESPACE, "10.255.0.1").to_dict(), Node())
    names = [f"outbound|80||s-{number}.{NAMESPACE}.svc.cluster.local" for number in range(services)]
    kinds = (Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse)
    async with open_channel(plane.addresses.grpc) as channel, channel.request(ADS, *kinds) as call:
        await call.send_message(DiscoveryRequest(node=node, type_url=ENDPOINT, resource_names=names))

        async def told(service: int) -> float:
            while True:
                response = await call.recv_message()
                at = time.perf_counter()
                assert response is not None
                acknowledged = DiscoveryRequest(
                    type_url=ENDPOINT,
                    resource_names=names,
                    version_info=response.version_info,
                    response_nonce=response.nonce,
                )
                await call.send_message(acknowledged)
                if any(names[service].encode() in resource.value for resource in response.resources):
                    return at

        await told(0)
        yield told


if __name__ == "__main__":
    main()
