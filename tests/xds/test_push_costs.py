"""What a change costs a stream does not depend on how many names its client holds and requests."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

import attrs
import pytest

from mesh_pilot.engine.patched import PatchedMapping, PatchedSet
from mesh_pilot.engine.snapshots import Snapshot
from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.envoy.catalog.resource_sets import ResourceSet
from mesh_pilot.model.events import Delete, item_key
from mesh_pilot.model.resource import VIRTUAL_HOST
from mesh_pilot.xds.ads.messages import Variant
from tests.support.envoy_model import EnvoyModel
from tests.support.routing import service, virtual_service
from tests.support.worlds import SOURCE, configs, sidecar, update, world_of

ROUTES = "{{hosts: [s{n}], http: [{{timeout: {seconds}s, route: [{{destination: {{host: s{n}}}}}]}}]}}"


class Visits:
    """Counts the names that are looked at one by one, or copied."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for owner, name in ((PatchedMapping, "flat"), (PatchedSet, "flat"), (ResourceSet, "get")):
            patch.setattr(owner, name, self._counted(getattr(owner, name)))
        patch.setattr(Snapshot, "names", property(self._counted(lambda snapshot: frozenset(snapshot.entries))))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any) -> Any:
            found = function(*args)
            self.count += len(found) if isinstance(found, dict | frozenset) else 1
            return found

        return count


class Envoy(EnvoyModel):
    """Does not look at all that there is, as the model does to check the order of removals."""

    def _check_removed(self, removed: Set[str]) -> None: ...


class Mesh:
    """Services with a VirtualService each, and two Envoys that have all of them, with separate virtual hosts."""

    def __init__(self, services: int) -> None:
        routed = (service(f"s{n}") + virtual_service(f"s{n}", ROUTES.format(n=n, seconds=1)) for n in range(services))
        self.world = world_of("".join(routed))
        catalog = WorldCatalog(self.world)
        proxies = [sidecar(ip, namespace="shop", VIRTUAL_HOSTS="split") for ip in ("10.9.9.8", "10.9.9.9")]
        proxies = [attrs.evolve(proxy, incremental=True) for proxy in proxies]
        self.envoys = [Envoy(catalog, proxy, Variant.DELTA) for proxy in proxies]
        self.settle()

        assert all(len(envoy.has[VIRTUAL_HOST]) > services for envoy in self.envoys)

    def settle(self) -> None:
        for envoy in self.envoys:
            envoy.settle()

    def visits(self, text: str, visits: Visits) -> int:
        """The names that are visited for an object, or its edit, and for what undoes it."""
        before = visits.count
        update(self.world, text)
        self.settle()
        self.world.apply([Delete(SOURCE, item_key(config)) for config in configs(text)])
        self.settle()
        return visits.count - before


CHANGES = {
    "a service": service("new"),
    "a service with routes": service("new") + virtual_service("new", ROUTES.format(n="7", seconds=3)),
    "routes": virtual_service("s7", ROUTES.format(n=7, seconds=2)),
}


def test_a_change_visits_as_many_names_in_a_mesh_ten_times_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = Mesh(120), Mesh(1200)
    visits = Visits(monkeypatch)
    for what, text in CHANGES.items():
        assert small.visits(text, visits) == large.visits(text, visits) < 30, what
