"""Routes of the Gateway API: the VirtualServices that they become, and what their statuses say."""

from __future__ import annotations

from typing import Any

import pytest

from mesh_pilot.istio.reading.encode_json import to_json
from mesh_pilot.model.config import Config, ConfigKey, Origin
from mesh_pilot.model.events import Synced, Upsert
from mesh_pilot.model.service import Port, Protocol, Service
from mesh_pilot.sources.base.published import ValidObject
from mesh_pilot.sources.files.objects import read_objects
from mesh_pilot.world import World

GATEWAY = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  gatewayClassName: istio
  listeners:
  - {name: http, port: 80, protocol: HTTP, hostname: "*.test"}
  - {name: narrow, port: 80, protocol: HTTP, hostname: narrow.test}
  - {name: tls, port: 443, protocol: TLS, hostname: "*.secure.test", tls: {mode: Passthrough}}
  - {name: tcp, port: 9000, protocol: TCP}
  - {name: udp, port: 9000, protocol: UDP}
"""
HOSTS = ("reviews.shop.svc.cluster.local", "ratings.shop.svc.cluster.local", "safe.bank.svc.cluster.local", "api.test")
PORTS = (Port(80, "http", Protocol.HTTP),)


def route(spec: str, name: str = "web", kind: str = "HTTPRoute", namespace: str = "shop", created: int = 1) -> str:
    head = f"apiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\n"
    when = f"2024-01-0{created}T00:00:00Z"
    return f"---\n{head}metadata: {{name: {name}, namespace: {namespace}, creationTimestamp: {when}}}\nspec: {spec}\n"


def world_of(*objects: str) -> World:
    world = World()
    world.expect("files")
    text = GATEWAY + "".join(objects)
    read = list(read_objects(text.encode(), Origin("files", "a.yaml"), "shop"))
    assert all(isinstance(each, ValidObject) for each in read), read
    services = (Service(host=host, namespace=(host.split(".")[1:2] or [""])[0], ports=PORTS) for host in HOSTS)
    world.apply(
        [
            *(Upsert("files", service) for service in services),
            *(Upsert("files", each.item) for each in read if isinstance(each, ValidObject)),
            Synced("files"),
        ]
    )
    return world


def made(world: World) -> dict[str, Config]:
    """The VirtualServices, by the last part of their names, which is the host."""
    found = (config for key, config in world.config.items() if key.kind == "VirtualService" and config is not None)
    return {config.name.rpartition("~")[2] if config.spec.http else config.name: config for config in found}


def spec_of(config: Config) -> dict[str, Any]:
    return to_json(config.spec)


def conditions(world: World, name: str = "web", kind: str = "HTTPRoute") -> list[tuple[str, str, str]]:
    """Of the first parent: status, reason and message of Accepted and ResolvedRefs."""
    status = world.object_status(ConfigKey(kind, "shop", name))
    assert status is not None
    (first, *_) = status["parents"]
    return [(each["status"], each["reason"], each["message"]) for each in first["conditions"]]


FINE = [("True", "Accepted", "Route was valid"), ("True", "ResolvedRefs", "All references resolved")]
TO = "backendRefs: [{name: reviews, port: 80}]"


def test_rules_of_all_routes_of_a_host_are_one_list_the_most_specific_first() -> None:
    matches = (
        "{}", "{path: {value: /long/path}}", "{path: {value: /long/}}", "{method: GET}",
        "{path: {type: Exact, value: /a}}", "{path: {type: RegularExpression, value: '/[a-z]*longest.*'}}",
        "{headers: [{name: a, value: '1'}]}", "{queryParams: [{name: a, value: '1'}]}",
    )  # fmt: skip
    rules = ", ".join(f"{{matches: [{match}], {TO}}}" for match in matches)
    late = route(f"{{parentRefs: [{{name: edge}}], hostnames: [a.test], rules: [{rules}]}}", created=2)
    early = route(
        f"{{parentRefs: [{{name: edge}}], hostnames: [a.test], rules: [{{{TO}}}, {{matches: [{{}}], {TO}}}]}}", "old"
    )
    world = world_of(late, early)
    config = made(world)["a.test"]
    assert [rule["name"] for rule in spec_of(config)["http"]] == [
        "shop.web.4", "shop.web.1", "shop.web.2", "shop.web.3", "shop.web.6", "shop.web.7", "shop.old.1", "shop.web.0",
        "shop.web.5", "shop.old.0",
    ]  # fmt: skip
    assert config.made_from == (ConfigKey("HTTPRoute", "shop", "old"), ConfigKey("HTTPRoute", "shop", "web"))
    assert config.annotations["internal.istio.io/parents"] == "HTTPRoute/old.shop,HTTPRoute/web.shop"
    assert conditions(world) == [("True", "Accepted", "Route was valid"), FINE[1]]


def test_a_listener_with_a_better_host_takes_its_requests() -> None:
    world = world_of(route(f"{{parentRefs: [{{name: edge}}], hostnames: [narrow.test, b.test], rules: [{{{TO}}}]}}"))
    found = [config.spec for key, config in world.config.items() if key.kind == "VirtualService" and config]
    assert sorted((spec.gateways[0].rpartition("~")[2], spec.hosts[0]) for spec in found) == [
        ("http", "b.test"),
        ("narrow", "b.test"),
        ("narrow", "narrow.test"),
    ]


@pytest.mark.parametrize(
    ("backends", "said"),
    [
        ("[{name: reviews, port: 80}]", FINE[1]),
        (
            "[{name: absent, port: 80}]",
            ("False", "BackendNotFound", "backend(absent.shop.svc.cluster.local) not found"),
        ),
        (
            "[{name: safe, namespace: bank, port: 80}]",
            (
                "False",
                "RefNotPermitted",
                'backendRef safe/bank not accessible to a HTTPRoute in namespace "shop" (missing a ReferenceGrant?)',
            ),
        ),
        (
            "[{name: x, kind: Cat, group: a.test}]",
            ("False", "InvalidKind", 'referencing unsupported backendRef: group "a.test" kind "Cat"'),
        ),
        ("[{name: api.test, kind: Hostname, group: networking.istio.io, port: 80}]", FINE[1]),
        (
            "[{name: api.test, kind: Hostname, group: networking.istio.io}]",
            ("False", "InvalidDestination", "port is required in backendRef"),
        ),
        (
            "[{name: reviews.shop, port: 80}]",
            (
                "False",
                "InvalidDestination",
                "service name invalid; the name of the Service must be used, not the hostname.",
            ),
        ),
    ],
)
def test_a_status_says_what_is_wrong_with_a_backend(backends: str, said: tuple[str, str, str]) -> None:
    world = world_of(
        route(f"{{parentRefs: [{{name: edge}}], hostnames: [a.test], rules: [{{backendRefs: {backends}}}]}}")
    )
    accepted, resolved = conditions(world)
    assert (accepted[0], resolved) == ("True", said)
    assert bool(made(world)) == (said[1] != "InvalidDestination")


def test_a_reference_grant_opens_a_namespace() -> None:
    grant = """---
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: open, namespace: bank}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}]
  to: [{group: "", kind: Service}]
"""
    rule = "{backendRefs: [{name: safe, namespace: bank, port: 80}]}"
    world = world_of(route(f"{{parentRefs: [{{name: edge}}], hostnames: [a.test], rules: [{rule}]}}"), grant)
    assert conditions(world) == FINE


@pytest.mark.parametrize(
    ("parent", "reason", "message"),
    [
        ("{name: edge, port: 81}", "NoMatchingParent", "port 81 not found; port 81 not found"),
        ("{name: edge, sectionName: absent}", "NoMatchingParent", 'sectionName "absent" not found'),
        ("{name: edge, sectionName: narrow}", "NoMatchingListenerHostname", "no hostnames matched parent hostname"),
        ("{name: edge, sectionName: tcp}", "NotAllowedByListeners", "/HTTPRoute is not allowed"),
        ('{name: absent, kind: Service, group: ""}', "NoMatchingParent", 'parent service: "absent" not found'),
    ],
)
def test_a_status_says_why_a_parent_refuses_a_route(parent: str, reason: str, message: str) -> None:
    world = world_of(route(f"{{parentRefs: [{parent}], hostnames: [a.test], rules: [{{{TO}}}]}}"))
    accepted, _ = conditions(world)
    assert accepted[:2] == ("False", reason) and message in accepted[2]
    assert made(world) == {}


def test_filters_timeouts_and_weights_become_those_of_a_virtual_service() -> None:
    filters = (
        "{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: X-A, value: 100%}], add: "
        "[{name: X-B, value: '%START_TIME%'}]}}",
        "{type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: '/a\\1'}}}",
        "{type: RequestMirror, requestMirror: {backendRef: {name: ratings, port: 80}, fraction: {numerator: 1, "
        "denominator: 8}}}",
        "{type: CORS, cors: {allowOrigins: ['https://*.a.test', 'http://b.test'], maxAge: 7}}",
    )
    backends = "[{name: reviews, port: 80, weight: 3}, {name: ratings, port: 80}, {name: ratings, port: 80, weight: 0}]"
    rule = (
        f"{{filters: [{', '.join(filters)}], backendRefs: {backends}, timeouts: {{request: 10s, backendRequest: 2s}}, "
        "retry: {codes: [503], backoff: 100ms}}"
    )
    (found,) = spec_of(
        made(world_of(route(f"{{parentRefs: [{{name: edge}}], hostnames: [a.test], rules: [{rule}]}}")))["a.test"]
    )["http"]
    host = "{}.shop.svc.cluster.local".format
    assert found["headers"]["request"] == {"set": {"x-a": "100%%"}, "add": {"x-b": "%START_TIME%"}}
    assert found["rewrite"] == {"uriRegexRewrite": {"match": "/.*", "rewrite": "/a\\\\1"}}
    assert found["mirrors"] == [
        {"destination": {"host": host("ratings"), "port": {"number": 80}}, "percentage": {"value": 12.5}}
    ]
    assert found["corsPolicy"]["allowOrigins"] == [{"regex": r"^https://.*\.a\.test$"}, {"exact": "http://b.test"}]
    assert (found["corsPolicy"]["maxAge"], found["timeout"]) == ("7s", "10s")
    assert found["retries"] == {
        "attempts": 2,
        "perTryTimeout": "2s",
        "retryOn": "connect-failure,refused-stream,unavailable,cancelled,503",
        "backoff": "0.1s",
    }
    assert [(each["destination"]["host"], each["weight"]) for each in found["route"]] == [
        (host("reviews"), 3),
        (host("ratings"), 1),
    ]


def test_a_rule_without_backends_answers_500_and_a_filter_that_is_not_known_here_stops_a_route() -> None:
    ref = "{type: ExtensionRef, extensionRef: {group: a.test, kind: Cat, name: x}}"
    world = world_of(
        route("{parentRefs: [{name: edge}], hostnames: [a.test]}"),
        route(f"{{parentRefs: [{{name: edge}}], hostnames: [b.test], rules: [{{filters: [{ref}], {TO}}}]}}", "bad"),
    )
    assert spec_of(made(world)["a.test"])["http"] == [{"name": "shop.web.0", "directResponse": {"status": 500}}]
    assert "b.test" not in made(world)
    assert conditions(world, "bad")[1] == ("False", "InvalidFilter", 'unsupported filter type "ExtensionRef"')


def test_the_only_backend_of_a_rule_may_rewrite_and_redirect() -> None:
    rewrite = "{type: URLRewrite, urlRewrite: {hostname: b.test}}"
    redirect = "{type: RequestRedirect, requestRedirect: {hostname: c.test}}"
    lone = "{{matches: [{{path: {{value: {}}}}}], backendRefs: [{{name: reviews, port: 80, filters: [{}]}}]}}".format
    rules = f"{lone('/a', rewrite)}, {lone('/bb', redirect)}"
    two = f"{{backendRefs: [{{name: reviews, port: 80, filters: [{rewrite}]}}, {{name: ratings, port: 80}}]}}"
    world = world_of(
        route(f"{{parentRefs: [{{name: edge}}], hostnames: [a.test], rules: [{rules}]}}"),
        route(f"{{parentRefs: [{{name: edge}}], hostnames: [b.test], rules: [{two}]}}", "two"),
    )
    redirected, rewritten = spec_of(made(world)["a.test"])["http"]
    assert (redirected["redirect"]["authority"], "route" in redirected) == ("c.test", False)
    assert (rewritten["rewrite"], len(rewritten["route"])) == ({"authority": "b.test"}, 1)
    assert conditions(world, "two")[1][:2] == ("False", "InvalidFilter")


@pytest.mark.parametrize(("to", "reason"), [("ratings", "ResolvedRefs"), ("nowhere", "BackendNotFound")])
def test_a_rule_of_a_service_asks_or_lets_nothing_pass(to: str, reason: str) -> None:
    auth = f"{{type: ExternalAuth, externalAuth: {{protocol: HTTP, backendRef: {{name: {to}, port: 80}}, http: {{}}}}}}"
    world = world_of(
        route(f"{{parentRefs: [{{kind: Service, group: '', name: reviews}}], rules: [{{filters: [{auth}], {TO}}}]}}")
    )
    (found,) = made(world).values()
    (rule,) = spec_of(found)["http"]
    if reason == "ResolvedRefs":
        asked = {"host": "ratings.shop.svc.cluster.local", "port": {"number": 80}}
        assert (rule["externalAuth"], len(rule["route"])) == ([{"destination": asked}], 1)
    else:
        assert rule == {"name": "shop.web.0", "directResponse": {"status": 500}}
    assert conditions(world)[1][1] == reason


def test_calls_of_grpc_are_paths() -> None:
    methods = (
        "{service: a.B, method: C}", "{service: a.B}", "{method: C}", "{type: RegularExpression, service: 'a.*'}",
    )  # fmt: skip
    rules = ", ".join(f"{{matches: [{{method: {method}}}], {TO}}}" for method in methods)
    world = world_of(
        route(f"{{parentRefs: [{{name: edge}}], hostnames: [a.test], rules: [{rules}]}}", kind="GRPCRoute")
    )
    found = [rule["match"][0]["uri"] for rule in spec_of(made(world)["a.test"])["http"]]
    assert found == [{"exact": "/a.B/C"}, {"prefix": "/a.B/"}, {"regex": "/[^/]+/C"}, {"regex": "/a.*/.+"}]


def test_a_tls_route_is_narrowed_to_its_listener_and_a_tcp_route_has_one_for_all_hosts() -> None:
    world = world_of(
        route(f"{{parentRefs: [{{name: edge}}], hostnames: ['*.test'], rules: [{{{TO}}}]}}", "tls", "TLSRoute"),
        route(f"{{parentRefs: [{{name: edge, sectionName: tcp}}], rules: [{{{TO}}}]}}", "tcp", "TCPRoute"),
        route(f"{{parentRefs: [{{name: edge}}], rules: [{{{TO}}}]}}", "udp", "UDPRoute"),
    )
    found = {config.name: spec_of(config) for config in made(world).values()}
    tls = found["tls~tls~0~istio-autogenerated-k8s-gateway"]
    assert (tls["hosts"], tls["tls"][0]["match"]) == (["*.secure.test"], [{"sniHosts": ["*.secure.test"]}])
    tcp = found["tcp~tcp~0~istio-autogenerated-k8s-gateway"]
    assert (tcp["hosts"], "match" in tcp["tcp"][0]) == (["*"], False)
    udp = found["udp~udp~0~istio-autogenerated-k8s-gateway"]
    assert (udp["hosts"], udp["gateways"]) == (["*"], ["shop/edge~istio-autogenerated-k8s-gateway~udp"])
    assert conditions(world, "udp", "UDPRoute") == FINE
    listeners = world.object_status(ConfigKey("KubernetesGateway", "shop", "edge"))["listeners"]  # type: ignore[index]
    told = {each["name"]: (each["attachedRoutes"], each["supportedKinds"][0]["kind"]) for each in listeners}
    assert (told["tcp"], told["udp"]) == ((1, "TCPRoute"), (1, "UDPRoute"))


def test_a_udp_route_attaches_to_udp_listeners_alone_and_needs_a_grant_for_another_namespace() -> None:
    service = "{group: '', kind: Service, name: reviews, port: 80}"
    away = "backendRefs: [{name: safe, namespace: bank, port: 80}]"
    world = world_of(
        route(f"{{parentRefs: [{{name: edge, sectionName: tcp}}], rules: [{{{TO}}}]}}", "stream", "UDPRoute"),
        route(f"{{parentRefs: [{service}], rules: [{{{TO}}}]}}", "mesh", "UDPRoute"),
        route(f"{{parentRefs: [{{name: edge}}], rules: [{{{away}}}]}}", "away", "UDPRoute"),
    )
    for name in ("stream", "mesh"):
        accepted, _ = conditions(world, name, "UDPRoute")
        assert accepted[:2] == ("False", "NotAllowedByListeners"), name
    assert conditions(world, "away", "UDPRoute")[1][:2] == ("False", "RefNotPermitted")
    source = "{group: gateway.networking.k8s.io, kind: UDPRoute, namespace: shop}"
    grant = f"{{from: [{source}], to: [{{group: '', kind: Service}}]}}"
    world = world_of(
        route(f"{{parentRefs: [{{name: edge}}], rules: [{{{away}}}]}}", "away", "UDPRoute"),
        route(grant, "grant", "ReferenceGrant", "bank"),
    )
    assert conditions(world, "away", "UDPRoute") == FINE


def test_a_route_of_a_service_is_for_the_mesh() -> None:
    parent = "{group: '', kind: Service, name: reviews, port: 80}"
    world = world_of(route(f"{{parentRefs: [{parent}], rules: [{{{TO}}}]}}"))
    (config,) = made(world).values()
    assert config.name == "shop~80~reviews.shop.svc.cluster.local"
    assert (config.spec.gateways, config.spec.hosts) == (["mesh"], ["reviews.shop.svc.cluster.local"])
    assert [match.port for match in config.spec.http[0].match] == [80]
    without_group = "{kind: Service, name: reviews, port: 80}"
    assert made(world_of(route(f"{{parentRefs: [{without_group}], rules: [{{{TO}}}]}}"))) == {}


def test_a_change_of_a_route_is_one_of_its_hosts_alone() -> None:
    one = route(f"{{parentRefs: [{{name: edge}}], hostnames: [a.test], rules: [{{{TO}}}]}}")
    two = route(f"{{parentRefs: [{{name: edge}}], hostnames: [b.test], rules: [{{{TO}}}]}}", "other")
    world = world_of(one, two)
    before = made(world)["b.test"]
    (changed,) = (
        each.item
        for each in read_objects(one.replace("reviews", "ratings").encode(), Origin("files", "a.yaml"), "shop")
        if isinstance(each, ValidObject)
    )
    world.apply([Upsert("files", changed)])
    assert made(world)["b.test"] is before
    assert "ratings" in str(spec_of(made(world)["a.test"]))
