"""What a revision changed: counted by kind and event, and refusals told in the log once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import structlog

import mesh_pilot
from mesh_pilot.api.istio.networking.v1alpha3 import ServiceEntry
from mesh_pilot.explain.analysis.object_problems import rejected_lines
from mesh_pilot.istio.kinds import ISTIO_KINDS
from mesh_pilot.istio.reading.mesh import default_mesh
from mesh_pilot.model.config import Config, ConfigKey, Origin, Problem, Severity
from mesh_pilot.model.events import (
    Accepted,
    Delete,
    Endpoints,
    Event,
    MeshConfigValue,
    Rejected,
    Upsert,
    WasmModule,
    item_key,
)
from mesh_pilot.model.modules import ModuleRef
from mesh_pilot.model.service import Endpoint, Port, Protocol, Service
from mesh_pilot.ops.observers.changes import Changes
from mesh_pilot.ops.values.objects import warnings
from mesh_pilot.world import World
from mesh_pilot.world.reducer import Published
from tests.support.worlds import world_of

ORIGIN = Origin("files", "config/a.yaml", 3)
KEY = ConfigKey("ServiceEntry", "shop", "reviews")
REFUSED = Rejected("files", ORIGIN, (Problem("spec.hosts", "is empty", line=7),), ("config", *KEY))


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as entries:
        yield entries


class Told:
    """Changes over a World, fed with batches of events as the reducer would publish them."""

    def __init__(self) -> None:
        self.world = World()
        self.changes = Changes(self.world)

    def publish(self, *events: Event, first: float = 1.0, at: float = 1.25) -> None:
        self.changes.published(Published(self.world.apply(events), first, at))


def entry(*hosts: str) -> Config:
    return Config(KEY, ServiceEntry(hosts=list(hosts)), origin=ORIGIN)


def test_objects_are_counted_as_added_updated_and_deleted() -> None:
    told = Told()
    told.publish(Upsert("files", entry("a.test")))
    told.publish(Upsert("files", entry("b.test")))
    told.publish(Upsert("files", entry("b.test")))  # says nothing new
    told.publish(Delete("files", item_key(entry())))
    told.publish(Upsert("files", entry("c.test")))
    assert told.changes.statistics().config_events == {
        ("ServiceEntry", "add"): 2,
        ("ServiceEntry", "update"): 1,
        ("ServiceEntry", "delete"): 1,
    }


def test_a_revision_counts_once_for_each_sort_of_thing_in_it() -> None:
    told = Told()
    service = Service("a.test", "shop", (Port(80, "http", Protocol.HTTP),))
    endpoints = tuple(Endpoint(f"10.0.0.{n}", 80, "http") for n in range(3))
    told.publish(Upsert("files", service), Upsert("files", Endpoints(service.key, endpoints)))
    told.publish(Upsert("files", Endpoints(service.key, endpoints[:1])))
    statistics = told.changes.statistics()
    assert statistics.triggers == {"service": 1, "endpoint": 2}
    assert statistics.service_events == {"add": 1}


def test_the_time_from_the_first_event_to_the_revision_is_observed() -> None:
    told = Told()
    told.publish(Upsert("files", entry("a.test")), first=10.0, at=10.2)
    told.publish(first=11.0, at=11.5)  # changed nothing
    debounce = told.changes.statistics().debounce_seconds
    assert sum(debounce.counts) == 1
    assert debounce.sum == pytest.approx(0.2)


def test_a_refusal_is_told_once_with_file_line_field_and_reason(logged: list[Any]) -> None:
    told = Told()
    told.publish(REFUSED)
    told.publish(REFUSED)
    told.publish(Upsert("files", entry("a.test")))
    refused, good = logged
    assert refused["log_level"] == "warning"
    assert (
        refused.items()
        >= {
            "where": "config/a.yaml:7",
            "object": "ServiceEntry/shop/reviews",
            "field": "spec.hosts",
            "reason": "is empty",
        }.items()
    )
    assert (good["event"], good["object"]) == ("config accepted again", "ServiceEntry/shop/reviews")


def test_a_file_that_can_not_be_read_is_told_without_an_object(logged: list[Any]) -> None:
    told = Told()
    told.publish(Rejected("files", Origin("files", "config/b.yaml"), (Problem("", "is not UTF-8 text", line=2),)))
    told.publish(Accepted("files", "config/b.yaml"))
    assert "object" not in logged[0]
    assert logged[0]["where"] == "config/b.yaml:2"
    assert logged[1]["event"] == "config accepted again"


def test_what_is_doubtful_in_a_new_object_or_in_the_mesh_config_is_told(logged: list[Any]) -> None:
    told = Told()
    doubt = (Problem("spec.hosts", "has no effect: because", Severity.WARNING, 5),)
    told.publish(Upsert("files", attrs.evolve(entry("a.test"), warnings=doubt)))
    mesh = MeshConfigValue(default_mesh("other"), Origin("mesh", "mesh.yaml"), doubt)
    told.publish(Upsert("mesh", mesh))
    said = [{k: line[k] for k in ("where", "object", "field", "reason")} for line in logged]
    assert said == [
        {"where": "config/a.yaml:5", "object": str(KEY), "field": "spec.hosts", "reason": "has no effect: because"},
        {"where": "mesh.yaml:5", "object": "mesh", "field": "spec.hosts", "reason": "has no effect: because"},
    ]
    told.publish(Upsert("mesh", mesh))
    assert len(logged) == 2


def test_each_problem_of_an_object_has_its_own_line() -> None:
    twice = Rejected("files", ORIGIN, (Problem("spec.a", "x", line=4), Problem("spec.b", "y")))
    assert [line["where"] for line in rejected_lines(twice)] == ["config/a.yaml:4", "config/a.yaml:3"]


def test_something_is_generated_from_every_kind() -> None:
    rooms = Path(mesh_pilot.__file__).parent
    # This file only says which kinds would select a workload.
    selecting = rooms / "mesh" / "policies.py"
    files = [f for room in ("world", "mesh", "envoy") for f in (rooms / room).rglob("*.py") if f != selecting]
    code = "\n".join(file.read_text() for file in files)
    assert {kind for kind in ISTIO_KINDS if f'"{kind}"' not in code} == set()


def test_an_object_that_cannot_be_reported_on_costs_itself(monkeypatch: pytest.MonkeyPatch, logged: list[Any]) -> None:
    def fails(world: World, config: Config) -> None:
        raise RecursionError("nested")

    monkeypatch.setattr("mesh_pilot.explain.analysis.object_problems.patch_problem_lines", fails)
    told = Told()
    patch = Config(ConfigKey("EnvoyFilter", "shop", "deep"), ServiceEntry(), origin=ORIGIN)
    told.publish(Upsert("files", patch), Upsert("files", entry("a.test")), REFUSED)
    assert told.changes.statistics().config_events["ServiceEntry", "add"] == 1
    events = [line["event"] for line in logged]
    assert "cannot report on a changed object; it is in force" in events
    assert "config refused; its last good version is kept" in events


def test_a_refused_object_is_said_to_stay_in_force_only_if_there_is_a_good_version(logged: list[Any]) -> None:
    told = Told()
    garbage = Rejected("files", ORIGIN, (Problem("", "is not YAML"),))
    told.publish(REFUSED, garbage)
    assert [line["event"] for line in logged] == ["config refused", "config refused"]
    logged.clear()
    told.publish(Upsert("files", entry("a.test")), Accepted("files", ORIGIN.location))
    logged.clear()
    told.publish(REFUSED, garbage)
    assert {line["event"] for line in logged} == {"config refused; its last good version is kept"}


def test_warnings_about_what_is_in_force_are_counted_by_kind() -> None:
    told = Told()
    idle, old = (
        Problem("spec.a", "has no effect: no process reads it", Severity.WARNING),
        Problem("spec.b", "is deprecated: use c", Severity.WARNING),
    )
    told.publish(
        Upsert("files", attrs.evolve(entry("a.test"), warnings=(idle, old))),
        Upsert("mesh", MeshConfigValue(default_mesh(), ORIGIN, (idle,))),
    )
    found = told.changes.statistics()
    assert (found.warnings, found.without_effect) == (
        {"ServiceEntry": 2, "MeshConfig": 1},
        {"ServiceEntry": 1, "MeshConfig": 1},
    )
    told.publish(Upsert("files", attrs.evolve(entry("b.test"), warnings=(old,))))
    assert told.changes.statistics().without_effect == {"ServiceEntry": 0, "MeshConfig": 1}
    told.publish(Delete("files", item_key(entry())))
    assert told.changes.statistics().warnings == {"MeshConfig": 1}


def test_warnings_about_settings_that_are_the_defaults_are_told_once(logged: list[Any]) -> None:
    told = Told()
    gone = MeshConfigValue(default_mesh(), ORIGIN, (Problem("thriftConfig", "has no effect", Severity.WARNING, 4),))
    for _ in range(2):
        told.publish(Upsert("mesh", gone))
        told.publish(Upsert("files", entry("a.test")))
    assert [line["field"] for line in logged if line["event"] == "config accepted with a warning"] == ["thriftConfig"]


def test_modules_that_cannot_be_had_are_listed_as_warnings() -> None:
    world = world_of("""
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: idle, namespace: shop}
spec: {url: "file:///none.wasm"}
""")
    assert [*warnings(world)] == []
    world.apply([Upsert("wasm", WasmModule(ModuleRef("file:///none.wasm"), trouble="no such file"))])
    (line,) = warnings(world)
    assert (line.object, line.where, line.field) == ("WasmPlugin/shop/idle", "test.yaml:2", "spec.url")
    assert line.reason == "cannot fetch the module: no such file; traffic is denied (failStrategy)"
