"""Against a Galley that does what the source code of 1.1 does, on grpcio."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import trio

from mesh_pilot.model.events import Endpoints
from mesh_pilot.model.service import Health, Locality, Protocol, Resolution, Service
from mesh_pilot.sources.mcp.pacing import NACK_BACKOFF_SECONDS
from mesh_pilot.sources.mcp.sink_server import SinkServer
from mesh_pilot.sources.mcp.source import McpServer, mcp_source
from mesh_pilot.xds.mcp.collections import COLLECTIONS
from mesh_pilot.xds.mcp.identity import PlaneIdentity
from tests.sources.conformance import running
from tests.sources.mcp_feed import ANYBODY
from tests.support.envoy import eventually
from tests.support.galley import COLLECTIONS as OFFERED
from tests.support.galley import Classes, Galley
from tests.support.protos import compiled, message_classes

Ports = Callable[[int], list[int]]

IDENTITY = PlaneIdentity(host="pilot-1")
ROUTES, GATEWAYS = "istio/networking/v1alpha3/virtualservices", "istio/networking/v1alpha3/gateways"
ROUTE, GATEWAY = "istio.networking.v1alpha3.VirtualService", "istio.networking.v1alpha3.Gateway"
CORE = "k8s.io.api.core.v1"


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Classes:
    return dict(message_classes(compiled(tmp_path_factory.getbasetemp())))


def route(galley: Galley, name: str, host: str) -> None:
    spec = galley.classes[ROUTE](hosts=[host])
    spec.http.add().route.add().destination.host = host
    galley.put(ROUTES, f"shop/{name}", ROUTE, spec.SerializeToString(), labels={"app": name})


def bad_route(galley: Galley, name: str) -> None:
    galley.put(ROUTES, f"shop/{name}", ROUTE, galley.classes[ROUTE](hosts=["a.test"]).SerializeToString())


def hosts(picture: Any) -> dict[str, list[str]]:
    return {key[-1]: item.spec.hosts for key, item in picture.items.items() if key[:2] == ("config", "VirtualService")}


async def test_all_collections_that_it_has_are_read_and_those_that_it_lacks_left_out(
    classes: Classes, free_ports: Ports
) -> None:
    galley = Galley(classes)
    route(galley, "one", "one.test")
    with galley.serving(free_ports(1)[0]) as address:
        source = mcp_source(McpServer(address=address), IDENTITY)
        async with running(source) as follower:
            await follower.until_synced()
            assert hosts(follower.picture) == {"one": ["one.test"]}
            (item,) = follower.picture.items.values()
            assert (item.labels, item.created.year) == ({"app": "one"}, 2017)  # type: ignore[union-attr]
            assert set(source.statistics().not_offered) == set(COLLECTIONS) - set(OFFERED)
            route(galley, "two", "two.test")
            await follower.until(lambda picture: len(hosts(picture)) == 2)
            galley.remove(ROUTES, "shop/one")
            await follower.until(lambda picture: hosts(picture) == {"two": ["two.test"]})
    assert {request.sink_node.id for request in galley.said} == {"pilot-1.istio-system"}
    assert {request.sink_node.annotations["agent"] for request in galley.said} == {"mesh-pilot"}


async def test_nothing_but_small_requests_is_spent_on_collections_that_it_lacks(
    classes: Classes, free_ports: Ports
) -> None:
    galley = Galley(classes)
    route(galley, "one", "one.test")
    with galley.serving(free_ports(1)[0]) as address:
        async with running(mcp_source(McpServer(address=address), IDENTITY)) as follower:
            await follower.until_synced()
    assert galley.streams == len(set(COLLECTIONS) - set(OFFERED)) + 1
    assert sum(response.collection == ROUTES for response in galley.sent) == 1


async def test_a_bad_object_is_refused_by_name_once_and_costs_no_other(classes: Classes, free_ports: Ports) -> None:
    galley = Galley(classes)
    route(galley, "good", "good.test")
    bad_route(galley, "bad")
    with galley.serving(free_ports(1)[0]) as address:
        async with running(mcp_source(McpServer(address=address), IDENTITY)) as follower:
            await follower.until(lambda picture: picture.synced > 0 and bool(picture.rejected))
            assert hosts(follower.picture) == {"good": ["good.test"]}
            route(galley, "later", "later.test")
            await follower.until(lambda picture: "later" in hosts(picture))
            route(galley, "bad", "bad.test")
            await follower.until(lambda picture: not picture.rejected)
            assert set(hosts(follower.picture)) == {"good", "bad", "later"}
    refusals = [request.error_detail for request in galley.said if request.error_detail.code]
    assert len(refusals) == 2  # of the first, and of that with one more good one
    assert all(error.code == 3 and f"{ROUTES} shop/bad: " in error.message for error in refusals)


async def test_a_galley_that_has_no_snapshot_yet_is_waited_for_however_long(
    classes: Classes, free_ports: Ports
) -> None:
    galley = Galley(classes, has_snapshot=False)
    route(galley, "one", "one.test")
    with galley.serving(free_ports(1)[0]) as address:
        source = mcp_source(McpServer(address=address, answer_timeout_seconds=0.05), IDENTITY)
        async with running(source) as follower:
            asked = set(COLLECTIONS) & set(OFFERED)
            await eventually(lambda: asked <= {r.collection for r in galley.said}, what="it asks for all there is")
            with pytest.raises(trio.TooSlowError), trio.fail_after(0.3):  # many times the patience with one collection
                await follower.until_synced()
            assert not source.statistics().synced
            assert "no answer yet" in source.statistics().waiting_for
            galley.take_snapshot()
            await follower.until_synced()
            assert hosts(follower.picture) == {"one": ["one.test"]}


async def test_a_galley_that_comes_back_changes_only_what_changed(classes: Classes, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    galley = Galley(classes)
    for name in ("one", "two", "three"):
        route(galley, name, f"{name}.test")
    with galley.serving(port) as address:
        source = mcp_source(McpServer(address=address), IDENTITY)
        async with running(source) as follower:
            await follower.until_synced()
            follower.take_events()
    async with running(source) as follower:
        galley.remove(ROUTES, "shop/two")
        route(galley, "one", "uno.test")
        judged = source.statistics().judged
        with galley.serving(port):
            await follower.until(lambda picture: hosts(picture) == {"one": ["uno.test"], "three": ["three.test"]})
            assert source.statistics().judged == judged + 1


async def test_a_galley_that_dials_is_read_as_one_that_is_dialled(classes: Classes, free_ports: Ports) -> None:
    galley = Galley(classes)
    route(galley, "one", "one.test")
    bad_route(galley, "bad")
    address = f"127.0.0.1:{free_ports(1)[0]}"
    source = SinkServer(address, IDENTITY, door=ANYBODY)
    async with running(source) as follower:
        with galley.dialling(address, again_seconds=0.01, trigger_seconds=0.05):
            await follower.until(lambda picture: picture.synced > 0 and bool(picture.rejected))
            assert hosts(follower.picture) == {"one": ["one.test"]}
            route(galley, "bad", "bad.test")
            await follower.until(lambda picture: len(hosts(picture)) == 2)
            assert galley.streams == 1 + 2  # each after a second of a real one's: it gives up over one collection
    assert (galley.said[0].collection, galley.said[0].error_detail.code) == ("", 12)


LEGACY = {
    name for name in OFFERED if name.startswith(("istio/authentication", "istio/rbac", "istio/config", "istio/mixer"))
}
MESH = "istio/mesh/v1alpha1/MeshConfig"
DENY = "istio/security/v1beta1/authorizationpolicies"
SYNTHETIC = "istio/networking/v1alpha3/synthetic/serviceentries"


@pytest.mark.parametrize(
    ("more", "less", "given_up"),
    [
        pytest.param({SYNTHETIC}, set(), 1, id="Galley 1.2"),
        pytest.param({SYNTHETIC, MESH, DENY}, {"k8s/core/v1/nodes", "k8s/core/v1/endpoints"}, 3, id="Galley 1.4"),
        pytest.param({DENY}, LEGACY, 21, id="no Galley, though it lacks what the oldest lacks"),
    ],
)
async def test_what_a_dialling_server_has_is_read_whatever_it_lacks(
    classes: Classes, free_ports: Ports, more: set[str], less: set[str], given_up: int
) -> None:
    has = (set(OFFERED) | more) - less
    galley = Galley(classes, {name: {} for name in has}, dict.fromkeys(has, 0))
    route(galley, "one", "one.test")
    address = f"127.0.0.1:{free_ports(1)[0]}"
    async with running(SinkServer(address, IDENTITY, door=ANYBODY)) as follower:
        with galley.dialling(address, again_seconds=0.01):
            await follower.until_synced()
            assert hosts(follower.picture) == {"one": ["one.test"]}
    asked = {request.collection for request in galley.said if request.collection}
    assert set(COLLECTIONS) & has <= asked
    assert galley.streams == 1 + 2 * given_up


async def test_the_oldest_service_that_sends_again_what_is_refused_is_not_answered_as_fast(
    classes: Classes, free_ports: Ports
) -> None:
    galley = Galley(classes)
    route(galley, "good", "good.test")
    bad_route(galley, "bad")
    with galley.serving(free_ports(1)[0], aggregated=True) as address:
        source = mcp_source(McpServer(address=address), IDENTITY)
        async with running(source) as follower:
            await follower.until(lambda picture: picture.synced > 0 and bool(picture.rejected))
            assert hosts(follower.picture) == {"good": ["good.test"]}
            judged = source.statistics().judged
            began = trio.current_time()
            # Other collections are followed all the same.
            for number in range(10):
                galley.put(GATEWAYS, f"shop/gw-{number}", GATEWAY, gateway(galley))
                await follower.until(
                    lambda picture, n=number: ("config", "Gateway", "shop", f"gw-{n}") in picture.items
                )

            def refused() -> int:
                return sum(bool(request.error_detail.code) for request in list(galley.said))

            # At once, and then after waits that double.
            await eventually(lambda: refused() >= 2)
            assert refused() <= 3 + math.log2(1 + (trio.current_time() - began) / NACK_BACKOFF_SECONDS)
            assert source.statistics().judged == judged + 10
            route(galley, "bad", "bad.test")
            await follower.until(lambda picture: not picture.rejected)


def gateway(galley: Galley) -> bytes:
    spec = galley.classes[GATEWAY]()
    server = spec.servers.add(hosts=["a.test"])
    server.port.number, server.port.name, server.port.protocol = 80, "http", "HTTP"
    return bytes(spec.SerializeToString())


async def test_a_sink_that_is_started_anew_and_a_galley_that_is_find_each_other_again(
    classes: Classes, free_ports: Ports
) -> None:
    galley = Galley(classes)
    route(galley, "one", "one.test")
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with galley.dialling(address, again_seconds=0.01):
        for _ in range(2):
            async with running(SinkServer(address, IDENTITY, door=ANYBODY)) as follower:
                await follower.until_synced()
                assert hosts(follower.picture) == {"one": ["one.test"]}
    source = SinkServer(address, IDENTITY, door=ANYBODY)
    async with running(source) as follower:
        with galley.dialling(address, again_seconds=0.01):
            await follower.until_synced()
        await eventually(lambda: source.statistics().stale_seconds > 0, what="the loss is noticed")
        route(galley, "two", "two.test")
        judged = source.statistics().judged
        with galley.dialling(address, again_seconds=0.01):
            await follower.until(lambda picture: len(hosts(picture)) == 2)
        assert source.statistics().judged == judged + 1


async def test_a_galley_that_dials_and_has_no_snapshot_is_waited_for_too(classes: Classes, free_ports: Ports) -> None:
    galley = Galley(classes, has_snapshot=False)
    route(galley, "one", "one.test")
    address = f"127.0.0.1:{free_ports(1)[0]}"
    source = SinkServer(address, IDENTITY, door=ANYBODY, answer_timeout_seconds=0.05)
    async with running(source) as follower:
        with galley.dialling(address, again_seconds=0.01):
            await eventually(lambda: len(galley.said) > 1, what="it is asked")
            with pytest.raises(trio.TooSlowError), trio.fail_after(0.3):
                await follower.until_synced()
            galley.take_snapshot()
            await follower.until_synced()
            assert hosts(follower.picture) == {"one": ["one.test"]}


# -- Kubernetes


def kubernetes(galley: Galley) -> None:
    """A Service with two pods, of which one is not ready, on a node in a zone."""
    new = {name: galley.classes[f"{CORE}.{name}"] for name in ("ServiceSpec", "Endpoints", "Pod", "NodeSpec")}
    service = new["ServiceSpec"](cluster_ip="10.96.0.7", type="ClusterIP", selector={"app": "web"})
    service.ports.add(name="http-web", protocol="TCP", port=80).target_port.int_val = 8080
    galley.put("k8s/core/v1/services", "shop/web", f"{CORE}.ServiceSpec", service.SerializeToString())
    endpoints = new["Endpoints"]()
    subset = endpoints.subsets.add()
    for ip, name, addresses in (
        ("10.1.0.1", "web-abc-1", subset.addresses),
        ("10.1.0.2", "x", subset.not_ready_addresses),
    ):
        address = addresses.add(ip=ip, node_name="node-1")
        address.target_ref.kind, address.target_ref.namespace, address.target_ref.name = "Pod", "shop", name
    subset.ports.add(name="http-web", port=8080, protocol="TCP")
    # What is not read: the object's own metadata, with a name.
    body = b"\x0a\x05\x0a\x03web" + endpoints.SerializeToString()
    galley.put("k8s/core/v1/endpoints", "shop/web", f"{CORE}.Endpoints", body)
    pod = new["Pod"]()
    pod.spec.service_account_name, pod.spec.node_name, pod.status.pod_ip = "web", "node-1", "10.1.0.1"
    labels = {"app": "web", "pod-template-hash": "abc"}
    galley.put("k8s/core/v1/pods", "shop/web-abc-1", f"{CORE}.Pod", pod.SerializeToString(), labels=labels)
    zone = {"failure-domain.beta.kubernetes.io/region": "eu", "failure-domain.beta.kubernetes.io/zone": "eu-1"}
    galley.put("k8s/core/v1/nodes", "node-1", f"{CORE}.NodeSpec", b"", labels=zone)


WEB = ("web.shop.svc.cluster.local", "shop")


def endpoints_of(picture: Any) -> list[Any]:
    found = picture.items.get(("endpoints", *WEB))
    return list(found.endpoints) if isinstance(found, Endpoints) else []


async def test_services_of_kubernetes_come_with_their_endpoints(classes: Classes, free_ports: Ports) -> None:
    galley = Galley(classes)
    kubernetes(galley)
    with galley.serving(free_ports(1)[0]) as address:
        async with running(mcp_source(McpServer(address=address), IDENTITY)) as follower:
            await follower.until_synced()
            service = follower.picture.items["service", *WEB]
            assert isinstance(service, Service)
            assert (service.addresses, service.resolution, service.registry) == (
                ("10.96.0.7",),
                Resolution.CLIENT_SIDE,
                "Kubernetes",
            )
            (port,) = service.ports
            assert (port.number, port.name, port.protocol, port.target_port) == (80, "http-web", Protocol.HTTP, 8080)
            endpoint, unready = endpoints_of(follower.picture)
            assert (unready.address, unready.health) == ("10.1.0.2", Health.UNLISTED)
            assert (endpoint.address, endpoint.port, endpoint.service_port) == ("10.1.0.1", 8080, "http-web")
            assert endpoint.locality == Locality("eu", "eu-1")
            assert endpoint.labels["app"] == "web"
            assert endpoint.service_account == "ns/shop/sa/web"
            assert endpoint.workload == "web"
            moved = {"topology.kubernetes.io/region": "us"}
            galley.put("k8s/core/v1/nodes", "node-1", f"{CORE}.NodeSpec", b"", labels=moved)
            await follower.until(lambda picture: endpoints_of(picture)[0].locality == Locality("us"))
            galley.remove("k8s/core/v1/endpoints", "shop/web")
            await follower.until(lambda picture: endpoints_of(picture) == [])
            galley.remove("k8s/core/v1/services", "shop/web")
            await follower.until(lambda picture: not picture.items)


async def test_a_body_of_kubernetes_that_can_not_be_read_is_refused_and_the_others_hold(
    classes: Classes, free_ports: Ports
) -> None:
    galley = Galley(classes)
    kubernetes(galley)
    galley.put("k8s/core/v1/services", "shop/broken", f"{CORE}.ServiceSpec", b"\x0a\x7fcut")
    with galley.serving(free_ports(1)[0]) as address:
        async with running(mcp_source(McpServer(address=address), IDENTITY)) as follower:
            await follower.until(lambda picture: picture.synced > 0 and bool(picture.rejected))
            assert ("service", *WEB) in follower.picture.items
            (rejected,) = follower.picture.rejected.values()
            assert rejected.origin.location.endswith("k8s/core/v1/services shop/broken")
