"""Which EnvoyFilters are for a proxy, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from mesh_pilot.mesh.proxy.keys import proxy_facts, proxy_keys
from mesh_pilot.model.proxy import Proxy
from tests.support.patching import API, EDGE, OTHER, SHOP, Shop, envoy_filter, patch
from tests.support.worlds import sidecar, update, world_of

TIMEOUT = "connect_timeout"
API_80 = "outbound|80||api.shop.svc.cluster.local"


def waits(seconds: int, **match: Any) -> dict[str, Any]:
    """A patch that sets a cluster's timeout: the last one to apply wins."""
    return patch("CLUSTER", "MERGE", {TIMEOUT: f"{seconds}s"}, **match)


def chosen(*filters: str, proxy: Proxy = API) -> list[str]:
    """The EnvoyFilters for a proxy, in order."""
    found = proxy_keys(world_of(SHOP + "".join(filters)).view, proxy_facts(proxy)).filters
    return [f"{ref.config.namespace}/{ref.config.name}" for ref in found]


def test_of_one_priority_those_of_the_root_namespace_go_before_those_of_the_proxys_own() -> None:
    root = envoy_filter(waits(3), namespace="istio-system", day=9)
    late = envoy_filter(waits(3), namespace="istio-system", name="late", priority=5)
    assert chosen(envoy_filter(waits(4)), late) == ["shop/f", "istio-system/late"]
    assert chosen(envoy_filter(waits(4)), root) == ["istio-system/f", "shop/f"]
    assert Shop(envoy_filter(waits(4)), root).cluster(API_80).connect_timeout.seconds == 4


def test_the_lower_priority_goes_first_then_the_older_then_the_name() -> None:
    filters = (
        envoy_filter(waits(1), name="c"),
        envoy_filter(waits(1), name="b"),
        envoy_filter(waits(1), name="young", day=2),
        envoy_filter(waits(1), name="late", priority=3),
        envoy_filter(waits(1), name="early", day=3, priority=-1),
    )
    assert chosen(*filters) == ["shop/early", "shop/b", "shop/c", "shop/young", "shop/late"]


def test_those_of_other_namespaces_are_not_for_it() -> None:
    assert chosen(envoy_filter(waits(1), namespace="other")) == []


@pytest.mark.parametrize(
    ("labels", "proxies"),
    [({"app": "api"}, [API]), ({"app": "api", "version": "v1"}, []), ({}, [API, OTHER])],
)
def test_a_workload_selector_picks_proxies_by_all_of_its_labels(labels: dict[str, str], proxies: list[Proxy]) -> None:
    text = envoy_filter(waits(1), workloadSelector={"labels": labels})
    assert [p for p in (API, OTHER) if chosen(text, proxy=p)] == proxies


def test_a_selector_in_the_root_namespace_picks_proxies_of_every_namespace() -> None:
    text = envoy_filter(waits(1), namespace="istio-system", workloadSelector={"labels": {"app": "api"}})
    assert chosen(text, proxy=API) == ["istio-system/f"]
    assert chosen(text, proxy=EDGE) == []


def test_in_the_root_namespace_each_is_applied_once() -> None:
    assert chosen(envoy_filter(waits(1), namespace="istio-system"), proxy=EDGE) == ["istio-system/f"]


@pytest.mark.parametrize(
    ("proxy", "found"),
    [
        ({"proxyVersion": r"^1\.14.*"}, True),
        ({"proxyVersion": "14"}, True),
        ({"proxyVersion": r"^1\.15.*"}, False),
        ({"metadata": {"ZONE": "a"}}, True),
        ({"metadata": {"ZONE": "b"}}, False),
        ({"metadata": {"NOTHING": "a"}}, False),
        ({"proxyVersion": "14", "metadata": {"ZONE": "b"}}, False),
        ({}, True),
    ],
)
def test_a_patch_is_for_proxies_of_a_version_and_metadata(proxy: dict[str, Any], found: bool) -> None:
    assert chosen(envoy_filter(waits(1, proxy=proxy))) == (["shop/f"] if found else [])


def test_a_proxy_that_does_not_say_its_version_is_of_none() -> None:
    assert chosen(envoy_filter(waits(1, proxy={"proxyVersion": ".*"})), proxy=OTHER) == []


def test_the_patches_for_other_proxies_are_left_out_and_the_rest_applies() -> None:
    text = envoy_filter(waits(7), waits(8, proxy={"metadata": {"ZONE": "b"}}))
    shop = Shop(text)
    assert shop.cluster(API_80).connect_timeout.seconds == 7
    other = sidecar("10.1.7.8", name="b", namespace="shop", labels={"app": "api"}, ZONE="b")
    assert Shop(text, proxy=other).cluster(API_80).connect_timeout.seconds == 8


def test_what_targets_a_gateway_is_for_the_proxies_that_are_that_gateway() -> None:
    target = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "public"}
    text = envoy_filter(waits(1), targetRefs=[target])
    label = {"gateway.networking.k8s.io/gateway-name": "public"}
    gateway = sidecar("10.1.7.9", name="g", namespace="shop", labels=label, node_type="router")
    assert chosen(text, proxy=gateway) == ["shop/f"]
    assert chosen(text, proxy=API) == []


def test_what_targets_a_service_is_for_no_proxy() -> None:
    assert chosen(envoy_filter(waits(1), targetRefs=[{"kind": "Service", "name": "api"}])) == []


def test_a_proxyless_client_has_none() -> None:
    client = sidecar("10.1.7.10", name="g", namespace="shop", GENERATOR="grpc")
    assert chosen(envoy_filter(waits(1)), proxy=client) == []


def test_an_edit_of_what_a_patch_does_leaves_the_proxy_as_it_is() -> None:
    shop = Shop(envoy_filter(waits(1)))
    before = shop.resources.target
    calls = shop.world.memo.statistics().calls["proxy_keys"]
    update(shop.world, envoy_filter(waits(2)))
    assert shop.resources.target is before
    assert shop.world.memo.statistics().calls["proxy_keys"] == calls
