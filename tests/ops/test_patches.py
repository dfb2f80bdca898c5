"""What EnvoyFilters ask for that can't be done is told: once in the log, and on pages and in metrics while it is so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog

from mesh_pilot.explain.analysis.object_problems import all_patch_problem_lines
from mesh_pilot.model.config import ConfigKey, Severity
from mesh_pilot.model.events import Delete, Upsert, item_key
from mesh_pilot.ops.observers.changes import Changes
from mesh_pilot.ops.observers.problem_log import ProblemLog
from mesh_pilot.ops.values.problems import at_proxies, patch_counts
from mesh_pilot.world import World
from mesh_pilot.world.reducer import Published
from tests.support.patching import API, OTHER, SHOP, Shop, envoy_filter, patch
from tests.support.planes import running_plane
from tests.support.rows import rows
from tests.support.worlds import configs, update

BROKEN = patch("CLUSTER", "MERGE", {"connect_timeout": "soon"})
DOUBTFUL = patch("CLUSTER", "MERGE", {"hosts": []})
RENAMING = patch("CLUSTER", "MERGE", {"name": "x"}, cluster={"name": "PassthroughCluster"})
KEY = ConfigKey("EnvoyFilter", "shop", "f")


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as entries:
        yield entries


def test_what_is_wrong_with_a_patch_itself_is_listed_with_place_field_and_reason() -> None:
    shop = Shop(envoy_filter(BROKEN, DOUBTFUL, RENAMING))
    (error, first), (warning, second) = all_patch_problem_lines(shop.world)
    assert (error, warning) == (Severity.ERROR, Severity.WARNING)
    assert first["where"].startswith("test.yaml:")
    assert first["object"] == "EnvoyFilter/shop/f"
    assert first["field"] == "spec.configPatches[0]"
    assert "soon" in first["reason"]
    assert second["field"] == "spec.configPatches[1]"


def test_it_is_logged_when_the_object_comes_and_not_when_it_goes(logged: list[Any]) -> None:
    world = World()
    changes = Changes(world)
    (config,) = configs(envoy_filter(BROKEN, DOUBTFUL))
    changes.published(Published(world.apply([Upsert("files", config)]), 1.0, 1.0))
    changes.published(Published(world.apply([Delete("files", item_key(config))]), 1.0, 1.0))
    told = [(e["event"], e["field"]) for e in logged if e.get("object") == str(KEY)]
    assert told == [
        ("EnvoyFilter patch cannot be applied; other patches are", "spec.configPatches[0]"),
        ("part of an EnvoyFilter patch has no effect", "spec.configPatches[1]"),
    ]


def test_what_could_not_be_done_to_proxies_is_logged_once_while_it_is_so(logged: list[Any]) -> None:
    shop = Shop(envoy_filter(RENAMING))
    shop.catalog.open(OTHER)
    problems = ProblemLog(shop.catalog, shop.world)
    problems.log_new()
    problems.log_new()
    (entry,) = logged
    assert entry["object"] == "EnvoyFilter/shop/f"
    assert entry["resource"] == "cluster PassthroughCluster"
    assert entry["proxies"] == "api.shop, other.shop"
    update(shop.world, envoy_filter(patch("CLUSTER", "MERGE", {})))
    problems.log_new()
    update(shop.world, envoy_filter(RENAMING))
    problems.log_new()
    assert len(logged) == 2


def test_a_problem_of_many_proxies_is_one_entry_that_names_some() -> None:
    shop = Shop(envoy_filter(RENAMING))
    for _ in range(3):
        shop.catalog.open(OTHER)
    (entry,) = rows(at_proxies(shop.catalog.diagnostics().patches()))
    assert entry["proxies"] == ["api.shop", "other.shop"]
    assert entry["proxies_in_all"] == 2
    assert patch_counts(shop.catalog.diagnostics()) == {"shop/f": 2}


@pytest.mark.plane
async def test_pages_and_metrics_show_it(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SHOP + envoy_filter(BROKEN))
    async with running_plane(tmp_path) as plane, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        plane.state.catalog.open(API)
        address = plane.addresses.http
        (entry,) = (await client.get(f"http://{address}/debug/rejections")).json()["patches"]
        assert (entry["object"], entry["field"]) == ("EnvoyFilter/shop/f", "spec.configPatches[0]")
        metrics = (await client.get(f"http://{address}/metrics")).text
        assert 'mesh_pilot_envoy_filter_problems{name="shop/f"} 1.0' in metrics
