"""A proxy whose scope has changed: what cannot be made for the new scope stays as it was in the old one.

A Sidecar, Gateway or EnvoyFilter that begins to select a proxy gives it other sets of resources. If our code fails at
just that object, these have no last good version. The proxy does.
"""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.engine.snapshots import EMPTY, Snapshot, SnapshotStore
from mesh_pilot.envoy.catalog.resource_sets import JoinedSet
from mesh_pilot.envoy.catalog.virtual_host_sets import VirtualHostSets
from mesh_pilot.model.resource import Resource


class KeptResources:
    """The resources of one type for the new scope, and in place of those that cannot be made the earlier ones.

    Implements ``xds.resources.TypeResources``. State: what the proxy had before, until all can be made.
    """

    def __init__(self, store: SnapshotStore, now: JoinedSet | VirtualHostSets, before: Snapshot) -> None:
        self.now = now
        self._store = store
        self._before = before

    def __repr__(self) -> str:
        return f"<KeptResources {len(self._before)} from before {self.now!r}>"

    @property
    def latest(self) -> Snapshot:
        """The resources handed out last."""
        return self._filled(self.now.latest)

    def snapshot(self) -> Snapshot:
        return self._filled(self.now.snapshot())

    def select(self, names: frozenset[str]) -> Snapshot:
        return self._filled(self.now.select(names), names)

    def get(self, name: str) -> Resource | None:
        found = self.now.get(name)
        return found if found is not None else self._filled(EMPTY).entries.get(name)

    def awaited(self) -> frozenset[str]:
        return self.now.awaited()

    def work(self, names: frozenset[str]) -> Iterator[None]:
        return self.now.work(names)

    def _filled(self, current: Snapshot, names: frozenset[str] | None = None) -> Snapshot:
        """With the earlier resources, of these names only, that are missing because of a failure."""
        if self._before is EMPTY:
            return current
        missing = self.now.missing()
        if not missing:
            self._before = EMPTY
            return current
        kept = [
            resource
            for name, resource in self._before.entries.items()
            if name not in current.entries and (names is None or name in names) and missing.may_have(name)
        ]
        return self._store.edit(current, kept) if kept else current
