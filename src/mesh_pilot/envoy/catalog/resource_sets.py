"""Live sets of resources: a plan kept up to date and handed out as snapshots, shared by all proxies that read it.

A set watches its plan (which resources there are) and each resource it was asked for. After a change it brings up
to date only those that may have changed. The next snapshot differs from the last one by those whose bytes really did.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Set
from contextlib import suppress
from itertools import islice
from types import MappingProxyType
from typing import Any, TypeVar
from weakref import ref

import attrs
import structlog

from mesh_pilot.envoy.catalog.failures import Failure, Failures, failure_of
from mesh_pilot.incremental import ByName, Memo, Query, Watch
from mesh_pilot.mesh.proxy.scope import Plan, PlanShards, ResourceQuery
from mesh_pilot.model.resource import Resource
from mesh_pilot.security.secrets import IdentitySet
from mesh_pilot.snapshots import EMPTY, Join, Selection, Snapshot, SnapshotStore, joined, without

log = structlog.get_logger(scope="envoy")

P = TypeVar("P", Plan, PlanShards)

_UNPLANNED: Plan = MappingProxyType({})
"""The plan of a shard that was never generated."""

AT_ONCE = 500
"""Resources that are let go of before others get their turn."""


@attrs.frozen
class SetStatistics:
    resources: int
    readers: int
    failed: int
    """Resources whose translator raised and that stand at their last good bytes, or are missing."""


class LiveSet:
    """The resources of one plan (all of them, for wildcards) or of one function of a name (those asked for).

    Of a plan, only the shards that changed are looked through.
    """

    def __init__(
        self,
        memo: Memo,
        type_url: str,
        resources: Query[PlanShards] | ByName[Resource | None],
        store: SnapshotStore,
        failures: Failures | None = None,
    ) -> None:
        self.type_url = type_url
        self._store = store
        self._plan = resources if isinstance(resources, Query) else None
        self._named = resources if isinstance(resources, ByName) else None
        self._watch = Watch(memo, self._wake)
        self._shards: dict[Query[Any], Plan] = {}
        """The shards of the plan as they were followed last."""
        self._names: dict[Query[Any], str] = {}
        self._calls: dict[str, ResourceQuery] = {}
        """The resources of a plan. Of a function of names that follows from the name, and ``_asked`` has those."""
        self._asked: dict[str, None] = {}
        self._asked_sets: dict[int, ref[frozenset[str]]] = {}
        """Sets of names that are all in ``_asked``, by identity: to compare two of them costs as much as to ask."""
        self._ahead: dict[ResourceQuery, None] = {}
        """Resources that were made before the plan is followed, see ``work``."""
        self._is_ahead = False
        """Whether those are all of the plan."""
        self._snapshot = EMPTY
        """The last one handed out, and since then: """
        self._changes: dict[str, Resource | None] = {}
        """Resources that changed, None for those that are gone."""
        self._failed: dict[Hashable, Failure] = {}
        """By the name of the resource; of a plan, by itself."""
        self._failures = failures or Failures()
        self._wakers: dict[Hashable, Callable[[], None]] = {}
        self._planned = False
        self._fresh = False

    def __repr__(self) -> str:
        state = "fresh" if self._fresh else "stale"
        return f"<LiveSet {self.type_url.rpartition('.')[2]} {len(self._snapshot)} {state}>"

    def statistics(self) -> SetStatistics:
        return SetStatistics(len(self._snapshot), len(self._wakers), len(self._failed))

    @property
    def is_plan(self) -> bool:
        """Whether it is of a plan, and not of a function of names."""
        return self._plan is not None

    # -- reading

    def snapshot(self) -> Snapshot:
        """All of a plan; of a function of names, what there is of the names that anybody asked for."""
        self._refresh()
        if self._changes:
            puts = [resource for resource in self._changes.values() if resource is not None]
            drops = [name for name, resource in self._changes.items() if resource is None]
            self._snapshot = self._store.edit(self._snapshot, puts, drops)
            self._changes = {}
        return self._snapshot

    def _refresh(self) -> None:
        """Bring everything up to date that may have changed."""
        if self._fresh:
            return
        self._fresh = True
        taken = self._watch.take()
        if self._plan is not None:
            self._follow_plan(self._plan, taken)
        for query in taken:
            name = self._names.get(query) if self._plan is not None else query.args[-1]
            if name is not None:
                self._update(name)

    def ask(self, names: frozenset[str]) -> Snapshot:
        """A snapshot with what there is of these names, among others. Costs nothing if all were asked for before."""
        if not self.has_asked(names):
            for name in names:
                self.get(name)
            self._note_asked(names)
        return self.snapshot()

    def has_asked(self, names: frozenset[str]) -> bool:
        """True if ``ask`` or ``work`` has dealt with this set of names, and none was forgotten since."""
        if self._named is None:
            return True
        found = self._asked_sets.get(id(names))
        return found is not None and found() is names

    def _note_asked(self, names: frozenset[str]) -> None:
        asked, key = self._asked_sets, id(names)
        asked[key] = ref(names, lambda _: asked.pop(key, None))

    def work(self, names: frozenset[str]) -> Iterator[None]:
        """Make what a reader of all, or of these names, will need: one resource after each step, none if all are there.

        It may be left at any step, and begun again. Reading without it does the same work at once.
        """
        if self._named is not None:
            if self.has_asked(names):
                return
            for name in names:
                if name not in self._asked:
                    yield
                    self.get(name)
            self._note_asked(names)
        elif not (self._planned or self._is_ahead):
            yield from self._work_ahead()
            self._is_ahead = True

    def _work_ahead(self) -> Iterator[None]:
        """Make the resources of a plan that was never followed. They are watched, and therefore stay until it is."""
        assert self._plan is not None
        yield
        for shard in self._planned_by(self._plan) or ():
            yield
            for call in (self._planned_by(shard) or {}).values():
                if call not in self._ahead:
                    yield
                    self._ahead[call] = None
                    # One that fails does so again, and is reported, when the plan is followed.
                    with suppress(Exception):
                        self._watch.get(call)

    def asked(self) -> tuple[str, ...]:
        """The names that a function of names was asked for, whether or not there is such a resource."""
        return tuple(self._asked)

    def get(self, name: str) -> Resource | None:
        """One resource. A function of names is asked for it, and from then on followed."""
        self._refresh()
        if self._named is not None and name not in self._asked:
            self._asked[name] = None
            self._update(name)
        return self._current(name)

    def _current(self, name: str) -> Resource | None:
        return self._changes[name] if name in self._changes else self._snapshot.entries.get(name)

    def keep(self, wanted: Callable[[], Set[str]]) -> Iterator[None]:
        """Forget what a function of names was asked for besides what is wanted: nobody follows it any more.

        Pauses after ``AT_ONCE`` names, and then asks again what is wanted, for readers may have come.
        """
        while self._named is not None and (unwanted := self._asked.keys() - wanted()):
            # A reader that asks for one of these from now on finds that it has to be made again.
            self._asked_sets.clear()
            for name in islice(unwanted, AT_ONCE):
                del self._asked[name]
                self._watch.drop(self._named.query(name))
                self._failed.pop(name, None)
                self._set(name, None)
            yield

    def failures(self) -> Mapping[Hashable, Failure]:
        """What cannot be generated now."""
        return self._failed

    # -- who reads

    def readers(self) -> tuple[Hashable, ...]:
        return tuple(self._wakers)

    def attach(self, reader: Hashable, wake: Callable[[], None]) -> None:
        self._wakers[reader] = wake

    def detach(self, reader: Hashable) -> bool:
        """Returns whether nobody reads the set any more."""
        self._wakers.pop(reader, None)
        return not self._wakers

    def close(self) -> Iterator[None]:
        """Let go of everything, with a pause after ``AT_ONCE`` resources. Nobody may read the set any more."""
        # What is left of it is in cycles: the less that is, the less has to wait for the garbage collector.
        self._names, self._calls, self._shards, self._snapshot, self._changes = {}, {}, {}, EMPTY, {}
        self._asked, self._asked_sets, self._ahead = {}, {}, {}
        closing = self._watch.close_slowly()
        while any(True for _ in islice(closing, AT_ONCE)):
            yield

    # -- the mechanism

    def _wake(self) -> None:
        self._fresh = False
        for wake in self._wakers.values():
            wake()

    def _follow_plan(self, plan: Query[PlanShards], taken: Collection[Query[Any]]) -> None:
        """Bring the names up to those of the plan; costs what is in its shards that changed."""
        gone: list[Query[Any]] = []
        changed = [query for query in taken if query in self._shards]
        if not self._planned or plan in taken:
            shards = self._planned_by(plan)
            if shards is None:
                return
            self._planned = True
            wanted = dict.fromkeys(shards)
            stale = frozenset(taken)
            gone = [shard for shard in self._shards if shard not in wanted]
            changed = [shard for shard in wanted if shard not in self._shards or shard in stale]
        before: dict[str, ResourceQuery] = {}
        after: dict[str, ResourceQuery] = {}
        for shard in gone:
            before.update(self._shards.pop(shard))
            self._failed.pop(shard, None)
            self._watch.drop(shard)
        for shard in changed:
            old = self._shards.setdefault(shard, _UNPLANNED)
            calls = self._planned_by(shard)
            if calls is not None:
                before.update(old)
                after.update(calls)
                self._shards[shard] = calls
        self._follow_calls(before, after)
        if self._ahead and self._planned:
            for call in self._ahead.keys() - self._names.keys():
                self._watch.drop(call)
            self._ahead = {}

    def _planned_by(self, plan: Query[P]) -> P | None:
        """The value of the plan or of a shard of it; None if it cannot be generated."""
        try:
            planned = self._watch.get(plan)
        except Exception as error:
            stays = self._planned if plan == self._plan else self._shards.get(plan, _UNPLANNED) is not _UNPLANNED
            if self._is_news(plan, failure_of(error, self.type_url, repr(plan), stays=stays, is_plan=True)):
                log.error(
                    "cannot plan resources; the last plan stays", type=self.type_url, plan=repr(plan), exc_info=error
                )
            return None
        self._failed.pop(plan, None)
        return planned

    def _follow_calls(self, before: Plan, after: Plan) -> None:
        for name, call in before.items():
            if after.get(name) != call:
                del self._calls[name], self._names[call]
                self._watch.drop(call)
                if name not in after:
                    self._failed.pop(name, None)
                    self._set(name, None)
        for name, call in after.items():
            if name not in self._calls:
                self._add(name, call)

    def _add(self, name: str, call: ResourceQuery) -> None:
        self._calls[name] = call
        self._names[call] = name
        self._update(name)

    def _update(self, name: str) -> None:
        try:
            resource = self._watch.get(self._calls[name] if self._named is None else self._named.query(name))
        except Exception as error:
            self._fail(name, error)
            return
        self._failed.pop(name, None)
        self._set(name, resource)

    def _set(self, name: str, resource: Resource | None) -> None:
        if self._current(name) != resource:
            self._changes[name] = resource

    def _fail(self, name: str, error: Exception) -> None:
        standing = self._current(name)
        stays = standing is not None
        configs = () if standing is None else tuple(str(c) for c in standing.configs)
        if self._is_news(name, failure_of(error, self.type_url, name, stays=stays, configs=configs)):
            log.error(
                "translator failed; " + ("the resource stays as it was" if stays else "the resource is missing"),
                type=self.type_url,
                resource=name,
                configs=list(configs),
                exc_info=error,
            )

    def _is_news(self, key: Hashable, failure: Failure) -> bool:
        """Note a failure, unless the same one stands."""
        standing = self._failed.get(key)
        if standing is not None and standing.error == failure.error:
            return False
        self._failed[key] = failure if standing is None else attrs.evolve(failure, since=standing.since)
        self._failures.note(self, failure)
        return True


Part = LiveSet | IdentitySet
"""A set that several proxies may share."""


class JoinedSet:
    """One proxy's resources of a type: sets without a name in common, read as one.

    Implements ``xds.resources.TypeResources``. State: the snapshots of the parts when they were last read, and what
    they came to. A proxy whose scope changes gets a new one.
    """

    def __init__(self, store: SnapshotStore, type_url: str, parts: tuple[Part, ...]) -> None:
        self.type_url = type_url
        self._parts = parts
        self._plans = tuple(part for part in parts if part.is_plan)
        self._wildcard = Join(store, joined)
        self._all = Join(store, joined)
        self._selection = Selection(store)
        self._asked_for: list[frozenset[str]] = []
        """For each part the names that it was asked for last, if there are several."""

    def snapshot(self) -> Snapshot:
        """All that a wildcard subscription gets."""
        if len(self._plans) == 1:
            return self._plans[0].snapshot()
        return self._wildcard.of({at: part.snapshot() for at, part in enumerate(self._plans)})

    def select(self, names: frozenset[str]) -> Snapshot:
        """The resources of these names, also ones that no wildcard subscription gets."""
        if len(self._parts) == 1:
            return self._selection.of(self._parts[0].ask(names), names)
        now: dict[Hashable, Snapshot] = {at: part.snapshot() for at, part in enumerate(self._parts)}
        if names is not self._selection.names or now != self._all.parts or not self._has_asked():
            now = dict(enumerate(self._ask(names)))
        return self._selection.of(self._all.of(now), names)

    def _ask(self, names: frozenset[str]) -> Iterator[Snapshot]:
        """The snapshots of all parts with what there is of these names; each is asked for what none before it has."""
        self._asked_for = []
        for part in self._parts:
            snapshot = part.ask(names)
            yield snapshot
            self._asked_for.append(names)
            names = without(names, snapshot.names)

    def _has_asked(self) -> bool:
        """False if a part has forgotten a name since ``_ask``: nobody seemed to request it for a while."""
        return all(part.has_asked(names) for part, names in zip(self._parts, self._asked_for, strict=True))

    def get(self, name: str) -> Resource | None:
        for part in self._parts:
            found = part.get(name)
            if found is not None:
                return found
        return None

    def asked(self) -> tuple[str, ...]:
        """The names that anybody asked for, of those parts that are functions of names."""
        return tuple(name for part in self._parts if isinstance(part, LiveSet) for name in part.asked())

    def work(self, names: frozenset[str]) -> Iterator[None]:
        """Make what a reader of all, or of these names, will need, one resource a step; see ``LiveSet.work``."""
        for part in self._parts:
            if isinstance(part, LiveSet):
                yield from part.work(names)
            if names and part is not self._parts[-1]:
                names = without(names, part.snapshot().names)
