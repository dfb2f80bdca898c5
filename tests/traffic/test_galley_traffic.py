"""Traffic through a real Envoy that has everything from a Galley: a gateway, a route, and Kubernetes' own service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import trio

from tests.support.echo import Backend, http_backend
from tests.support.envoy import eventually, http_client, real_envoy
from tests.support.galley import Classes, Galley
from tests.support.planes import running_plane
from tests.support.protos import compiled, message_classes
from tests.support.shop import EDGE

pytestmark = pytest.mark.envoy

CORE, NETWORKING = "k8s.io.api.core.v1", "istio.networking.v1alpha3"


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Classes:
    return dict(message_classes(compiled(tmp_path_factory.getbasetemp())))


def put_gateway(galley: Galley, port: int) -> None:
    gateway = galley.classes[f"{NETWORKING}.Gateway"](selector={"istio": "edge"})
    server = gateway.servers.add(hosts=["*"])
    server.port.number, server.port.name, server.port.protocol = port, "http", "HTTP"
    galley.put("istio/networking/v1alpha3/gateways", "shop/edge", f"{NETWORKING}.Gateway", gateway.SerializeToString())
    route = galley.classes[f"{NETWORKING}.VirtualService"](hosts=["web.test"], gateways=["edge"])
    destination = route.http.add().route.add().destination
    destination.host = "web"  # the short name, of a service of Kubernetes in the same namespace
    destination.port.number = 80
    name = f"{NETWORKING}.VirtualService"
    galley.put("istio/networking/v1alpha3/virtualservices", "shop/web", name, route.SerializeToString())


def put_service(galley: Galley, *backends: Backend) -> None:
    service = galley.classes[f"{CORE}.ServiceSpec"](cluster_ip="10.96.0.7", type="ClusterIP")
    service.ports.add(name="http", protocol="TCP", port=80)
    galley.put("k8s/core/v1/services", "shop/web", f"{CORE}.ServiceSpec", service.SerializeToString())
    endpoints = galley.classes[f"{CORE}.Endpoints"]()
    for backend in backends:
        subset = endpoints.subsets.add()
        subset.addresses.add(ip=backend.host)
        subset.ports.add(name="http", port=backend.port, protocol="TCP")
    galley.put("k8s/core/v1/endpoints", "shop/web", f"{CORE}.Endpoints", endpoints.SerializeToString())


@pytest.mark.smoke
async def test_a_router_serves_what_a_galley_says_and_follows_it(
    tmp_path: Path, free_ports: Callable[[int], list[int]], classes: Classes
) -> None:
    galley = Galley(classes)
    port, galley_port = free_ports(2)
    url = f"http://{EDGE.ip}:{port}/"
    async with http_backend("one") as one, http_backend("two") as two, http_client() as client:

        async def answered_by(name: str) -> bool:
            try:
                reply = await client.get(url, headers={"host": "web.test"})
            except httpx.HTTPError:
                return False
            return reply.status_code == 200 and reply.json()["name"] == name

        put_gateway(galley, port)
        put_service(galley, one)
        with galley.serving(galley_port) as address:
            async with (
                running_plane(mcp_servers=(address,), debounce_after=0.02) as plane,
                real_envoy(plane.addresses.grpc, tmp_path, EDGE, delta=True) as envoy,
            ):
                with trio.fail_after(60):
                    await envoy.wait_live()
                await eventually(lambda: answered_by("one"), what="answered by one")
                put_service(galley, two)
                await eventually(lambda: answered_by("two"), what="answered by two")
                assert await envoy.rejected() == {}
                assert plane.state.world.rejections() == ()
