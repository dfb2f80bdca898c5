"""LocalRateLimits and HealthChecks: what they touch, what they cost, and what they are made into."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.listener.v3.listener_pb2 import Listener
from google.protobuf.json_format import MessageToDict

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import CLUSTER, LISTENER, Resource
from mesh_pilot.world import World
from tests.support.manifests import manifest
from tests.support.routing import config, service
from tests.support.worlds import sidecar, update, world_of

WEB = {"app": "web"}


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
    ours = {"health_check_for", "_metas_for", "_http_config", "_network_filters", "_named_ports"}
    assert "cluster_plans" in found and not ours & found


def test_limits_of_a_port_are_in_its_chains_alone() -> None:
    served = service("web", ports="80 http HTTP, 81 http-b HTTP")
    both = "http: {limits: [{port: 81, rate: {count: 1}}]}, "
    both += "connections: [{rate: {count: 5}}, {port: 80, rate: {count: 6}}]"
    world = world_of(served + limit("web", f"{{{both}}}"))
    sent = Sent(world, sidecar(namespace="shop", labels=WEB, ip="127.0.0.1"))
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
