"""Patches over time: what changes with an EnvoyFilter, what stays shared, and how those that fail are reported."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
import structlog

from mesh_pilot.envoy.catalog.catalog import WorldCatalog, WorldResources
from mesh_pilot.envoy.envoy_filter.merge import merge
from mesh_pilot.envoy.envoy_filter.parse import filter_problems
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import Delete
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import CLUSTER, EXTENSION, LISTENER, ROUTE, Resource
from mesh_pilot.world import World
from tests.support import golden
from tests.support.envoy_check import complaints
from tests.support.patching import API, OTHER, SHOP, Shop, envoy_filter, in_http_filter, patch
from tests.support.worlds import SOURCE, update, world_of

API_80 = "outbound|80||api.shop.svc.cluster.local"
LIMITER = {"name": "limiter", "type": "STATIC", "connect_timeout": "1s"}
BUFFER = {"per_connection_buffer_limit_bytes": 4096}
ROUTER_MERGE = patch(
    "HTTP_FILTER", "MERGE", {"name": "envoy.filters.http.router"}, listener=in_http_filter("envoy.filters.http.router")
)


def resources_of(resources: WorldResources, type_url: str) -> dict[str, Resource]:
    found = resources.set(type_url)
    assert found is not None
    return dict(found.snapshot().entries)


def everything(resources: WorldResources) -> dict[tuple[str, str], str]:
    tables = resources.set(ROUTE)
    assert tables is not None
    for name in ("80", "http.8081"):
        tables.get(name)
    types = (CLUSTER, LISTENER, ROUTE, EXTENSION)
    return {(t, n): r.version for t in types for n, r in resources_of(resources, t).items()}


def test_resources_that_no_patch_is_for_are_the_very_same_as_other_proxies_have() -> None:
    change = patch("CLUSTER", "MERGE", BUFFER, cluster={"name": API_80})
    shop = Shop(envoy_filter(change, workloadSelector={"labels": {"app": "api"}}))
    mine, theirs = resources_of(shop.resources, CLUSTER), resources_of(shop.catalog.open(OTHER), CLUSTER)
    shared = {name for name in mine if theirs.get(name) is mine[name]}
    assert shared == {n for n in theirs if n != API_80 and not n.startswith("inbound")} | {"InboundPassthroughCluster"}
    assert mine[API_80] != theirs[API_80]


def test_a_resource_that_a_patch_looks_at_and_leaves_alone_is_the_same_object() -> None:
    change = patch("FILTER_CHAIN", "REMOVE", listener={"filterChain": {"name": "no such"}})
    shop = Shop(envoy_filter(change, workloadSelector={"labels": {"app": "api"}}))
    mine, theirs = resources_of(shop.resources, LISTENER), resources_of(shop.catalog.open(OTHER), LISTENER)
    assert mine["0.0.0.0_80"] is theirs["0.0.0.0_80"]


def test_a_patched_resource_says_which_envoy_filters_it_came_from() -> None:
    change = patch("CLUSTER", "MERGE", BUFFER, cluster={"name": API_80})
    found = Shop(envoy_filter(change), envoy_filter(change, name="g")).resource(CLUSTER, API_80)
    assert found is not None
    assert [str(c) for c in found.configs] == ["ServiceEntry/shop/api", "EnvoyFilter/shop/f", "EnvoyFilter/shop/g"]


def test_an_edit_reaches_what_it_patches_and_nothing_else() -> None:
    def clusters(timeout: int) -> str:
        return envoy_filter(patch("CLUSTER", "MERGE", {"connect_timeout": f"{timeout}s"}, cluster={"name": API_80}))

    shop = Shop(clusters(3))
    everything(shop.resources)
    found = shop.resources.set(CLUSTER)
    listeners = shop.resources.set(LISTENER)
    assert found is not None and listeners is not None
    clusters_before, listeners_before = found.snapshot(), listeners.snapshot()
    calls = shop.world.memo.statistics().calls
    update(shop.world, clusters(4))
    assert shop.catalog.snapshots.diff(clusters_before, found.snapshot()) == {API_80}
    assert listeners.snapshot() is listeners_before
    after = shop.world.memo.statistics().calls
    called = {name for name in after if after[name] != calls.get(name, 0)}
    ours = {"_heads", "parsed", "patches_for", "patched_clusters", "unwrap_plan", "patched_cluster", "unwrap_resource"}
    assert {name for name in called if not name.startswith("_policy")} <= ours
    assert shop.cluster(API_80).connect_timeout.seconds == 4


def test_an_edit_that_changes_only_problems_leaves_the_resources_as_they_are() -> None:
    def clusters(name: str) -> str:
        refused = patch("CLUSTER", "MERGE", {"name": name}, cluster={"name": API_80})
        return envoy_filter(patch("CLUSTER", "MERGE", BUFFER), refused)

    shop = Shop(clusters("x"))
    found = shop.resources.set(CLUSTER)
    assert found is not None
    before, reasons = found.snapshot(), shop.problem_texts()
    update(shop.world, clusters("y"))
    assert shop.problem_texts() != reasons
    assert found.snapshot() is before


def test_a_proxy_whose_last_envoy_filter_goes_is_as_if_there_had_been_none() -> None:
    world = world_of(SHOP)
    resources = WorldCatalog(world).open(API)
    before = everything(resources)
    update(world, envoy_filter(patch("CLUSTER", "ADD", LIMITER), patch("LISTENER", "MERGE", BUFFER)))
    assert everything(resources) != before
    world.apply([Delete(SOURCE, ("config", "EnvoyFilter", "shop", "f"))])
    assert everything(resources) == before


FILTERS: tuple[tuple[dict[str, Any], ...], ...] = (
    (patch("CLUSTER", "MERGE", {"connect_timeout": "3s"}), patch("CLUSTER", "ADD", LIMITER)),
    (patch("CLUSTER", "REMOVE", cluster={"portNumber": 9000}), ROUTER_MERGE),
    (patch("LISTENER", "MERGE", BUFFER), patch("LISTENER", "REMOVE", listener={"portNumber": 9000})),
    (patch("VIRTUAL_HOST", "MERGE", {"response_headers_to_remove": ["x"]}),),
    (patch("HTTP_ROUTE", "INSERT_FIRST", "{name: new, match: {prefix: /}, direct_response: {status: 200}}"),),
    (patch("EXTENSION_CONFIG", "ADD", {"name": "e"}), patch("CLUSTER", "ADD", LIMITER, context="SIDECAR_INBOUND")),
)


def test_whatever_comes_and_goes_the_result_is_that_of_a_fresh_start() -> None:
    random_ = random.Random(7)
    world = world_of(SHOP)
    catalog = WorldCatalog(world)
    resources = catalog.open(API)
    present: dict[str, str] = {}
    for step in range(40):
        name = random_.choice("abc")
        if name in present and random_.random() < 0.3:
            del present[name]
            world.apply([Delete(SOURCE, ("config", "EnvoyFilter", "shop", name))])
        else:
            present[name] = envoy_filter(
                *random_.choice(FILTERS),
                name=name,
                namespace="shop",
                priority=random_.choice((0, 1)),
                **random_.choice(({}, {"workloadSelector": {"labels": {"app": random_.choice(("api", "b"))}}})),
            )
            update(world, present[name])
        if step % 7 == 0:
            catalog.evict_idle()
        fresh = WorldCatalog(world_of(SHOP + "".join(present.values()))).open(API)
        assert everything(resources) == everything(fresh)
        assert resources.patch_problems() == fresh.patch_problems()


def test_a_patch_that_fails_is_reported_with_its_proxy_and_the_rest_stands() -> None:
    bad = patch("CLUSTER", "MERGE", {"connect_timeout": "soon"})
    good = patch("CLUSTER", "MERGE", BUFFER)
    rename = patch("CLUSTER", "MERGE", {"name": "x"}, cluster={"name": API_80})
    shop = Shop(envoy_filter(bad, good, rename))
    assert shop.cluster(API_80).per_connection_buffer_limit_bytes.value == 4096
    key = ConfigKey("EnvoyFilter", "shop", "f")
    found = shop.catalog.diagnostics().patches()
    assert [(p.object, p.field, p.resource, proxies) for p, proxies in found.items()] == [
        (str(key), "spec.configPatches[0]", "", ["api.shop"]),
        (str(key), "spec.configPatches[2]", f"cluster {API_80}", ["api.shop"]),
    ]


def test_what_is_wrong_with_patches_for_other_proxies_is_not_said_of_this_one() -> None:
    bad = patch("CLUSTER", "MERGE", {"connect_timeout": "soon"}, proxy={"metadata": {"ZONE": "b"}})
    shop = Shop(envoy_filter(bad, patch("CLUSTER", "MERGE", BUFFER)))
    assert shop.problems == ()
    assert filter_problems(shop.world.memo.view, shop.resources.target.filters) == ()


def test_problems_with_route_tables_are_those_of_the_tables_that_are_asked_for() -> None:
    shop = Shop(envoy_filter(patch("ROUTE_CONFIGURATION", "MERGE", {"name": "x"})))
    assert [p.resource for p in shop.problems if p.resource.startswith("route table 80")] == []
    shop.table("80")
    assert "route table 80" in [p.resource for p in shop.problems]


def test_a_proxy_that_goes_is_no_longer_reported() -> None:
    shop = Shop(envoy_filter(patch("CLUSTER", "MERGE", {"connect_timeout": "soon"})))
    assert shop.catalog.diagnostics().patches()
    shop.resources.close()
    assert shop.catalog.diagnostics().patches() == {}


def proxies(scenario: str) -> list[tuple[World, Proxy]]:
    world = golden.load(scenario)
    return [(world, golden.proxy_of(entry)) for entry in golden.proxies(scenario)]


@pytest.mark.envoy
@pytest.mark.smoke
def test_a_real_envoy_takes_what_the_patches_of_the_goldens_make(tmp_path: Path) -> None:
    scenarios = ("ef-clusters", "ef-http-filters", "ef-network-listener")
    listeners: list[bytes] = []
    clusters: dict[str, bytes] = {}
    for world, proxy in itertools.chain.from_iterable(map(proxies, scenarios)):
        resources = WorldCatalog(world).open(proxy)
        listeners += (r.body for n, r in resources_of(resources, LISTENER).items() if n != "0.0.0.0_8081")
        clusters |= {n: r.body for n, r in resources_of(resources, CLUSTER).items()}
    assert complaints(tmp_path, listeners, clusters.values()) == ""


def test_proxies_with_the_same_envoy_filters_share_what_is_patched_and_the_plans_of_it() -> None:
    shop = Shop(envoy_filter(patch("CLUSTER", "MERGE", BUFFER), patch("LISTENER", "MERGE", BUFFER)))
    mine = {t: resources_of(shop.resources, t) for t in (CLUSTER, LISTENER)}
    sets = shop.catalog.statistics().sets
    other = shop.catalog.open(OTHER)
    for type_url, resources in mine.items():
        theirs = resources_of(other, type_url)
        outbound = [n for n in theirs if not n.startswith("inbound") and n != "virtualInbound"]
        assert outbound and all(theirs[n] is resources[n] for n in outbound)
    assert shop.catalog.statistics().sets == sets + 2  # those of its own inbound traffic


def test_an_internal_error_in_a_patch_costs_that_patch_and_leaves_nothing_half_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def merge_half(target: Any, source: Any, **options: Any) -> None:
        merge(target, source, **options)
        if source.HasField("max_requests_per_connection"):
            raise ZeroDivisionError("half way")

    monkeypatch.setattr("mesh_pilot.envoy.envoy_filter.merge.merge", merge_half)
    broken = patch("CLUSTER", "MERGE", {"max_requests_per_connection": 7}, cluster={"name": API_80})
    good = patch("CLUSTER", "MERGE", BUFFER, cluster={"name": API_80})
    with structlog.testing.capture_logs() as entries:
        shop = Shop(envoy_filter(broken, good, broken))
        found = shop.cluster(API_80)
    assert found.per_connection_buffer_limit_bytes.value == 4096
    assert not found.HasField("max_requests_per_connection")
    assert [(str(p.config), p.patch, p.resource) for p in shop.problems] == [
        ("EnvoyFilter/shop/f", 0, f"cluster {API_80}"),
        ("EnvoyFilter/shop/f", 2, f"cluster {API_80}"),
    ]
    assert {e["event"] for e in entries} == {"patch failed; the resource goes without it"}


def test_an_internal_error_in_reading_a_patch_costs_that_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("mesh_pilot.envoy.envoy_filter.parse.read_value", fail)
    gone = patch("CLUSTER", "REMOVE", cluster={"name": "outbound|9000||api.shop.svc.cluster.local"})
    with structlog.testing.capture_logs() as entries:
        shop = Shop(envoy_filter(patch("CLUSTER", "MERGE", BUFFER), gone))
        assert "outbound|9000||api.shop.svc.cluster.local" not in shop.names(CLUSTER)
        assert API_80 in shop.names(CLUSTER)
    assert [(p.patch, "can't be read" in p.reason) for p in shop.problems] == [(0, True)]
    assert "EnvoyFilter patch cannot be parsed" in {e["event"] for e in entries}
