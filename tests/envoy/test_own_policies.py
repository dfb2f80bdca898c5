"""Our own kinds: what they touch, what they cost, and what they are made into."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.extensions.filters.http.ratelimit.v3.rate_limit_pb2 import RateLimit
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
)
from google.protobuf.json_format import MessageToDict

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.envoy.catalog.diagnostics import object_problems
from mesh_pilot.envoy.filters.global_rate_limit import HTTP_RATE_LIMIT
from mesh_pilot.envoy.listeners.hcm import HTTP_CONNECTION_MANAGER
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.proxy import CLUSTERS, Proxy
from mesh_pilot.model.resource import CLUSTER, LISTENER, Resource
from mesh_pilot.world import World
from tests.support.manifests import manifest
from tests.support.routing import config, service
from tests.support.worlds import sidecar, update, world_of

WEB = {"app": "web"}
HERE = sidecar(namespace="shop", labels=WEB, ip="127.0.0.1")


class Sent:
    """What a proxy is sent, and what it costs to bring it up to date."""

    def __init__(self, world: World, proxy: Proxy | None = None) -> None:
        self.world = world
        self._resources = WorldCatalog(world).open(proxy or sidecar(namespace="shop", labels=WEB))
        self.look()

    def look(self) -> None:
        for type_url in (CLUSTER, LISTENER):
            self.all(type_url)

    def all(self, type_url: str) -> dict[str, Resource]:
        held = self._resources.set(type_url)
        assert held is not None
        found = {name: held.get(name) for name in held.snapshot().entries}
        return {name: resource for name, resource in found.items() if resource is not None}

    def cluster(self, host: str, port: int = 80, subset: str = "") -> Cluster:
        return Cluster.FromString(self.all(CLUSTER)[f"outbound|{port}|{subset}|{host}.shop.svc.cluster.local"].body)

    def checked(self, host: str, **more: Any) -> bool:
        return len(self.cluster(host, **more).health_checks) == 1

    def cost(self, text: str) -> dict[str, int]:
        """Calls by translator of a change."""
        before = self.world.memo.statistics().calls
        update(self.world, text)
        self.look()
        after = self.world.memo.statistics().calls
        return {name: n - before.get(name, 0) for name, n in after.items() if n != before.get(name, 0)}


def check(name: str, host: str, spec: str = "", *, namespace: str = "shop", how: str = "http: {path: /}") -> str:
    return manifest("HealthCheck", name, f"{{host: {host}, {how}, {spec}}}", namespace=namespace)


def limit(name: str, spec: str, *, namespace: str = "shop") -> str:
    return manifest("LocalRateLimit", name, spec, namespace=namespace)


SERVED = service("web", ports="80 http HTTP, 81 http-b HTTP")
LIMITER = service("limiter", namespace="infra", ports="8081 grpc GRPC, 80 http HTTP")
SERVER = "service: {host: limiter.infra.svc.cluster.local, port: 8081}"
ENTRIES = "descriptors: [{entries: [{header: x-user}]}]"


def shared(name: str, spec: str = "", *, server: str = SERVER, what: str = ENTRIES, namespace: str = "shop") -> str:
    return manifest("GlobalRateLimit", name, f"{{{server}, domain: d, {what}, {spec}}}", namespace=namespace)


def asks(sent: Sent) -> dict[int, list[dict[str, Any]]]:
    """The configuration of the filters that ask a server, by the port of the connections."""
    listener = Listener.FromString(sent.all(LISTENER)["virtualInbound"].body)
    found: dict[int, list[dict[str, Any]]] = {}
    for chain in listener.filter_chains:
        for http in (f for f in chain.filters if f.name == HTTP_CONNECTION_MANAGER):
            manager = HttpConnectionManager.FromString(http.typed_config.value)
            filters = [f for f in manager.http_filters if f.name.startswith(HTTP_RATE_LIMIT)]
            config = [MessageToDict(RateLimit.FromString(f.typed_config.value)) for f in filters]
            found[chain.filter_chain_match.destination_port.value] = config
    return found


def test_what_a_global_rate_limit_says_is_what_envoy_is_told() -> None:
    what = """
    timeout: 0.1s, failureModeDeny: true, status: 503, responseHeaders: {x-b: "2", x-a: "1"}, rateLimitHeaders: true,
    enforcedPercent: 50, descriptors: [
      {match: {uri: {exact: /a}}, entries: [{header: X-User}, {key: plan, value: "50%"}, {key: two, value: b}]},
      {entries: [{key: who, claim: 'realm["x]'}, {path: true}, {sourcePrincipal: true}, {remoteAddress: true}]}]
    """
    sent = Sent(world_of(SERVED + LIMITER + shared("web", what=what)), HERE)
    (made,) = asks(sent)[80]
    first, second = (each["actions"] for each in made.pop("rateLimits"))
    assert made == {
        "domain": "d", "statPrefix": "shop.web", "timeout": "0.100s", "failureModeDeny": True,
        "rateLimitedAsResourceExhausted": True, "enableXRatelimitHeaders": "DRAFT_VERSION_03",
        "rateLimitedStatus": {"code": "ServiceUnavailable"},
        "rateLimitService": {
            "transportApiVersion": "V3",
            "grpcService": {"envoyGrpc": {
                "clusterName": "outbound|8081||limiter.infra.svc.cluster.local",
                "authority": "limiter.infra.svc.cluster.local",
            }},
        },
        "responseHeadersToAdd": [
            {"header": {"key": k, "value": v}, "appendAction": "OVERWRITE_IF_EXISTS_OR_ADD"}
            for k, v in (("x-a", "1"), ("x-b", "2"))
        ],
        **{
            name: {"defaultValue": {"numerator": 500000, "denominator": "MILLION"}, "runtimeKey": f"mesh_pilot.{key}"}
            for name, key in (
                ("filterEnforced", "global_rate_limit.enforced"),
                ("failureModeDenyPercent", "global_rate_limit.failure_mode_deny"),
            )
        },
    }  # fmt: skip
    match = first[1].pop("headerValueMatch")
    assert (match["descriptorKey"], match["descriptorValue"]) == ("plan", "50%")
    assert match["headers"] == [{"name": ":path", "stringMatch": {"safeRegex": {"regex": r"/a(?:\?.*)?"}}}]
    assert first == [
        {"requestHeaders": {"headerName": "X-User", "descriptorKey": "x-user"}},
        {},
        {"genericKey": {"descriptorKey": "two", "descriptorValue": "b"}},
    ]
    expressions = [action["extension"]["typedConfig"] for action in second[:3]]
    assert [each["descriptorKey"] for each in expressions] == ["who", "path", "source_principal"]
    claim = r'metadata.filter_metadata["envoy.filters.http.jwt_authn"]["payload"]["realm"]["\"x"]'
    assert expressions[0]["text"] == f'{claim} < {claim} ? "" : {claim}'
    assert second[3] == {"remoteAddress": {}}
    default = Sent(world_of(SERVED + LIMITER + shared("web")), HERE)
    assert asks(default)[80][0].keys() == {
        "domain", "statPrefix", "rateLimitedAsResourceExhausted", "rateLimitService", "rateLimits",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        ("{host: gone.infra, port: 8081}", "no service gone.infra is known"),
        ("{host: limiter.infra.svc.cluster.local, port: 1}", "has no port 1; its ports are 8081, 80"),
        ("{host: limiter.infra.svc.cluster.local, port: 80}", "is HTTP: calls of a server need GRPC or HTTP2"),
    ],
)
def test_a_server_that_cannot_be_asked_is_one_that_does_not_answer(server: str, reason: str) -> None:
    world = world_of(SERVED + LIMITER + shared("web", server=f"service: {server}"))
    (problem,) = object_problems(world.view, ConfigKey("GlobalRateLimit", "shop", "web"))
    assert reason in problem.reason and problem.reason.endswith(": nothing is limited")
    (made,) = asks(Sent(world, HERE))[80]
    cluster = made["rateLimitService"]["grpcService"]["envoyGrpc"]["clusterName"]
    assert cluster == ("outbound|80||limiter.infra.svc.cluster.local" if "HTTP" in reason else "BlackHoleCluster")
    update(world, shared("web", "failureModeDeny: true", server=f"service: {server}"))
    (problem,) = object_problems(world.view, ConfigKey("GlobalRateLimit", "shop", "web"))
    assert problem.reason.endswith(": what it limits is refused")
    update(world, shared("web"))
    assert object_problems(world.view, ConfigKey("GlobalRateLimit", "shop", "web")) == ()


def test_the_server_has_a_cluster_whatever_a_sidecar_imports() -> None:
    narrow = config("Sidecar", "default", "{egress: [{hosts: ['./*']}]}")
    world = world_of(SERVED + LIMITER + narrow)
    sent = Sent(world, HERE)
    name = "outbound|8081||limiter.infra.svc.cluster.local"
    assert name not in sent.all(CLUSTER)
    update(world, SERVED + LIMITER + narrow + shared("web"))
    assert name in sent.all(CLUSTER)
    world = world_of(SERVED + LIMITER)
    on_demand = attrs.evolve(HERE, incremental=True, metadata={**HERE.metadata, CLUSTERS: "on-demand"})
    sent = Sent(world, on_demand)
    assert name not in sent.all(CLUSTER), "no route of this proxy has led there"
    update(world, SERVED + LIMITER + shared("web"))
    assert name in sent.all(CLUSTER)


def test_a_descriptor_of_a_port_is_in_its_chains_alone_and_no_server_is_asked_about_calls_of_one() -> None:
    port = "descriptors: [{port: 81, entries: [{path: true}]}]"
    world = world_of(SERVED + LIMITER + shared("web", what=port))
    at = {port: len(made) for port, made in asks(Sent(world, HERE)).items()}
    assert (at[80], at[81]) == (0, 1)
    mesh = SERVED + LIMITER + shared("mesh", namespace="istio-system")
    limiter = sidecar(namespace="infra", ip="127.0.0.1")
    at = {port: len(made) for port, made in asks(Sent(world_of(mesh), limiter)).items()}
    assert (at[80], at[8081]) == (1, 0), "it would ask itself about each of its answers"


def test_an_edit_of_a_global_rate_limit_costs_the_listeners_that_it_is_for() -> None:
    selector = "selector: {matchLabels: {app: web}}"
    world = world_of(SERVED + LIMITER + shared("web", selector))
    sent = Sent(world, HERE)
    other = Sent(world, sidecar(namespace="shop", labels={"app": "other"}, ip="127.0.0.2"))
    before, of_other = sent.all(LISTENER), other.all(LISTENER)
    cost = sent.cost(shared("web", f"{selector}, timeout: 3s"))
    after = sent.all(LISTENER)
    assert [name for name in after if after[name] != before[name]] == ["virtualInbound"]
    assert other.all(LISTENER) == of_other
    assert after["virtualInbound"].configs[-1] == ConfigKey("GlobalRateLimit", "shop", "web")
    assert "_config" in cost and "service_clusters" not in cost and "outbound_listener" not in cost


def test_a_health_check_is_for_its_host_and_the_namespaces_that_it_is_exported_to() -> None:
    world = world_of(
        service("a", ports="80 http HTTP, 81 http-b HTTP")
        + service("b")
        + config("DestinationRule", "a", "{host: a, subsets: [{name: v1, labels: {v: '1'}}]}")
        + check("own", "a", "ports: [81], interval: 1s", namespace="shop")
        + check("b", "b.shop.svc.cluster.local", "exportTo: [other]")
        + check("root", "a.shop.svc.cluster.local", "interval: 3s", namespace="istio-system")
    )
    own, other = Sent(world), Sent(world, sidecar(namespace="other"))
    assert [own.checked("a"), own.checked("a", subset="v1"), own.checked("a", port=81), own.checked("b")] == [
        True, True, True, False,
    ]  # fmt: skip
    assert (own.cluster("a", port=81).health_checks[0].interval.seconds, own.checked("b")) == (1, False)
    assert own.cluster("a").health_checks[0].interval.seconds == 3, "the root namespace's, for the other ports"
    assert (other.checked("a"), other.checked("b")) == (True, True)
    update(world, check("clients", "a.shop.svc.cluster.local", "interval: 5s", namespace="other"))
    assert other.cluster("a").health_checks[0].interval.seconds == 5, "the client's namespace comes first"
    assert own.cluster("a").health_checks[0].interval.seconds == 3


def test_what_a_health_check_says_is_what_envoy_is_told() -> None:
    spec = """interval: 2s, intervalJitter: 0.5s, timeout: 0.3s, healthyThreshold: 1, unhealthyThreshold: 5,
    noTrafficInterval: 20s, minHealthPercent: 30, logEvents: true, alwaysLogFailures: true"""
    how = "http: {path: /h, host: x.test, method: HEAD, headers: {b: '2', a: '1'}, expectedStatuses: ['200', 300-302]}"
    cluster = Sent(world_of(service("a") + check("a", "a", spec, how=how))).cluster("a")
    (made,) = MessageToDict(cluster)["healthChecks"]
    sink = made.pop("eventLogger")[0]
    assert sink["typedConfig"]["eventLogPath"] == "/dev/stdout"
    assert made == {
        "timeout": "0.300s", "interval": "2s", "intervalJitter": "0.500s", "unhealthyThreshold": 5,
        "healthyThreshold": 1, "noTrafficInterval": "20s", "alwaysLogHealthCheckFailures": True,
        "httpHealthCheck": {
            "host": "x.test", "path": "/h", "method": "HEAD",
            "requestHeadersToAdd": [
                {"header": {"key": k, "value": v}, "appendAction": "OVERWRITE_IF_EXISTS_OR_ADD"}
                for k, v in (("a", "1"), ("b", "2"))
            ],
            "expectedStatuses": [{"start": "200", "end": "201"}, {"start": "300", "end": "303"}],
        },
    }  # fmt: skip
    assert cluster.ignore_health_on_host_removal and cluster.common_lb_config.ignore_new_hosts_until_first_hc
    assert cluster.common_lb_config.healthy_panic_threshold.value == 30
    default = MessageToDict(Sent(world_of(service("a") + check("a", "a"))).cluster("a"))["healthChecks"]
    assert default == [
        {
            "timeout": "1s", "interval": "10s", "unhealthyThreshold": 3, "healthyThreshold": 2,
            "httpHealthCheck": {"host": "a.shop.svc.cluster.local", "path": "/"},
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("resolution", "checked"), [("STATIC", True), ("DNS", True), ("DNS_ROUND_ROBIN", True), ("NONE", False)]
)
def test_endpoints_that_are_known_beforehand_are_checked(resolution: str, checked: bool) -> None:
    text = service("a").replace("STATIC", resolution)
    text = text.replace("endpoints: [{address: 127.0.0.1}]", "") if resolution == "NONE" else text
    assert Sent(world_of(text + check("a", "a"))).checked("a") is checked


def test_an_edit_of_a_health_check_costs_its_clusters_in_a_mesh_of_any_size() -> None:
    costs = []
    for size in (50, 500):
        sent = Sent(world_of("".join(service(f"s{n}") for n in range(size)) + check("s7", "s7")))
        before = sent.all(CLUSTER)
        costs.append(sent.cost(check("s7", "s7", "timeout: 3s")))
        after = sent.all(CLUSTER)
        assert [n for n in after if after[n] != before[n]] == ["outbound|80||s7.shop.svc.cluster.local"]
        assert sent.all(CLUSTER)[n := "outbound|80||s7.shop.svc.cluster.local"].configs[-1] == ConfigKey(
            "HealthCheck", "shop", "s7"
        ), n
        first = sent.cost(check("s8", "s8"))
        assert (first["cluster"], first["service_clusters"]) == (1, 1), "a new check costs one shard's plan"
    assert costs[0] == costs[1]
    assert (costs[0]["cluster"], costs[0].get("service_clusters", 0)) == (1, 0)


def test_an_edit_of_a_limit_costs_the_listeners_that_it_is_for() -> None:
    served = service("web").replace("endpoints: [{address: 127.0.0.1}]", "endpoints: [{address: 10.0.0.1}]")
    limited = "{selector: {matchLabels: {app: web}}, http: {limits: [{rate: {count: %d}}]}}"
    world = world_of(served + limit("web", limited % 1) + limit("other", limited % 1, namespace="other"))
    sent = Sent(world, sidecar(namespace="shop", labels=WEB, ip="10.0.0.1"))
    before = sent.all(LISTENER)
    cost = sent.cost(limit("web", limited % 2))
    after = sent.all(LISTENER)
    assert [name for name in after if after[name] != before[name]] == ["virtualInbound"]
    assert after["virtualInbound"].configs[-1] == ConfigKey("LocalRateLimit", "shop", "web")
    assert "_http_config" in cost and "service_clusters" not in cost and "outbound_listener" not in cost
    cost = sent.cost(limit("other", limited % 2, namespace="other"))
    assert not {"virtual_inbound", "_encoded_common", "_http_config"} & cost.keys(), cost


def test_a_mesh_without_these_kinds_looks_for_none() -> None:
    calls = world_of(service("a")).memo.statistics().calls
    sent = Sent(world_of(service("a")), sidecar(namespace="shop", labels=WEB))
    found = {name for name in sent.world.memo.statistics().calls if name not in calls}
    ours = {"health_check_for", "_metas_for", "_http_config", "_network_filters", "_named_ports", "_config"}
    assert "cluster_plans" in found and not ours & found


def test_limits_of_a_port_are_in_its_chains_alone() -> None:
    served = service("web", ports="80 http HTTP, 81 http-b HTTP")
    both = "http: {limits: [{port: 81, rate: {count: 1}}]}, "
    both += "connections: [{rate: {count: 5}}, {port: 80, rate: {count: 6}}]"
    world = world_of(served + limit("web", f"{{{both}}}"))
    sent = Sent(world, HERE)
    listener = Listener.FromString(sent.all(LISTENER)["virtualInbound"].body)
    found: dict[int, set[tuple[str, ...]]] = {}
    for chain in listener.filter_chains:
        names = tuple(f.name for f in chain.filters if "local_ratelimit" in f.name)
        if "blackhole" not in chain.name:
            found.setdefault(chain.filter_chain_match.destination_port.value, set()).add(names)
    name = "envoy.filters.network.local_ratelimit/shop/web"
    assert found == {0: {(name,)}, 80: {(name, name)}, 81: {(name,)}}
    with_http = {
        chain.filter_chain_match.destination_port.value
        for chain in listener.filter_chains
        if b"filters.http.local_ratelimit/shop/web" in chain.SerializeToString()
    }
    assert with_http == {81}
