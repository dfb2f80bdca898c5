"""Every translator fails for a while, with proxies connected and objects changing: it costs what it makes, all else
flows, what is stale or missing is listed, and nothing is left of it once the translator works again."""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache, update_wrapper
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from structlog.testing import capture_logs

import mesh_pilot.envoy
import mesh_pilot.mesh
from mesh_pilot.engine import Derived
from mesh_pilot.engine.failures import PROXY, Condition, Failure
from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.model.events import Delete, Event, Item, Upsert, item_key
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER, RESOURCE_TYPES, ROUTE, VIRTUAL_HOST, table_of
from mesh_pilot.world import View, World
from mesh_pilot.xds.ads.messages import Variant
from tests.door.mesh import fixed_items
from tests.fields.examples_of_fields import FOLDER, scenes
from tests.fields.mesh import Mesh as SmallMesh
from tests.fields.mesh import proxies
from tests.support import golden
from tests.support.envoy_model import EnvoyModel
from tests.support.sample import of_the_day
from tests.support.worlds import SOURCE, configs
from tests.test_transitions import clients, hosts_apart

(MARKER,) = configs("""
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: marker, namespace: elsewhere}
spec: {url: "file:///none.wasm"}
""")
"""An object without effect. The function under test fails as long as it exists."""

EXTRA = configs("""
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: extra}
spec:
  hosts: [extra.test]
  addresses: [240.9.9.9]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 7070, name: tcp, protocol: TCP}]
  endpoints: [{address: 10.99.0.1}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: extra}
spec:
  hosts: [extra.test]
  http: [{timeout: 7s, route: [{destination: {host: extra.test}}]}]
""")
"""What somebody adds meanwhile."""


@cache
def translators() -> Mapping[str, Derived[..., Any]]:
    """All derived functions of ``mesh`` and ``envoy``, by module and name."""
    found: dict[str, Derived[..., Any]] = {}
    for package in (mesh_pilot.mesh, mesh_pilot.envoy):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(info.name)
            for value in vars(module).values():
                if isinstance(value, Derived) and value.__module__ == module.__name__:
                    found[f"{module.__name__.removeprefix('mesh_pilot.')}.{value.name}"] = value
    return found


Make = tuple[Callable[[str, Variant], "Mesh"], str, Variant]
"""How to make a mesh: of a golden scenario or of examples, with the variant of its clients."""


@cache
def makes() -> Sequence[Make]:
    scenarios = [*((Mesh, name) for name in golden.scenarios()), *((MeshOfExamples, name) for name in EXAMPLES)]
    return [(make, name, variant) for make, name in scenarios for variant in Variant]


@cache
def called_in(make: Make) -> frozenset[str]:
    """The functions that a mesh calls."""
    kind, scenario, variant = make
    mesh = kind(scenario, variant)
    mesh.settle()
    return frozenset(name for name, count in mesh.world.memo.statistics().calls.items() if count)


EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
"""Files of objects with fields that no golden scenario has."""


class Mesh:
    """A world of a golden scenario, with its clients."""

    def __init__(self, scenario: str, variant: Variant) -> None:
        self.scenario = scenario
        self.world = self.load()
        self.catalog = WorldCatalog(self.world)
        self.variant = variant
        self.models: list[EnvoyModel] = []
        self.connect()

    def load(self) -> World:
        """The World of the scenario."""
        return golden.load(self.scenario)

    def clients(self) -> list[tuple[Proxy, tuple[str, ...]]]:
        """The clients, those of gRPC with the names of the listeners that they ask for."""
        return clients(self.scenario)

    def connect(self) -> None:
        """Connect each client of the scenario once more. With Delta they get virtual hosts apart."""
        for proxy, listeners in self.clients():
            asking = hosts_apart(proxy) if self.variant is Variant.DELTA else proxy
            self.models.append(EnvoyModel(self.catalog, asking, self.variant, listeners))

    def settle(self) -> None:
        """All clients take what there is. None waits for what is missing for longer than a stream would."""
        for model in self.models:
            for _ in range(3):
                model.run()
                waiting = model.stream.waiting_for()
                if waiting.endpoints:
                    model.stream.end_warming()
                if waiting.referrers or waiting.clusters:
                    model.stream.end_reconnect_grace()
            assert model.stream.next_response() is None

    def apply(self, events: list[Event]) -> None:
        self.world.apply(events)
        self.settle()

    def failures(self) -> list[Failure]:
        return [standing.failure for standing in self.catalog.failures()]


class MeshOfExamples(Mesh):
    """The small mesh of `tests.fields`, with the objects of a file of its examples."""

    def load(self) -> World:
        small = SmallMesh(fixed())
        small.seen_with(each.read(each.spec) for each in next(scenes(FOLDER / f"{self.scenario}.yaml")))
        return small.world

    def clients(self) -> list[tuple[Proxy, tuple[str, ...]]]:
        return [(proxy, ()) for proxy in proxies() if proxy.name in ("web.shop", "ratings.other", "edge.shop")]


@cache
def fixed() -> Sequence[Item]:
    """The fixed objects, whose keys and certificates are new with each call."""
    with TemporaryDirectory() as folder:
        return fixed_items(Path(folder))


class Breaking:
    """A function that fails while the marker exists. ``raised`` says how often it did."""

    def __init__(self, function: Derived[..., Any]) -> None:
        self.raised = 0
        original = function.compute

        def compute(view: View, *args: Any) -> Any:
            if view.config(MARKER.key) is not None:
                self.raised += 1
                raise KeyError("port")
            return original(view, *args)

        self.compute = update_wrapper(compute, original)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(translators()))
def test_a_translator_that_fails_costs_what_it_makes(name: str) -> None:
    pick = random.Random(name)
    calling = [make for make in makes() if translators()[name].name in called_in(make)]
    if not calling:
        pytest.skip("no scenario and no example calls it for an Envoy's streams")
    _fails(name, pick.choice(calling), pick)


def test_translators_that_fail_cost_what_they_make_in_the_mesh_of_the_day() -> None:
    (make,) = of_the_day(makes(), 1, "mesh")
    called = sorted(name for name, function in translators().items() if function.name in called_in(make))
    for name in of_the_day(called, 8, "translators"):
        _fails(name, make, random.Random(name))


def _fails(name: str, make: Make, pick: random.Random) -> None:
    function, (kind, scenario, variant) = translators()[name], make
    with pytest.MonkeyPatch.context() as patch, capture_logs():
        patch.setattr(function, "compute", Breaking(function).compute)
        _fail_and_recover(kind(scenario, variant), kind(scenario, variant), pick)


def _fail_and_recover(mesh: Mesh, healthy: Mesh, pick: random.Random) -> None:
    for each in (mesh, healthy):
        each.settle()
    before = [model.held for model in mesh.models]
    assert mesh.failures() == []
    items = [item for key, item in sorted(mesh.world.items_of(SOURCE).items()) if key[0] == "config"]
    gone = pick.sample(items, min(len(items), 2))
    steps: list[list[Event]] = [
        [Upsert(SOURCE, config) for config in EXTRA],
        [Delete(SOURCE, item_key(item)) for item in gone],
        [Upsert(SOURCE, item) for item in gone[:1]],
    ]
    for number, step in enumerate(steps):
        mesh.apply([Upsert(SOURCE, MARKER), *step] if number == 0 else step)
        healthy.apply(step)
        for model, well, had in zip(mesh.models, healthy.models, before, strict=True):
            _check(mesh, model, well, had)
        before = [model.held for model in mesh.models]
    mesh.connect()
    mesh.settle()
    healthy.connect()
    mesh.apply([Delete(SOURCE, item_key(MARKER))])
    healthy.settle()
    assert [model.held for model in mesh.models] == [model.held for model in healthy.models]
    assert mesh.failures() == []


def _check(mesh: Mesh, model: EnvoyModel, well: EnvoyModel, before: Mapping[str, Mapping[str, str]]) -> None:
    """Every resource is as it should be, or a failure says what it is instead."""
    standing = [each for each in mesh.catalog.failures() if model.proxy.name in each.proxies]
    failures = [each.failure for each in standing]
    for type_url, resource_type in RESOURCE_TYPES.items():
        of_type = [f for f in failures if f.kind in (resource_type.short, PROXY)]
        is_list_stale = any(f.is_plan or f.kind == PROXY for f in of_type)
        # A name may fail in two sets of a proxy: where it was, and where it is to be. It stays as it was.
        by_name = {f.name: f for f in sorted(of_type, key=_stale_last) if not f.is_plan and f.kind != PROXY}
        now, due, had = (held.get(type_url, {}) for held in (model.held, well.held, before))
        for name in {*now, *due}:
            if now.get(name) == due.get(name) or name in by_name or is_list_stale:
                continue
            if _wants(model, type_url, name) and _wants(well, type_url, name):
                shown = f"{resource_type.short} {name} is {now.get(name)}, not {due.get(name)}"
                raise AssertionError((shown, model, list(map(str, failures))))
        for name, failure in by_name.items():
            if _wants(model, type_url, name):
                if failure.state is Condition.MISSING:
                    stand_in = mesh.catalog.no_endpoints(name).version if type_url == ENDPOINT else None
                    assert now.get(name) in (None, stand_in, had.get(name), due.get(name)), (failure, model)
                else:
                    assert name in now, (failure, model)


def _stale_last(failure: Failure) -> bool:
    return failure.state is Condition.STALE


def _wants(model: EnvoyModel, type_url: str, name: str) -> bool:
    """True if a client requests the name, which depends on other resources that it has."""
    if type_url == VIRTUAL_HOST:
        return table_of(name) in model.has[ROUTE]
    asked = model._asked.get(type_url, set())
    return name in asked or (not asked and type_url in (CLUSTER, LISTENER) and not model._listeners)
