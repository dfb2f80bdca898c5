"""DestinationRules: which one a client follows, and what it says for a port and a subset."""

from __future__ import annotations

from datetime import timedelta
from itertools import permutations

import pytest

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.engine import Watch, derived
from mesh_pilot.mesh.clusters.destination_rules import (
    Policy,
    client_policy,
    destination_rule_ref,
    merged_rule,
    subset_labels,
    subset_names,
    traffic_policy,
)
from mesh_pilot.mesh.selection.workloads import Labels
from mesh_pilot.model.events import Delete, item_key
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.world import View, World
from tests.support.worlds import configs, update, world_of

STORE = ServiceKey("store.shop.svc.cluster.local", "shop")
ODD = ServiceKey("*.api.example.com", "shop")


def policy_for(
    view: View, namespace: str, labels: Labels | None, service: ServiceKey, port: int, subset: str = ""
) -> Policy:
    """``client_policy`` of the rule that a client follows for a service."""
    return client_policy(view, destination_rule_ref(view, namespace, labels, service), port, subset)


def destination_rule(
    name: str, namespace: str, host: str, seconds: int = 0, *, created: int = 1, more: str = ""
) -> str:
    timeout = f"trafficPolicy: {{connectionPool: {{tcp: {{connectTimeout: {seconds}s}}}}}}" if seconds else ""
    return f"""
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: {name}, namespace: {namespace}, creationTimestamp: "2024-01-{created:02}T00:00:00Z"}}
spec:
  host: "{host}"
  {timeout}
  {more}
---
"""


def followed(world: World, namespace: str, service: ServiceKey = STORE, **labels: str) -> list[str]:
    """``namespace/name`` of the rules that a client follows."""
    ref = destination_rule_ref(world.view, namespace, frozenset(labels.items()), service)
    return [f"{k.namespace}/{k.name}" for k in ref]


def timeout(world: World, namespace: str, port: int = 80, subset: str = "") -> float | None:
    found = policy_for(world.view, namespace, frozenset(), STORE, port, subset).connection_pool
    if found is None or found.tcp is None or found.tcp.connect_timeout is None:
        return None
    return found.tcp.connect_timeout.total_seconds()


def test_the_clients_namespace_goes_before_the_services_and_that_before_the_root() -> None:
    world = world_of(
        destination_rule("a", "client", STORE.host)
        + destination_rule("a", "shop", STORE.host)
        + destination_rule("a", "istio-system", STORE.host)
    )
    assert followed(world, "client") == ["client/a"]
    assert followed(world, "other") == ["shop/a"]
    world = world_of(destination_rule("a", "istio-system", "*"))
    assert followed(world, "other") == ["istio-system/a"]


def test_a_client_in_the_root_namespace_follows_the_services_rule_before_the_roots_catch_all() -> None:
    world = world_of(destination_rule("all", "istio-system", "*") + destination_rule("a", "shop", "store"))
    assert followed(world, "istio-system") == ["shop/a"]
    private = destination_rule("own", "istio-system", "*.local", more='exportTo: ["."]')
    update(world, private)
    assert followed(world, "istio-system") == ["istio-system/own"]


def test_in_a_namespace_the_most_specific_host_wins_whatever_its_age() -> None:
    world = world_of(
        destination_rule("all", "client", "*", created=1)
        + destination_rule("wide", "client", "*.shop.svc.cluster.local", created=2)
        + destination_rule("exact", "client", STORE.host, created=3)
    )
    assert followed(world, "client") == ["client/exact"]
    assert followed(world, "client", ServiceKey("x.shop.svc.cluster.local", "shop")) == ["client/wide"]
    assert followed(world, "client", ServiceKey("x.example.com", "shop")) == ["client/all"]


def test_a_wildcard_service_follows_rules_for_its_host_and_wider_ones_but_not_narrower_ones() -> None:
    world = world_of(
        destination_rule("one", "shop", "eu.api.example.com") + destination_rule("wide", "shop", "*.example.com")
    )
    assert followed(world, "client", ODD) == ["shop/wide"]
    update(world, destination_rule("same", "shop", "*.api.example.com"))
    assert followed(world, "client", ODD) == ["shop/same"]


def test_a_rule_that_is_not_exported_is_for_its_own_namespace() -> None:
    world = world_of(destination_rule("a", "shop", "store", more='exportTo: ["."]'))
    assert followed(world, "shop") == ["shop/a"]
    assert followed(world, "client") == []


def test_a_rule_exported_by_name_is_for_those_namespaces() -> None:
    world = world_of(destination_rule("a", "shop", "store", more="exportTo: [client]"))
    assert followed(world, "client") == ["shop/a"]
    assert followed(world, "other") == []
    assert followed(world, "shop") == [], "Istio asks the own namespace only for rules that it may see"
    world = world_of(destination_rule("a", "shop", "store", more="exportTo: [shop, client]"))
    assert [followed(world, each) for each in ("shop", "client", "other")] == [["shop/a"], ["shop/a"], []]


def test_the_mesh_default_export_holds_where_a_rule_says_nothing() -> None:
    world = world_of(destination_rule("a", "shop", "store"), mesh='defaultDestinationRuleExportTo: ["."]')
    assert followed(world, "shop") == ["shop/a"]
    assert followed(world, "client") == []


def test_rules_for_one_host_merge_the_oldest_decides_and_younger_ones_add_subsets() -> None:
    world = world_of(
        destination_rule("young", "shop", "store", 2, created=2, more="subsets: [{name: v1}, {name: v2}]")
        + destination_rule("old", "shop", STORE.host, 1, created=1, more="subsets: [{name: v1, labels: {v: one}}]")
    )
    assert followed(world, "client") == ["shop/old", "shop/young"]
    ref = destination_rule_ref(world.view, "client", frozenset(), STORE)
    assert subset_names(world.view, ref) == ("v1", "v2")
    assert subset_labels(world.view, ref, "v1") == {("v", "one")}
    assert subset_labels(world.view, ref, "v2") == frozenset()
    assert subset_labels(world.view, ref, "v3") is None
    assert timeout(world, "client") == 1


def test_a_younger_rule_lends_its_policy_where_the_older_has_none() -> None:
    world = world_of(
        destination_rule("old", "shop", "store", created=1, more="subsets: [{name: v1}]")
        + destination_rule("young", "shop", "store", 2, created=2)
    )
    assert timeout(world, "client") == 2


def test_rules_that_are_exported_to_others_are_not_merged() -> None:
    world = world_of(
        destination_rule("old", "shop", "store", 1, created=1, more="exportTo: [one]\n  subsets: [{name: v1}]")
        + destination_rule("young", "shop", "store", 2, created=2, more="exportTo: [two]\n  subsets: [{name: v2}]")
    )
    seen = [followed(world, client) for client in ("one", "two", "far")]
    assert seen == [["shop/old"], ["shop/young"], []]


def test_a_rule_that_is_exported_to_more_namespaces_adds_to_the_older_one() -> None:
    world = world_of(
        destination_rule("old", "shop", "store", 1, created=1, more="exportTo: [one]\n  subsets: [{name: v1}]")
        + destination_rule("young", "shop", "store", 2, created=2, more="exportTo: [one, two]\n  subsets: [{name: v2}]")
    )
    assert followed(world, "one") == ["shop/old", "shop/young"]
    assert followed(world, "two") == ["shop/young"]


@pytest.mark.parametrize("ages", list(permutations((1, 2, 3))))
def test_private_rules_of_several_namespaces_are_for_these_alone_and_hide_the_public_one(ages: tuple[int, ...]) -> None:
    """As in Istio: rules of different namespaces are never merged, whatever their age."""
    own, other, public = ages
    world = world_of(
        destination_rule("own", "one", STORE.host, 1, created=own, more="exportTo: ['.']\n  subsets: [{name: v1}]")
        + destination_rule("other", "two", STORE.host, 2, created=other, more="exportTo: ['.']")
        + destination_rule("public", "shop", "store", 3, created=public, more="subsets: [{name: v3}]")
    )
    assert followed(world, "one") == ["one/own"]
    assert followed(world, "two") == ["two/other"]
    assert followed(world, "shop") == followed(world, "far") == ["shop/public"]
    assert followed(world, "istio-system") == ["shop/public"]


def test_a_rule_between_two_that_are_merged_leaves_them_so() -> None:
    """In Istio the third is alone then, and hides the first."""
    world = world_of(
        destination_rule("first", "shop", "store", 1, created=1, more="subsets: [{name: v1}]")
        + destination_rule("private", "shop", "store", 2, created=2, more="exportTo: [one]")
        + destination_rule("third", "shop", "store", created=3, more="subsets: [{name: v3}]")
    )
    assert followed(world, "far") == followed(world, "shop") == ["shop/first", "shop/third"]
    assert followed(world, "one") == ["shop/private"]


def test_a_workload_selector_picks_clients_of_its_own_namespace() -> None:
    world = world_of(
        destination_rule("all", "shop", "store", 1, created=1)
        + destination_rule("gold", "shop", "store", 2, created=2, more="workloadSelector: {matchLabels: {tier: gold}}")
    )
    assert followed(world, "shop", tier="gold") == ["shop/gold"]
    assert followed(world, "shop", tier="tin")[0] == "shop/all"
    assert followed(world, "client", tier="gold")[0] == "shop/all"
    assert destination_rule_ref(world.view, "shop", None, STORE)[0].name == "all", "the service's own side"


GOLD = "workloadSelector: {matchLabels: {tier: gold}}"


@pytest.mark.parametrize("export", ["", "exportTo: ['.']"])
@pytest.mark.parametrize("younger", ["all", "gold"])
def test_a_rule_with_a_workload_selector_is_not_merged_with_others_for_other_namespaces(
    export: str, younger: str
) -> None:
    age = {"all": 1, "gold": 1, younger: 2}
    world = world_of(
        destination_rule("all", "shop", "store", created=age["all"], more="subsets: [{name: v1}]")
        + destination_rule(
            "gold", "shop", "store", 9, created=age["gold"], more=f"{GOLD}\n  subsets: [{{name: v3}}]\n  {export}"
        )
    )
    for labels in ({}, {"tier": "gold"}):
        assert followed(world, "client", **labels) == ["shop/all"]
    assert timeout(world, "client") is None
    assert followed(world, "shop", tier="gold")[0] == "shop/gold"


def test_a_rule_with_a_workload_selector_in_the_root_namespace_is_for_clients_there() -> None:
    world = world_of(destination_rule("gold", "istio-system", "*", 9, more=GOLD))
    assert followed(world, "istio-system", tier="gold") == ["istio-system/gold"]
    assert followed(world, "client", tier="gold") == []


def test_rules_with_different_selectors_stay_apart() -> None:
    world = world_of(
        destination_rule("tin", "shop", "store", 1, created=1, more="workloadSelector: {matchLabels: {tier: tin}}")
        + destination_rule("gold", "shop", "store", 2, created=2, more="workloadSelector: {matchLabels: {tier: gold}}")
    )
    assert followed(world, "shop", tier="gold") == ["shop/gold"]
    assert followed(world, "shop", tier="tin") == ["shop/tin"]
    assert followed(world, "shop") == []


def test_settings_of_a_port_replace_all_that_ports_may_set() -> None:
    more = """trafficPolicy:
    connectionPool: {tcp: {connectTimeout: 1s}}
    outlierDetection: {}
    tunnel: {targetHost: t.example.com, targetPort: 80}
    portLevelSettings: [{port: {number: 90}, loadBalancer: {simple: RANDOM}}]"""
    world = world_of(destination_rule("a", "shop", "store", more=more))
    plain = policy_for(world.view, "client", frozenset(), STORE, 80)
    ported = policy_for(world.view, "client", frozenset(), STORE, 90)
    assert plain.outlier_detection == api.OutlierDetection()
    assert (ported.connection_pool, ported.outlier_detection) == (None, None)
    assert ported.load_balancer == api.LoadBalancerSettings(simple=api.LoadBalancerSettingsSimpleLb.RANDOM)
    assert ported.tunnel == plain.tunnel is not None


def test_a_subset_replaces_what_it_sets_and_its_ports_replace_that() -> None:
    more = """trafficPolicy: {connectionPool: {tcp: {connectTimeout: 1s}}, tls: {mode: DISABLE}}
  subsets:
  - name: v1
    trafficPolicy:
      connectionPool: {tcp: {connectTimeout: 2s}}
      portLevelSettings: [{port: {number: 90}, connectionPool: {tcp: {connectTimeout: 3s}}}]"""
    world = world_of(destination_rule("a", "shop", "store", more=more))
    assert [timeout(world, "c", 80), timeout(world, "c", 80, "v1"), timeout(world, "c", 90, "v1")] == [1, 2, 3]
    ref = destination_rule_ref(world.view, "c", frozenset(), STORE)
    assert traffic_policy(world.view, ref, 80, "v1").tls is not None
    assert traffic_policy(world.view, ref, 90, "v1").tls is None


def test_settings_of_a_port_end_the_proxy_protocol_of_their_own_level_only() -> None:
    of_port = "portLevelSettings: [{port: {number: 90}, tls: {mode: SIMPLE}}]"
    sent = "proxyProtocol: {version: V2}"

    def sends(policy: str, subset: str) -> bool:
        more = f"trafficPolicy: {{{policy}}}\n  subsets: [{{name: v1, trafficPolicy: {{{subset}}}}}]"
        world = world_of(destination_rule("a", "shop", "store", more=more))
        return policy_for(world.view, "shop", frozenset(), STORE, 90, "v1").proxy_protocol is not None

    assert sends(sent, of_port)
    assert not sends(f"{sent}, {of_port}", "tls: {mode: SIMPLE}")
    assert not sends("tls: {mode: SIMPLE}", f"{sent}, {of_port}")


def test_the_mesh_default_traffic_policy_is_for_clients_without_a_word_of_their_own() -> None:
    mesh = "defaultTrafficPolicy: {connectionPool: {tcp: {connectTimeout: 7s}}, outlierDetection: {interval: 3s}}"
    world = world_of(destination_rule("a", "shop", "store", 1), mesh=mesh)
    ref = destination_rule_ref(world.view, "c", frozenset(), STORE)
    assert traffic_policy(world.view, ref, 80).outlier_detection is None
    found = client_policy(world.view, ref, 80)
    assert found.outlier_detection == api.OutlierDetection(interval=timedelta(seconds=3))
    assert timeout(world, "c") == 1
    none = client_policy(world.view, (), 80).connection_pool
    assert none is not None and none.tcp is not None and none.tcp.connect_timeout == timedelta(seconds=7)


def test_an_edit_of_a_rules_policy_does_not_ask_again_who_follows_it() -> None:
    world = world_of(destination_rule("a", "shop", "store", 1))
    watch = Watch(world.memo, lambda: None)
    watch.get(derived(policy_for).query("c", frozenset(), STORE, 80))
    before = world.memo.statistics().calls
    update(world, destination_rule("a", "shop", "store", 2))
    assert timeout(world, "c") == 2
    after = world.memo.statistics().calls
    assert after["_chosen"] == before["_chosen"]
    assert after["merged_rule"] == before["merged_rule"] + 1


@pytest.mark.parametrize("gone", [0, 1])
def test_a_rule_that_goes_leaves_what_the_others_say(gone: int) -> None:
    texts = [destination_rule("a", "client", "*.local", 1), destination_rule("b", "shop", "store", 2)]
    world = world_of("".join(texts))
    assert timeout(world, "client") == 1
    config = configs(texts[gone])[0]
    world.apply([Delete("test", item_key(config))])
    assert timeout(world, "client") == (2 if gone == 0 else 1)
    assert merged_rule(world.view, ()).policy is None
