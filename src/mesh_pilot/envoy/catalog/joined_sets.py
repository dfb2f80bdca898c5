"""One proxy's resources of a type: sets that many proxies share, read as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from weakref import WeakValueDictionary

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


Selections = WeakValueDictionary[tuple[int, int], "SelectedParts"]
"""The selections in use, by the identity of joined parts and of names, which they keep: no others have it. They are
in one dictionary because one for each join takes 600 bytes."""


class Joins:
    """The joins of parts from which names are selected, one for all proxies that read the same.

    Plans are mostly joined with one of the proxy's own workload. Mutable state: the joins in use, and the selections.
    """

    def __init__(self, store: SnapshotStore) -> None:
        self._store = store
        self._joins: WeakValueDictionary[tuple[Part, ...], JoinedParts] = WeakValueDictionary()
        self._selected: Selections = WeakValueDictionary()

    def of(self, parts: tuple[Part, ...]) -> JoinedSet:
        """The resources of a proxy that has these parts."""
        if all(part.is_plan for part in parts):
            return JoinedSet(self._store, JoinedParts(self._store, parts, self._selected))
        found = self._joins.get(parts)
        if found is None:
            found = self._joins[parts] = JoinedParts(self._store, parts, self._selected)
        return JoinedSet(self._store, found)


class JoinedParts:
    """Parts without a name in common, read as one, for all proxies that have just these.

    So a change is joined and selected from once, however many proxies read it. State: the last snapshots.
    """

    def __init__(self, store: SnapshotStore, parts: tuple[Part, ...], selected: Selections) -> None:
        self.parts = parts
        self.own = next((part for part in parts if isinstance(part, IdentitySet)), None)
        self._store = store
        self._plans = tuple(part for part in parts if part.is_plan)
        self._seen: list[Snapshot] = []
        self._found = EMPTY
        # Most parts are read in one way, and what the other needs would take a third of a join's memory.
        self._wildcard: Join | None = None
        self._all: Join | None = None
        self._selected = selected

    def __repr__(self) -> str:
        return f"<JoinedParts {len(self.parts)} parts>"

    def snapshot(self) -> Snapshot:
        """All that a wildcard subscription gets."""
        if len(self._plans) == 1:
            return self._plans[0].snapshot()
        now = [part.snapshot() for part in self._plans]
        if now != self._seen:
            if self._wildcard is None:
                self._wildcard = Join(self._store, joined)
            self._seen, self._found = now, self._wildcard.of(dict(enumerate(now)))
        return self._found

    def selected(self, names: Names, before: SelectedParts | None) -> SelectedParts:
        """The selection of these names; a new one begins with what the proxy had selected ``before``."""
        key = (id(self), id(names))
        found = self._selected.get(key)
        if found is None:
            found = self._selected[key] = SelectedParts(self._store, self, names, before)
        return found

    def joined(self, snapshots: Sequence[Snapshot]) -> Snapshot:
        """Snapshots of all parts as one."""
        if self._all is None:
            self._all = Join(self._store, joined)
        return self._all.of(dict(enumerate(snapshots)))


class SelectedParts:
    """The resources of some names in joined parts.

    State: the snapshots of the parts when they were last read, and what was found in them.
    """

    def __init__(self, store: SnapshotStore, of: JoinedParts, names: Names, before: SelectedParts | None) -> None:
        self.names = names
        self._joined = of
        self._parts = of.parts
        self._selection = Selection(store)
        self._lacking = tuple(Lacking(store) for _ in self._parts[1:])
        """The names that all parts before it lack, for each part but the first."""
        self._asked_for: list[Names] = []
        """The names that each part was asked for last, if there are several parts."""
        self._seen: list[Snapshot] = []
        if before is not None:
            self._selection.begin_as(before._selection)
            for now, then in zip(self._lacking, before._lacking, strict=True):
                now.begin_as(then)

    def __repr__(self) -> str:
        return f"<SelectedParts {len(self.names)} names, {len(self.found)} found>"

    @property
    def found(self) -> Snapshot:
        """The resources handed out last."""
        return self._selection.found

    def snapshot(self) -> Snapshot:
        names = self.names
        if len(self._parts) == 1:
            return self._selection.of(self._parts[0].ask(names), names)
        now = [part.snapshot() for part in self._parts]
        if now != self._seen or not self._has_asked():
            self._seen = now = list(self._ask(names))
        return self._selection.of(self._joined.joined(now), names)

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
        """False if a part has forgotten a name since ``_ask``, as it seemed not to be requested for a while."""
        return all(part.has_asked(names) for part, names in zip(self._parts, self._asked_for, strict=True))

    def work(self) -> Iterator[None]:
        """Generate the plans and the resources of the names, one a step; see ``ResourceSet.work``."""
        names = self.names
        for part, lacking in zip_longest(self._parts, self._lacking):
            if isinstance(part, ResourceSet):
                yield from part.work(names)
            if names and lacking is not None:
                names = lacking.of(part.snapshot(), names)


class JoinedSet:
    """One proxy's resources of a type: sets without a name in common, read as one.

    Implements ``xds.ads.resources.TypeResources``. State: the snapshot handed out last, and the selection of the names
    that the proxy requests. A proxy whose scope changes gets a new one.
    """

    __slots__ = ("_joined", "_latest", "_selected", "_store")

    def __init__(self, store: SnapshotStore, of: JoinedParts) -> None:
        self._store = store
        self._joined = of
        self._selected: SelectedParts | None = None
        self._latest = EMPTY

    def __repr__(self) -> str:
        return f"<JoinedSet of {self._joined!r}>"

    @property
    def latest(self) -> Snapshot:
        """The resources handed out last."""
        return self._store.overlay(self._latest, EMPTY if self._selected is None else self._selected.found)

    def missing(self) -> Missing:
        """The resources that the parts lack because of failures."""
        found = Missing()
        for part in self._joined.parts:
            found |= part.missing() if isinstance(part, ResourceSet | AgentSettingsSet) else Missing()
        return found

    def snapshot(self) -> Snapshot:
        """All that a wildcard subscription gets."""
        self._latest = self._joined.snapshot()
        return self._latest

    def select(self, names: Names) -> Snapshot:
        """The resources of these names, also ones that no wildcard subscription gets."""
        return self._selection_of(names).snapshot()

    def _selection_of(self, names: Names) -> SelectedParts:
        selected = self._selected
        if selected is None or selected.names is not names:
            selected = self._selected = self._joined.selected(names, selected)
        return selected

    def parts(self) -> Iterator[ResourceSet]:
        """The sets whose resources are made of objects."""
        return (part for part in self._joined.parts if isinstance(part, ResourceSet))

    def awaited(self) -> frozenset[str]:
        own = self._joined.own
        return own.awaited if own is not None else NO_NAMES

    def get(self, name: str) -> Resource | None:
        for part in self._joined.parts:
            found = part.get(name)
            if found is not None:
                return found
        return None

    def work(self, names: Names) -> Iterator[None]:
        """Generate the plans and the resources of these names, one a step; see ``ResourceSet.work``."""
        return self._selection_of(names).work()
