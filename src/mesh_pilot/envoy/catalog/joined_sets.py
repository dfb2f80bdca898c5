"""One proxy's resources of a type: sets that many proxies share, read as one."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import zip_longest

from mesh_pilot.engine.patched import Names
from mesh_pilot.engine.snapshots import (
    EMPTY,
    NO_NAMES,
    Join,
    Lacking,
    Selection,
    Snapshot,
    SnapshotStore,
    joined,
    snapshot_of,
)
from mesh_pilot.envoy.catalog.resource_sets import Missing, ResourceSet
from mesh_pilot.identity.certificates.secrets import IdentitySet
from mesh_pilot.identity.trust.roots import ROOTS_NAME, AgentRoots, TrustSet
from mesh_pilot.model.resource import PROXY_CONFIG, Resource, make_resource


class AgentSettingsSet:
    """The settings of one agent: the mesh's ProxyConfig for it and the trusted roots, in one resource.

    State: the last snapshot, and those that it was made from.
    """

    is_plan = True

    def __init__(self, settings: ResourceSet, roots: AgentRoots) -> None:
        self._settings = settings
        self._roots = roots
        self._parts: tuple[Snapshot, Snapshot] | None = None
        self._snapshot = EMPTY

    def __repr__(self) -> str:
        return f"<AgentSettingsSet of {self._settings!r}>"

    def missing(self) -> Missing:
        return self._settings.missing()

    def snapshot(self) -> Snapshot:
        parts = (self._settings.snapshot(), self._roots.snapshot())
        if parts != self._parts:
            self._parts = parts
            found = [resource for part in parts for resource in part.listing]
            # Encoded messages one after the other are one message with the fields of all.
            body = b"".join(resource.body for resource in found)
            configs = tuple(key for resource in found for key in resource.configs)
            self._snapshot = snapshot_of((make_resource(ROOTS_NAME, PROXY_CONFIG, body, configs),))
        return self._snapshot

    def ask(self, names: Names) -> Snapshot:
        """As ``snapshot``: what there is does not depend on the names."""
        return self.snapshot()

    def has_asked(self, names: Names) -> bool:
        return True

    def get(self, name: str) -> Resource | None:
        return self.snapshot().entries.get(name)


Part = ResourceSet | IdentitySet | TrustSet | AgentSettingsSet
"""A set that several proxies may share."""


class JoinedSet:
    """One proxy's resources of a type: sets without a name in common, read as one.

    Implements ``xds.ads.resources.TypeResources``. State: the snapshots of the parts when they were last read, and
    those made from them. A proxy whose scope changes gets a new one.
    """

    def __init__(self, store: SnapshotStore, parts: tuple[Part, ...]) -> None:
        self._parts = parts
        self._plans = tuple(part for part in parts if part.is_plan)
        self._own = next((part for part in parts if isinstance(part, IdentitySet)), None)
        self._wildcard = Join(store, joined)
        self._all = Join(store, joined)
        self._selection = Selection(store)
        self._asked_for: list[Names] = []
        """For each part the names that it was asked for last, if there are several."""
        self._lacking = tuple(Lacking(store) for _ in parts[1:])
        """The names that all parts before it lack, for each part but the first."""
        self._latest = EMPTY
        self._store = store

    @property
    def latest(self) -> Snapshot:
        """The resources handed out last."""
        return self._store.overlay(self._latest, self._selection.found)

    def missing(self) -> Missing:
        """The resources that the parts lack because of failures."""
        found = Missing()
        for part in self._parts:
            found |= part.missing() if isinstance(part, ResourceSet | AgentSettingsSet) else Missing()
        return found

    def snapshot(self) -> Snapshot:
        """All that a wildcard subscription gets."""
        if len(self._plans) == 1:
            self._latest = self._plans[0].snapshot()
        else:
            self._latest = self._wildcard.of({at: part.snapshot() for at, part in enumerate(self._plans)})
        return self._latest

    def select(self, names: Names) -> Snapshot:
        """The resources of these names, also ones that no wildcard subscription gets."""
        if len(self._parts) == 1:
            return self._selection.of(self._parts[0].ask(names), names)
        now: dict[Hashable, Snapshot] = {at: part.snapshot() for at, part in enumerate(self._parts)}
        if names is not self._selection.names or now != self._all.parts or not self._has_asked():
            now = dict(enumerate(self._ask(names)))
        return self._selection.of(self._all.of(now), names)

    def _ask(self, names: Names) -> Iterator[Snapshot]:
        """The snapshots of all parts with the resources of these names. Each is asked for what none before it has."""
        self._asked_for = []
        for part, lacking in zip_longest(self._parts, self._lacking):
            self._asked_for.append(names)
            snapshot = part.ask(names)
            yield snapshot
            if lacking is not None:
                names = lacking.of(snapshot, names)

    def _has_asked(self) -> bool:
        """False if a part has forgotten a name since ``_ask``: nobody seemed to request it for a while."""
        return all(part.has_asked(names) for part, names in zip(self._parts, self._asked_for, strict=True))

    def parts(self) -> Iterator[ResourceSet]:
        """The sets whose resources are made of objects."""
        return (part for part in self._parts if isinstance(part, ResourceSet))

    def awaited(self) -> frozenset[str]:
        return self._own.awaited if self._own is not None else NO_NAMES

    def get(self, name: str) -> Resource | None:
        for part in self._parts:
            found = part.get(name)
            if found is not None:
                return found
        return None

    def work(self, names: Names) -> Iterator[None]:
        """Generate the plans and the resources of these names, one a step; see ``ResourceSet.work``."""
        for part, lacking in zip_longest(self._parts, self._lacking):
            if isinstance(part, ResourceSet):
                yield from part.work(names)
            if names and lacking is not None:
                names = lacking.of(part.snapshot(), names)
