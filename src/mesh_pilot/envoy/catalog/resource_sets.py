"""Sets of resources, kept up to date and handed out as snapshots, shared by all proxies that read them.

A set watches its plan (the list of resources) and each resource it was asked for. After a change it brings up to date
only those that may have changed. The next snapshot differs from the last one by those whose bytes really changed.

Why a set and not the memo table alone: streams need to know what changed since they looked, and to ask every resource
would cost the mesh for each change and each stream. The watch says which queries may have changed; a shard of the plan
is compared only if it is one of them, and a resource with equal bytes ends there.

Why reading is lazy and ``work`` is not: nothing is made that is not read. But the first reader of a large plan would
hold up all other streams for as long as it takes, so a stream walks through ``work`` step by step before it reads. Both
ways make the same; whoever is cancelled between two steps leaves a set that is only not finished.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Set
from contextlib import suppress
from itertools import islice
from types import MappingProxyType
from typing import Any, TypeVar
from weakref import ref

import attrs

from mesh_pilot.engine import ByName, Layer, Query, Watch
from mesh_pilot.engine.failures import Condition, Failures, OwnFailures, failure_of
from mesh_pilot.engine.patched import Names, is_akin, moved
from mesh_pilot.engine.snapshots import (
    EMPTY,
    NO_NAMES,
    Snapshot,
    SnapshotStore,
)
from mesh_pilot.mesh.proxy.plans import Plan, PlanShards, ResourceQuery
from mesh_pilot.model.resource import RESOURCE_TYPES, Resource

P = TypeVar("P", Plan, PlanShards)

_UNPLANNED: Plan = MappingProxyType({})
"""The plan of a shard that was never generated."""

EVICTION_SLICE = 500
"""Resources that are dropped before others get their turn."""


@attrs.frozen
class SetStatistics:
    resources: int
    readers: int
    failed: int
    """Resources whose translator raised: they stay at their last good bytes, or are missing."""


@attrs.frozen
class Missing:
    """The resources that could never be made."""

    lists: bool = False
    """True if lists of resources are among them: any name may be missing."""
    names: frozenset[str] = NO_NAMES

    def __bool__(self) -> bool:
        return self.lists or bool(self.names)

    def __or__(self, other: Missing) -> Missing:
        return Missing(self.lists or other.lists, self.names | other.names)

    def may_have(self, name: str) -> bool:
        return self.lists or name in self.names


class ResourceSet:
    """The resources of one plan, or of one function of a name: those that anybody asked for.

    A change of a plan costs the shards that it touches.

    Mutable state: the plan as it was followed last, the names asked for, the last snapshot with the changes since, and
    the readers to wake.
    """

    def __init__(
        self,
        layer: Layer,
        type_url: str,
        resources: Query[PlanShards] | ByName[Resource | None],
        store: SnapshotStore,
        failures: Failures | None = None,
    ) -> None:
        self.type_url = type_url
        self._layer = layer
        self._short = RESOURCE_TYPES[type_url].short
        self._store = store
        self._plan = resources if isinstance(resources, Query) else None
        self._named = resources if isinstance(resources, ByName) else None
        self.watch = Watch(layer, self._wake)
        """The watch of the plan and the resources."""
        self._shards: dict[Query[Any], Plan] = {}
        """The shards of the plan as they were followed last."""
        self._listed: PlanShards = ()
        """The plan as it was followed last."""
        self._names: dict[Query[Any], str] = {}
        """The names of the planned resources, by query."""
        self._queries: dict[str, ResourceQuery] = {}
        """The queries of the planned resources, by name."""
        self._asked: dict[str, None] = {}
        """The names that a function of names was asked for."""
        self._asked_sets: dict[int, ref[Names]] = {}
        """Sets of names that are all in ``_asked``, by identity: to compare two of them costs as much as to ask."""
        self._ahead: dict[ResourceQuery, None] = {}
        """Resources that were generated before the plan is followed, see ``work``."""
        self._is_ahead = False
        """True if those are all of the plan."""
        self._snapshot = EMPTY
        """The last one handed out."""
        self._changes: dict[str, Resource | None] = {}
        """The resources that changed since; None: removed."""
        self._failed = OwnFailures(failures or Failures(), self)
        """Failures by the name of the resource, or by the plan."""
        self._wakers: dict[Hashable, Callable[[str], None]] = {}
        self._planned = False
        self._fresh = False

    def __repr__(self) -> str:
        state = "fresh" if self._fresh else "stale"
        return f"<ResourceSet {self.type_url.rpartition('.')[2]} {len(self._snapshot)} {state}>"

    def statistics(self) -> SetStatistics:
        return SetStatistics(len(self._snapshot), len(self._wakers), len(self._failed))

    @property
    def is_plan(self) -> bool:
        """True for a plan: a wildcard subscription gets all of it. False for a function of names."""
        return self._plan is not None

    # -- reading

    def snapshot(self) -> Snapshot:
        """All of a plan; of a function of names, the resources of all names that anybody asked for."""
        if self._fresh and not self._changes:
            return self._snapshot
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
        taken = self.watch.take()
        if self._plan is not None:
            self._follow_plan(self._plan, taken)
        for query in taken:
            name = self.name_of(query)
            if name is not None:
                self._update(name)

    def ask(self, names: Names) -> Snapshot:
        """A snapshot with the resources of these names, among others. Costs nothing if all were asked for before."""
        if not self.has_asked(names):
            for name in self._unasked(names):
                self.get(name)
            self._note_asked(names)
        return self.snapshot()

    def has_asked(self, names: Names) -> bool:
        """True if ``ask`` or ``work`` has dealt with this set of names, and none was forgotten since."""
        if self._named is None:
            return True
        found = self._asked_sets.get(id(names))
        return found is not None and found() is names

    def _note_asked(self, names: Names) -> None:
        asked, key = self._asked_sets, id(names)
        asked[key] = ref(names, lambda _: asked.pop(key, None))

    def _unasked(self, names: Names) -> Iterator[str]:
        """The names that were not asked for. If they are akin to names that were, it costs the difference."""
        known = (found() for found in list(self._asked_sets.values()))
        akin = next((each for each in known if each is not None and is_akin(each, names)), None)
        return (name for name in (names if akin is None else moved(akin, names)) if name not in self._asked)

    def work(self, names: Names) -> Iterator[None]:
        """Generate the plan, or the resources of these names: one after each step, none if all were generated before.

        May be left at any step, and begun again. Reading without it does the same work at once.
        """
        if self._named is not None:
            if self.has_asked(names):
                return
            for name in self._unasked(names):
                yield
                self.get(name)
            self._note_asked(names)
        elif not (self._planned or self._is_ahead):
            yield from self._work_ahead()
            self._is_ahead = True

    def _work_ahead(self) -> Iterator[None]:
        """Generate the resources of a plan that was never followed. They are watched, and so stay until it is."""
        assert self._plan is not None
        yield
        for shard in self._planned_by(self._plan) or ():
            yield
            for query in (self._planned_by(shard) or {}).values():
                if query not in self._ahead:
                    yield
                    self._ahead[query] = None
                    # One that fails does so again, and is reported, when the plan is followed.
                    with suppress(Exception):
                        self.watch.get(query)

    def asked(self) -> tuple[str, ...]:
        """The names that a function of names was asked for, whether or not there is a resource."""
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

    def made(self, names: Iterable[str] | None = None) -> dict[str, Resource]:
        """The resources of these names as this set makes them; without ``names`` all that it has made.

        In snapshots an equal one of another set, made of other objects, may stand in for any of them.
        """
        known = self._queries.keys() if self._named is None else self._asked.keys()
        found = {}
        for name in known if names is None else [name for name in names if name in known]:
            query = self._queries[name] if self._named is None else self._named.query(name)
            # One that fails is told elsewhere, and what it was before says what it is made of.
            with suppress(Exception):
                # Not by the watch, which would forget that the value has changed.
                if (resource := query.get(self._layer.view)) is not None:
                    found[name] = resource
        return found

    def forget_unrequested(self, requested: Callable[[], Set[str]]) -> Iterator[None]:
        """Forget the names that a function of names was asked for, except those still requested.

        Pauses after ``EVICTION_SLICE`` names, and then looks again at what is requested, for readers may have come.
        """
        while self._named is not None and (unrequested := self._asked.keys() - requested()):
            # A reader that asks for one of these from now on finds that it has to be generated again.
            self._asked_sets.clear()
            for name in islice(unrequested, EVICTION_SLICE):
                del self._asked[name]
                self.watch.drop(self._named.query(name))
                self._failed.pop(name)
                self._set(name, None)
            yield

    def missing(self) -> Missing:
        """The resources that the set lacks because of failures."""
        failures = [failure for failure in self._failed if failure.state is Condition.MISSING]
        lists = any(failure.is_plan for failure in failures)
        return Missing(lists, frozenset(failure.name for failure in failures if not failure.is_plan))

    def name_of(self, query: Query[Any]) -> str | None:
        """The name of a resource that the set has now, by its query."""
        return self._names.get(query) if self._named is None else query.args[-1]

    # -- who reads

    def readers(self) -> tuple[Hashable, ...]:
        return tuple(self._wakers)

    def attach(self, reader: Hashable, wake: Callable[[str], None]) -> None:
        """``wake`` is called with the type when the set may have changed."""
        self._wakers[reader] = wake

    def detach(self, reader: Hashable) -> bool:
        """Returns True if the set has no reader left."""
        self._wakers.pop(reader, None)
        return not self._wakers

    def close(self) -> Iterator[None]:
        """Drop everything, with a pause after ``EVICTION_SLICE`` resources. The set must not be read after that."""
        # The rest is in reference cycles: the less there is, the less has to wait for the garbage collector.
        self._names, self._queries, self._shards, self._snapshot, self._changes = {}, {}, {}, EMPTY, {}
        self._asked, self._ahead = {}, {}
        self._asked_sets.clear()
        self._failed.clear()
        closing = self.watch.close_slowly()
        while any(True for _ in islice(closing, EVICTION_SLICE)):
            yield

    # -- the mechanism

    def _wake(self) -> None:
        self._fresh = False
        for wake in self._wakers.values():
            wake(self.type_url)

    def _follow_plan(self, plan: Query[PlanShards], taken: Collection[Query[Any]]) -> None:
        """Bring the names up to those of the plan; costs the shards that changed."""
        removed: list[Query[Any]] = []
        changed = [query for query in taken if query in self._shards]
        if not self._planned or plan in taken:
            shards = self._planned_by(plan)
            # If it failed, the last shards stay; they are followed all the same. So they are if it is as it was.
            if shards is not None and (shards is not self._listed or not self._planned):
                self._planned, self._listed = True, shards
                wanted = dict.fromkeys(shards)
                stale = frozenset(taken)
                removed = [shard for shard in self._shards if shard not in wanted]
                changed = [shard for shard in wanted if shard not in self._shards or shard in stale]
        # A name may move between shards, so all of them are compared together.
        before: dict[str, ResourceQuery] = {}
        after: dict[str, ResourceQuery] = {}
        for shard in removed:
            before.update(self._shards.pop(shard))
            self._failed.pop(shard)
            self.watch.drop(shard)
        for shard in changed:
            last = self._shards.setdefault(shard, _UNPLANNED)
            queries = self._planned_by(shard)
            if queries is not None:  # otherwise it failed, and the last plan of the shard stays
                before.update(last)
                after.update(queries)
                self._shards[shard] = queries
        self._follow_queries(before, after)
        if self._ahead and self._planned:
            for query in self._ahead.keys() - self._names.keys():
                self.watch.drop(query)
            self._ahead = {}

    def _planned_by(self, plan: Query[P]) -> P | None:
        """The value of the plan or of a shard of it; None if it cannot be generated."""
        try:
            planned = self.watch.get(plan)
        except Exception as error:
            stays = self._planned if plan == self._plan else self._shards.get(plan, _UNPLANNED) is not _UNPLANNED
            state = Condition.STALE if stays else Condition.MISSING
            self._failed.put(plan, failure_of(error, self._short, plan_name(plan), state, is_plan=True), error)
            return None
        self._failed.pop(plan)
        return planned

    def _follow_queries(self, before: Plan, after: Plan) -> None:
        for name, query in before.items():
            if after.get(name) != query:
                del self._queries[name], self._names[query]
                self.watch.drop(query)
                if name not in after:
                    self._failed.pop(name)
                    self._set(name, None)
        for name, query in after.items():
            if name not in self._queries:
                self._queries[name] = query
                self._names[query] = name
                self._update(name)

    def _update(self, name: str) -> None:
        try:
            resource = self.watch.get(self._queries[name] if self._named is None else self._named.query(name))
        except Exception as error:
            self._fail(name, error)
            return
        self._failed.pop(name)
        self._set(name, resource)

    def _set(self, name: str, resource: Resource | None) -> None:
        if self._current(name) != resource:
            self._changes[name] = resource

    def _fail(self, name: str, error: Exception) -> None:
        standing = self._current(name)
        state = Condition.MISSING if standing is None else Condition.STALE
        configs = () if standing is None else tuple(map(str, standing.configs))
        self._failed.put(name, failure_of(error, self._short, name, state, configs=configs), error)


def plan_name(plan: Query[Any]) -> str:
    """The functions that make a plan: ``unwrap_plan(patched_listeners)``. The same for all proxies."""
    inner = [plan_name(argument) for argument in plan.args if isinstance(argument, Query)]
    return f"{plan.derived.name}({', '.join(inner)})" if inner else plan.derived.name
