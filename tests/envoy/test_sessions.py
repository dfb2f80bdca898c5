"""Sessions of the Gateway API in Envoy's configuration: filters where they are used, routes for several backends."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.route.v3 import route_pb2

from mesh_pilot.explain.plan.past_world import resources_of
from mesh_pilot.model.config import Origin
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import CLUSTER, LISTENER, ROUTE
from mesh_pilot.sources.base.published import ValidObject
from mesh_pilot.sources.files.objects import read_objects
from mesh_pilot.world import World
from tests.support.manifests import manifest, service
from tests.support.routing import plain, router
from tests.support.worlds import sidecar, update, world_of

FILTER = "envoy.filters.http.stateful_session"
LABELS = {"gateway.networking.k8s.io/gateway-name": "edge"}
EDGE = router(namespace="shop", labels=LABELS)
CLIENT = sidecar(namespace="shop")
HEAD = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: %s\nmetadata: {name: %s, namespace: shop}\n"
GATEWAY = (
    HEAD % ("Gateway", "edge") + "spec: {gatewayClassName: istio, listeners: [{name: a, protocol: HTTP, port: 80}]}\n"
)
SERVICES = "".join(
    service(f"{name}.test", 80, {"address": f"10.0.0.{n}"}, name=name) for n, name in enumerate(("red", "blue"), 1)
)
POLICY = """---
apiVersion: gateway.networking.x-k8s.io/v1alpha1
kind: XBackendTrafficPolicy
metadata: {name: red, namespace: shop}
spec: {targetRefs: [{group: "", kind: Service, name: red}], sessionPersistence: {}}
"""


def http_route(*backends: str, session: str = "", parent: str = "{name: edge}", kind: str = "HTTPRoute") -> str:
    refs = ", ".join(f"{{group: networking.istio.io, kind: Hostname, name: {each}, port: 80}}" for each in backends)
    kept = f"sessionPersistence: {session}, " if session else ""
    return HEAD % (kind, "web") + f"spec: {{parentRefs: [{parent}], rules: [{{{kept}backendRefs: [{refs}]}}]}}\n"


def has_filter(world: World, proxy: Proxy) -> bool:
    return any(FILTER.encode() in each.body for each in resources_of(world, proxy)[LISTENER].values())


def routes(world: World, proxy: Proxy, table: str) -> list[dict[str, Any]]:
    found = route_pb2.RouteConfiguration.FromString(resources_of(world, proxy)[ROUTE][table].body)
    return [plain(route) for host in found.virtual_hosts for route in host.routes if "red" in str(route)]


def state_of(holder: dict[str, Any]) -> dict[str, Any]:
    settings = holder["typed_per_filter_config"][FILTER]["stateful_session"]["session_state"]["typed_config"]
    found: dict[str, Any] = settings.get("cookie") or settings
    return found


def test_only_listeners_that_route_by_sessions_have_the_filter() -> None:
    at_gateway = http_route("red.test", session="{}")
    entry = "{group: networking.istio.io, kind: ServiceEntry, name: red}"
    in_mesh = http_route("red.test", session="{}", parent=entry)
    for text, expected in (
        (http_route("red.test"), (False, False)),
        (at_gateway, (True, False)),
        (in_mesh, (False, True)),
    ):
        world = world_of(GATEWAY + SERVICES + text)
        assert (has_filter(world, EDGE), has_filter(world, CLIENT)) == expected, text


def test_the_filter_goes_with_the_last_of_several_routes_that_keep_sessions() -> None:
    one = http_route("red.test", session="{}")
    other = one.replace("name: web", "name: other")
    world = world_of(GATEWAY + SERVICES + one + other)
    for text in (http_route("red.test"), other.replace("sessionPersistence: {}, ", "")):
        assert has_filter(world, EDGE)
        update(world, text)
    assert not has_filter(world, EDGE)
    update(world, one)
    assert has_filter(world, EDGE)


def test_the_only_backend_has_the_cookie_itself_by_default_with_a_name_of_the_rule() -> None:
    for kind in ("HTTPRoute", "GRPCRoute"):
        (route,) = routes(
            world_of(GATEWAY + SERVICES + http_route("red.test", session="{}", kind=kind)), EDGE, "http.80"
        )
        state = state_of(route)
        assert state["name"].startswith("session-") and state["path"] == "/" and "ttl" not in state
    permanent = "{sessionName: shop, absoluteTimeout: 90m, cookieConfig: {lifetimeType: Permanent}}"
    (route,) = routes(world_of(GATEWAY + SERVICES + http_route("red.test", session=permanent)), EDGE, "http.80")
    assert (state_of(route)["name"], state_of(route)["ttl"]) == ("shop", "5400s")


@pytest.mark.parametrize("kind", ["Cookie", "Header"])
def test_each_of_several_backends_has_a_route_for_its_sessions_before_the_one_by_weight(kind: str) -> None:
    session = f"{{type: {kind}, sessionName: shop}}"
    found = routes(world_of(GATEWAY + SERVICES + http_route("red.test", "blue.test", session=session)), EDGE, "http.80")
    *kept, by_weight = found
    assert [each["route"]["cluster"] for each in kept] == ["outbound|80||red.test", "outbound|80||blue.test"]
    weighted = by_weight["route"]["weighted_clusters"]["clusters"]
    assert [state_of(each)["name"] for each in weighted] == [state_of(each)["name"] for each in kept]
    for each in kept:
        (header,) = each["match"]["headers"]
        name = state_of(each)["name"]
        wanted = header["string_match"]["safe_regex"]["regex"] if kind == "Cookie" else header["name"]
        assert name.startswith("shop-") and name in wanted.replace("\\", "")
    assert FILTER not in by_weight.get("typed_per_filter_config", {})


def test_a_policy_of_a_service_is_for_all_routes_to_it_and_lets_draining_endpoints_keep_theirs() -> None:
    red = service("red.shop.svc.cluster.local", 80, {"address": "10.0.0.1"}, name="red")
    world = world_of(GATEWAY + red + POLICY + http_route("red.shop.svc.cluster.local"))
    (route,) = routes(world, EDGE, "http.80")
    assert state_of(route)["name"].startswith("session-")
    assert has_filter(world, CLIENT) and FILTER in str(routes(world, CLIENT, "80"))
    body = resources_of(world, EDGE)[CLUSTER]["outbound|80||red.shop.svc.cluster.local"].body
    statuses = plain(cluster_pb2.Cluster.FromString(body))["common_lb_config"]["override_host_status"]["statuses"]
    assert "DRAINING" in statuses and "UNHEALTHY" not in statuses


@pytest.mark.parametrize(
    ("kind", "spec", "field"),
    [
        (
            "VirtualService",
            "hosts: [a.test]\nhttp:\n- {session: {cookie: a}, route: [{destination: {host: a}}]}",
            "http[0].",
        ),
        ("DestinationRule", "host: a.test\ntrafficPolicy: {session: {cookie: a}}", "trafficPolicy."),
    ],
)
def test_users_write_sessions_in_the_gateway_apis_objects_alone(kind: str, spec: str, field: str) -> None:
    (read,) = read_objects(manifest(kind, "a", spec).encode(), Origin("files", "a.yaml"), "shop")
    assert not isinstance(read, ValidObject)
    assert f"spec.{field}session" in str(read) and "Gateway API alone" in str(read)
