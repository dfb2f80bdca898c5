"""Locality load balancing: priorities and weights as clients at different places see them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.mesh.clusters.locality import Distribution, distributed_weights, matches
from mesh_pilot.model.service import Locality
from tests.support.upstreams import endpoints, outbound
from tests.support.worlds import sidecar, world_of

HOST = "store.shop.svc.cluster.local"

PLACES = ("eu/eu-1/a", "eu/eu-1/b", "eu/eu-2/a", "us/us-1/a", "ap/ap-1/a")


def seen(setting: str, mesh: str = "", outlier: bool = True, **proxy: Any) -> dict[str, tuple[int, int, int]]:
    """Locality -> (priority, weight, endpoints)."""
    listed = ", ".join(
        f"{{address: 10.2.1.{i}, locality: {place}, labels: {{version: v{i % 2}}}}}" for i, place in enumerate(PLACES)
    )
    policy = ", ".join(filter(None, (setting, "outlierDetection: {}" if outlier else "")))
    rule = f"""
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: store, namespace: shop}}
spec: {{host: {HOST}, trafficPolicy: {{{policy}}}}}
"""
    text = f"""
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: store, namespace: shop}}
spec:
  hosts: [{HOST}]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{{number: 80, name: http}}]
  endpoints: [{listed}]
---
{rule if policy else ""}
"""
    assigned = endpoints(world_of(text, mesh=mesh), sidecar(**proxy), f"outbound|80||{HOST}")
    return {
        f"{g.locality.region}/{g.locality.zone}/{g.locality.sub_zone}": (
            g.priority,
            g.load_balancing_weight.value,
            len(g.lb_endpoints),
        )
        for g in assigned.endpoints
    }


def priorities(setting: str = "", **more: Any) -> list[int]:
    found = seen(setting, **more)
    return [found[place][0] for place in PLACES]


def locality_setting(body: str) -> str:
    return f"loadBalancer: {{localityLbSetting: {{{body}}}}}"


def test_the_nearest_come_first() -> None:
    assert priorities(locality="eu/eu-1/a") == [0, 1, 2, 3, 3]
    assert priorities(locality="us/us-1/a") == [1, 1, 1, 0, 1]
    assert priorities(locality="sa/sa-1/a") == [0, 0, 0, 0, 0]


def test_a_region_may_have_another_to_fail_over_to() -> None:
    setting = locality_setting("failover: [{from: eu, to: us}, {from: us, to: ap}]")
    assert priorities(setting, locality="eu/eu-1/a") == [0, 1, 2, 3, 4]
    assert priorities(setting, locality="us/us-1/a") == [2, 2, 2, 0, 1]
    assert priorities(setting, locality="ap/ap-1/a") == [1, 1, 1, 1, 0]


def test_nobody_fails_over_without_outlier_detection_or_a_locality() -> None:
    assert priorities(locality="eu/eu-1/a", outlier=False) == [0] * 5
    assert priorities() == [0] * 5


@pytest.mark.parametrize(
    ("setting", "mesh"),
    [
        (locality_setting("enabled: false"), ""),
        ("", "localityLbSetting: {enabled: false}"),
    ],
)
def test_it_can_be_turned_off(setting: str, mesh: str) -> None:
    assert priorities(setting, mesh=mesh, locality="eu/eu-1/a") == [0] * 5


def test_the_mesh_says_what_holds_where_a_rule_does_not() -> None:
    mesh = "localityLbSetting: {failover: [{from: eu, to: ap}]}"
    assert priorities(mesh=mesh, locality="eu/eu-1/a") == [0, 1, 2, 4, 3]
    setting = locality_setting("failover: [{from: eu, to: us}]")
    assert priorities(setting, mesh=mesh, locality="eu/eu-1/a") == [0, 1, 2, 3, 4]


def test_traffic_is_distributed_by_percent_and_others_get_none() -> None:
    setting = locality_setting('distribute: [{from: "eu/*", to: {"eu/eu-1/*": 70, "eu/eu-2/*": 20, "us/*": 10}}]')
    found = seen(setting, locality="eu/eu-1/a")
    assert found == {
        "eu/eu-1/a": (0, 35, 1),
        "eu/eu-1/b": (0, 35, 1),
        "eu/eu-2/a": (0, 20, 1),
        "us/us-1/a": (0, 10, 1),
        "ap/ap-1/a": (0, 1, 0),
    }
    assert all(v == (0, 1, 1) for v in seen(setting, locality="us/us-1/a").values()), "no entry is from there"
    assert seen(setting, outlier=False, locality="eu/eu-1/a") == found


def test_those_with_the_most_labels_in_order_come_first() -> None:
    setting = locality_setting("failoverPriority: [topology.kubernetes.io/region, version]")
    found = priorities(setting, locality="eu/eu-1/a", labels={"version": "v0", "app": "x"})
    assert found == [0, 1, 0, 2, 2]
    wanted = locality_setting('failoverPriority: ["version=v1"]')
    assert priorities(wanted) == [1, 0, 1, 0, 1]


def test_one_locality_may_be_of_several_priorities() -> None:
    text = """
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: store, namespace: shop}
spec:
  hosts: [store.shop.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http}]
  endpoints:
  - {address: 10.2.1.1, labels: {version: v1}, weight: 3}
  - {address: 10.2.1.2, labels: {version: v2}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: store, namespace: shop}
spec:
  host: store
  trafficPolicy: {outlierDetection: {}, loadBalancer: {localityLbSetting: {failoverPriority: [version]}}}
"""
    assigned = endpoints(world_of(text), sidecar(labels={"version": "v2"}), f"outbound|80||{HOST}")
    found = [(g.priority, g.load_balancing_weight.value) for g in assigned.endpoints]
    assert found == [(0, 1), (1, 3)]


def test_zone_aware_balancing_makes_one_priority_of_a_region() -> None:
    setting = "loadBalancer: {zoneAwareLbSetting: {enabled: true, failover: [{from: eu, to: us}]}}"
    assert priorities(setting, locality="eu/eu-1/a") == [0, 0, 0, 1, 2]
    assert priorities(setting, locality="eu/eu-1/a", outlier=False) == [0, 0, 0, 1, 2]
    off = "loadBalancer: {zoneAwareLbSetting: {enabled: false, failover: [{from: eu, to: us}]}}"
    assert priorities(off, locality="eu/eu-1/a") == [0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("zoneAwareLbSetting: {failoverPriority: ['version=v1']}", [2, 0, 2, 1, 3]),
        ("localityLbSetting: {failoverPriority: ['version=v1']}", [1, 0, 1, 0, 1]),
        ("localityLbSetting: {failoverPriority: ['version=v1'], failover: [{from: eu, to: ap}]}", [2, 0, 3, 1, 4]),
    ],
)
def test_endpoints_that_labels_do_not_tell_apart_are_preferred_by_distance(setting: str, expected: list[int]) -> None:
    assert priorities(f"loadBalancer: {{{setting}}}", locality="eu/eu-1/a") == expected


def test_a_dns_cluster_prefers_as_well() -> None:
    text = """
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: store, namespace: shop}
spec:
  hosts: [store.example.com]
  resolution: DNS
  ports: [{number: 80, name: http}]
  endpoints: [{address: eu.example.com, locality: eu}, {address: us.example.com, locality: us}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: store, namespace: shop}
spec: {host: store.example.com, trafficPolicy: {outlierDetection: {}}}
"""
    cluster = outbound(world_of(text), sidecar(locality="us/us-1"))["outbound|80||store.example.com"]
    found = {g.locality.region: g.priority for g in cluster.load_assignment.endpoints}
    assert found == {"us": 0, "eu": 1}


def test_a_client_that_does_not_say_where_it_is_is_where_the_registry_has_it() -> None:
    assert priorities(ip="10.2.1.3", namespace="shop") == [1, 1, 1, 0, 1]


@pytest.mark.parametrize(
    ("pattern", "covers"),
    [
        ("*", True),
        ("eu", True),
        ("eu/*", True),
        ("eu/eu-1", True),
        ("eu/eu-1/a", True),
        ("eu/*/b", False),
        ("us", False),
    ],
)
def test_patterns_cover_by_part(pattern: str, covers: bool) -> None:
    assert matches(Locality("eu", "eu-1", "a"), pattern) is covers


@given(
    weights=st.lists(st.integers(1, 1000), min_size=1, max_size=6),
    shares=st.lists(st.integers(1, 100), min_size=1, max_size=3),
)
def test_distribution_never_starves_what_it_names(weights: list[int], shares: list[int]) -> None:
    groups = [(Locality(f"r{i % 3}", f"z{i}"), w) for i, w in enumerate(weights)]
    wanted = Distribution(tuple((f"r{i}", share) for i, share in enumerate(shares)))
    for (locality, _), weight in zip(groups, distributed_weights(wanted, groups), strict=True):
        named = any(matches(locality, pattern) for pattern, _ in wanted.percentages)
        assert (weight is not None and weight > 0) == named
