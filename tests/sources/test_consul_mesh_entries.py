"""Rate limits, settings of upstreams and localities of Consul's config entries, as Istio's objects and ours."""

from __future__ import annotations

from typing import Any

import pytest

from mesh_pilot.consul.mesh import ConsulMesh, MeshSettings, ServiceFacts
from mesh_pilot.consul.mesh.values import ClientPort, IstioObject

SHOP = ServiceFacts("shop", ports=(8080, 9090), client_ports=(ClientPort(80, "http"), ClientPort(90, "grpc")))


class Converted:
    """The objects by kind and name, and the problems by location, of all that a mesh has told so far."""

    def __init__(self, **services: ServiceFacts) -> None:
        self.mesh = ConsulMesh(MeshSettings(datacenter="dc1"))
        for name, facts in (services or {"shop": SHOP}).items():
            self.mesh.put_service(name, facts)
        self._objects: dict[str, tuple[IstioObject, ...]] = {}
        self._problems: dict[str, list[str]] = {}

    def put(self, kind: str, name: str, entry: dict[str, Any] | None) -> Converted:
        self.mesh.put_entry(kind, name, entry)
        for part in self.mesh.flush():
            for change in part:
                self._objects[change.location] = change.objects
                self._problems[change.location] = [str(problem) for problem in change.problems]
        return self

    def specs(self, kind: str) -> dict[str, Any]:
        return {made.name: made.spec for each in self._objects.values() for made in each if made.kind == kind}

    @property
    def problems(self) -> list[str]:
        for each in self._objects.values():
            for made in each:
                made.config("consul")  # what is made is valid
        return [problem for each in self._problems.values() for problem in each]


LIMITS = {"RequestsPerSecond": 100, "RequestsMaxBurst": 200}


def limited(**instance: Any) -> dict[str, Any]:
    return {"RateLimits": {"InstanceLevel": instance}}


def test_rate_limits_are_a_local_rate_limit_for_the_ports_of_the_service() -> None:
    found = Converted().put("service-defaults", "shop", limited(**LIMITS))
    rate = {"count": 100, "burst": 200}
    assert found.specs("LocalRateLimit") == {
        "consul-shop": {
            "selector": {"matchLabels": {"service.mesh-pilot.io/shop": "true"}},
            "http": {"limits": [{"port": 8080, "rate": rate}, {"port": 9090, "rate": rate}]},
        }
    }
    assert found.problems == []
    assert found.put("service-defaults", "shop", None).specs("LocalRateLimit") == {}


def test_a_route_takes_the_place_of_the_limit_of_the_service() -> None:
    routes = [
        {"PathExact": "/foo", "RequestsPerSecond": 10, "RequestsMaxBurst": 20},
        {"PathPrefix": "/admin", "RequestsPerSecond": 3},
        {"path_regex": "/a[0-9]+", "requests_per_second": 4},
    ]
    found = Converted(shop=ServiceFacts()).put("service-defaults", "shop", limited(**LIMITS, Routes=routes))
    assert found.specs("LocalRateLimit")["consul-shop"]["http"]["limits"] == [
        {"match": {"uri": {"exact": "/foo"}}, "rate": {"count": 10, "burst": 20}},
        {"match": {"uri": {"prefix": "/admin"}}, "rate": {"count": 3}},
        {"match": {"uri": {"regex": "/a[0-9]+"}}, "rate": {"count": 4}},
        {"otherwise": True, "rate": {"count": 100, "burst": 200}},
    ]
    assert found.problems == []


@pytest.mark.parametrize(
    ("instance", "count", "problem"),
    [
        (
            {"RequestsMaxBurst": 5},
            0,
            "RateLimits.InstanceLevel.RequestsMaxBurst: needs RequestsPerSecond; it is ignored",
        ),
        (
            {"RequestsPerSecond": 5, "RequestsMaxBurst": 2},
            1,
            "RateLimits.InstanceLevel.RequestsMaxBurst: 2 is less than RequestsPerSecond, 5; it is ignored",
        ),
        (
            {"RequestsPerSecond": -1},
            0,
            "RateLimits.InstanceLevel.RequestsPerSecond: expected a whole number that is not negative, got -1;"
            " it is ignored",
        ),
        (
            {"RequestsPerSecond": 5, "Routes": [{"RequestsPerSecond": 1}]},
            1,
            "RateLimits.InstanceLevel.Routes[0]: names one of PathExact, PathPrefix and PathRegex; it is left out",
        ),
        (
            {"Routes": [{"PathExact": "/a", "PathPrefix": "/b", "RequestsPerSecond": 1}]},
            0,
            "RateLimits.InstanceLevel.Routes[0]: names one of PathExact, PathPrefix and PathRegex; it is left out",
        ),
        (
            {"Routes": [{"PathExact": "/a"}]},
            0,
            "RateLimits.InstanceLevel.Routes[0].RequestsPerSecond: is not said; the route is left out",
        ),
    ],
)
def test_rates_that_cannot_be_are_reported(instance: dict[str, Any], count: int, problem: str) -> None:
    found = Converted(shop=ServiceFacts()).put("service-defaults", "shop", limited(**instance))
    made = found.specs("LocalRateLimit")
    assert sum(len(spec["http"]["limits"]) for spec in made.values()) == count
    assert found.problems == [problem]


def test_limits_of_a_service_without_http_have_no_effect_and_say_so() -> None:
    found = Converted(db=ServiceFacts(has_http=False)).put("service-defaults", "db", limited(**LIMITS))
    assert found.problems == ["RateLimits: no port of the service speaks HTTP: its connections are not limited"]


def test_defaults_of_upstreams_are_for_all_that_the_proxies_of_the_service_call() -> None:
    defaults = {"ConnectTimeoutMs": 250, "PassiveHealthCheck": {"MaxFailures": 3, "EnforcingConsecutive5xx": 100}}
    overrides = [{"Name": "db", "Limits": {"MaxConnections": 7}}]
    entry = {"UpstreamConfig": {"Defaults": defaults, "Overrides": overrides}}
    found = Converted().put("service-defaults", "shop", entry)
    general = {
        "connectionPool": {"tcp": {"connectTimeout": "0.25s"}},
        "outlierDetection": {"consecutive5xxErrors": 3},
    }
    by_host = {spec["host"]: spec for spec in found.specs("DestinationRule").values()}
    assert by_host["*.service.consul"] == {
        "host": "*.service.consul",
        "workloadSelector": {"matchLabels": {"service.mesh-pilot.io/shop": "true"}},
        "trafficPolicy": general,
    }
    pool = {"tcp": {"connectTimeout": "0.25s", "maxConnections": 7}}
    assert by_host["db.service.consul"]["trafficPolicy"] == {**general, "connectionPool": pool}
    assert found.problems == []


def test_upstreams_with_a_rule_of_their_own_lack_the_defaults_and_that_is_told() -> None:
    entry = {"UpstreamConfig": {"Defaults": {"ConnectTimeoutMs": 250}, "Overrides": [{"Name": "named"}]}}
    found = Converted().put("service-defaults", "shop", entry)
    assert found.problems == []
    for name in ("named", "other"):
        found.put("service-resolver", name, {"ConnectTimeout": "1s"})
    reason = "these settings are not for upstreams with their own rules (other): name those in Overrides"
    assert found.problems == [f"UpstreamConfig.Defaults: {reason}"]
    assert found.put("service-resolver", "other", None).problems == []
    found.put("proxy-defaults", "global", {"PrioritizeByLocality": {"Mode": "failover"}})
    every = "all services, as proxy-defaults say PrioritizeByLocality"
    assert found.problems == [f"UpstreamConfig.Defaults: {reason.replace('other', every)}"]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("Protocol", "grpc", "a service has one protocol for all its clients: set it in the upstream's own"),
        ("BalanceOutboundConnections", "exact_balance", "it is node metadata here: OUTBOUND_LISTENER_EXACT_BALANCE"),
        ("MeshGateway", {"Mode": "local"}, "gateways between networks are those of meshNetworks"),
        ("PassiveHealthCheck", {"EnforcingConsecutive5xx": 50}, "Istio ejects every time"),
    ],
)
def test_a_field_of_an_upstream_without_effect_is_reported(field: str, value: object, reason: str) -> None:
    entry = {"UpstreamConfig": {"Overrides": [{"Name": "db", field: value}]}}
    (problem,) = Converted().put("service-defaults", "shop", entry).problems
    assert problem.startswith(f"UpstreamConfig.Overrides[0].{field}") and reason in problem


FAILOVER = {"PrioritizeByLocality": {"Mode": "failover"}}
NEAREST = {
    "loadBalancer": {"localityLbSetting": {"enabled": True}},
    "outlierDetection": {"consecutive5xxErrors": 0, "consecutiveGatewayErrors": 0},
}


def policies(found: Converted) -> dict[str, Any]:
    return {spec["host"]: spec["trafficPolicy"] for spec in found.specs("DestinationRule").values()}


def test_a_resolver_prefers_the_localities_near_a_client() -> None:
    found = Converted().put("service-resolver", "shop", FAILOVER)
    assert policies(found) == {"shop.service.consul": NEAREST}
    found.put("service-resolver", "shop", {"PrioritizeByLocality": {"Mode": "none"}})
    off = {"loadBalancer": {"localityLbSetting": {"enabled": False}}}
    assert policies(found) == {"shop.service.consul": off}
    found.put("service-resolver", "shop", {"PrioritizeByLocality": {"Mode": "nearest"}})
    assert policies(found) == {}
    assert found.problems == [
        "PrioritizeByLocality.Mode: 'nearest' is not a known mode: none or failover; it is ignored"
    ]


def test_proxy_defaults_do_so_for_every_service_and_resolvers_win() -> None:
    found = Converted(shop=SHOP, db=ServiceFacts()).put("proxy-defaults", "global", FAILOVER)
    assert policies(found) == {"shop.service.consul": NEAREST, "db.service.consul": NEAREST}
    found.mesh.put_service("new", ServiceFacts())
    found.put("service-resolver", "db", {"PrioritizeByLocality": {"Mode": "none"}})
    assert policies(found)["new.service.consul"] == NEAREST
    assert policies(found)["db.service.consul"] == {"loadBalancer": {"localityLbSetting": {"enabled": False}}}
    before = found.mesh.conversions
    found.put("service-resolver", "db", None)
    assert found.mesh.conversions - before == 1
    assert policies(found.put("proxy-defaults", "global", None)) == {}
