"""The change finder: which services have changed, of those without a blocking query.

A few queries cover all services:

- A check that turns critical or warning, or ceases to be so, comes into ``/v1/health/state`` or goes: it names its
  service.
- An instance that is registered, changed or gone moves the index of the catalog; a node that is, that of the nodes.
  Neither names the services: `ChangeFinder` finds them.

That these are all ways in which the instances of a service can change was found out by trying; see
``docs/decisions/005-many-services-of-consul.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

import attrs
import trio

from mesh_pilot.base.reading import as_objects
from mesh_pilot.consul.client.api import Answer, ConsulApi
from mesh_pilot.consul.client.blocking_query import TakeAnswer
from mesh_pilot.consul.client.client import ConsulError
from mesh_pilot.consul.client.query_pool import PooledQuery, QueryPool
from mesh_pilot.consul.client.settings import ConsulTiming
from mesh_pilot.consul.source.chore import Chore
from mesh_pilot.consul.source.instance import ConsulInstance

UNHEALTHY = ("critical", "warning")
"""States of checks that are few, mostly."""

_SETTLE_SECONDS = 0.1
_SUMMARY_SHARE, _SUMMARY_REST_SECONDS = 0.2, 0.5
"""A rest is short on a busy machine, too: what was removed gets requests until the next one."""
_COMPARISON_SHARE, _COMPARISON_REST_SECONDS = 0.25, 1.5
_ROUND_SHARE = 0.25
_FEW = 100
"""Services that are read without a round, even if they are most of all."""
_BATCH = 64
"""Operations that every version of Consul takes in one transaction."""
_WORKERS = 3


class ChangeQueries(Protocol):
    """The questions of a finder. Each raises ConsulError."""

    async def summary(self) -> Answer: ...

    async def node_indexes(self) -> Mapping[str, int]: ...

    async def modified_at(self, instances: Sequence[tuple[str, str]]) -> Sequence[int] | None: ...


class ChangeFinder:
    """Has those services read that may have changed.

    State: the index of the last change, until it is looked for; the outline of each service in the last summary, as a
    hash; the indexes of the nodes; and the
    riddle, the index of a change that nothing found so far explains, or 0.

    1. Services with a slot show their changes themselves.
    2. A summary of all services, compared with the one before, shows which have other instances.
    3. Instances that were changed in place, or replaced on their node, are in no summary: the indexes of the known ones
       are asked for, many at once. That happens at once if nothing else explains the change, else soon, as one
       change may hide behind another.
    4. If that shows nothing either (a filter hides the instance, or Consul has no summaries), every service is read.

    Summaries, comparisons and rounds are separate tasks. Summaries wait for none of the others.
    """

    def __init__(
        self,
        pool: QueryPool,
        queries: ChangeQueries,
        instances: Callable[[], Mapping[str, Sequence[ConsulInstance]]],
        timing: ConsulTiming,
    ) -> None:
        """`instances`: those known of each service."""
        self._pool = pool
        self._queries = queries
        self._instances = instances
        self._hidden_seconds = timing.hidden_seconds
        self._index = 0
        self._outlines: dict[str, int] | None = None
        self._nodes: Mapping[str, int] | None = None
        self._are_nodes_due = False
        self._riddle = 0
        self._summary = Chore(self._take_summary, _SUMMARY_SHARE, _SUMMARY_REST_SECONDS)
        self._comparison = Chore(self._compare, _COMPARISON_SHARE, _COMPARISON_REST_SECONDS)
        self._round = Chore(pool.refresh_all, _ROUND_SHARE)

    @property
    def rounds(self) -> int:
        """The times that every service was read."""
        return self._round.runs

    @property
    def comparisons(self) -> int:
        """The times that all instances were compared."""
        return self._comparison.runs

    def __repr__(self) -> str:
        return f"<ChangeFinder after {self.comparisons} comparisons and {self.rounds} rounds>"

    def note_catalog(self, index: int) -> None:
        """Some service changed at `index`."""
        self._index = index
        self._summary.ask(_SETTLE_SECONDS)

    def note_nodes(self) -> None:
        """Some node changed."""
        self._are_nodes_due = True
        self._summary.ask(_SETTLE_SECONDS)

    def note_anything(self) -> None:
        """Anything may have changed: Consul has lost its data, or nothing was followed so far."""
        self._round.ask()

    async def run(self) -> None:
        """Find the changed services after each change, until cancelled."""
        await self._find_nodes()
        await self._find_in_summary()
        async with trio.open_nursery() as nursery:
            for chore in (self._summary, self._comparison, self._round):
                nursery.start_soon(chore.run)

    async def _take_summary(self) -> None:
        index, self._index = self._index, 0
        if self._are_nodes_due:
            self._are_nodes_due = False
            if not await self._find_nodes():
                self._round.ask()
        found = await self._find_in_summary()
        if found is None:
            self._round.ask()
        if not index:
            return
        is_explained = bool(found) or self._pool.explains(index)
        if not is_explained:
            self._riddle = index
        self._comparison.ask(self._hidden_seconds if is_explained else 0.0)

    async def _compare(self) -> None:
        riddle, self._riddle = self._riddle, 0
        found = await self._find_in_comparison()
        if found is None or (riddle and not found and not self._pool.explains(riddle)):
            self._round.ask()

    async def _find_nodes(self) -> bool:
        """Have the services read that have an instance on a node that has changed; False: Consul does not say."""
        try:
            found = await self._queries.node_indexes()
        except ConsulError:
            return False
        before, self._nodes = self._nodes, found
        if before is not None:
            changed = {name for name in found.keys() | before.keys() if found.get(name) != before.get(name)}
            await self._pool.refresh(services_on(self._instances(), changed))
        return before is not None

    async def _find_in_summary(self) -> bool | None:
        """Have the services read whose summary is another one; True if there are any, None if Consul does not say."""
        try:
            answer = await self._queries.summary()
        except ConsulError:
            return None
        own = (entry for entry in as_objects(answer.data) if not entry.get("PeerName"))
        found = {str(entry.get("Name")): _outline(entry) for entry in own}
        before, self._outlines = self._outlines, found
        if before is None:
            return False
        changed = [name for name in found.keys() | before.keys() if found.get(name) != before.get(name)]
        if len(changed) > max(_FEW, len(found) / 2):
            # As while a Consul that was started again reads its data: who comes meanwhile must not wait for all these.
            self._round.ask()
        else:
            await self._pool.refresh(changed)
        return bool(changed)

    async def _find_in_comparison(self) -> bool | None:
        """Have the services read that have an instance with another index; None if Consul does not say them."""
        known: dict[tuple[str, str], tuple[str, int]] = {}
        for name, instances in self._instances().items():
            if self._pool.is_pending(name):
                known |= {(each.node, each.id): (name, each.modified_at) for each in instances if each.modified_at}
        changed: set[str] = set()
        every = list(known.items())
        batches = iter([every[start : start + _BATCH] for start in range(0, len(every), _BATCH)])
        is_said = True

        async def work() -> None:
            nonlocal is_said
            for batch in batches:
                await self._summary.wait_rested()  # whoever comes or goes is more urgent
                try:
                    found = await self._queries.modified_at([where for where, _ in batch])
                except ConsulError:
                    found = None
                if found is None:
                    is_said = False
                    return
                here = {name for (_, (name, index)), now in zip(batch, found, strict=True) if now != index} - changed
                changed.update(here)
                await self._pool.refresh(here)

        async with trio.open_nursery() as nursery:
            for _ in range(_WORKERS):
                nursery.start_soon(work)
        return bool(changed) if is_said else None


def services_on(known: Mapping[str, Sequence[ConsulInstance]], nodes: set[str]) -> list[str]:
    """The services with an instance on one of these nodes."""
    return [name for name, instances in known.items() if any(each.node in nodes for each in instances)]


CheckId = tuple[str, str, str]
"""Node, id and service of a check; the service is empty for a check of the node."""


@attrs.define
class ChangeTriggers:
    """The queries that cover all services. State: the unhealthy checks by their state, and the last indexes."""

    pool: QueryPool
    finder: ChangeFinder
    instances: Callable[[], Mapping[str, Sequence[ConsulInstance]]]
    """The known ones of each service."""
    begun: trio.Event = attrs.field(factory=trio.Event, init=False)
    """Set once each was answered: changes from then on are noticed."""
    _checks: dict[str, frozenset[CheckId]] = attrs.field(factory=dict, init=False)
    _indexes: dict[str, int] = attrs.field(factory=dict, init=False)

    def queries(self, api: ConsulApi) -> Iterable[tuple[str, PooledQuery, TakeAnswer]]:
        """The queries to run in addition to that of the catalog."""
        for state in UNHEALTHY:
            yield f"the {state} checks", partial(api.checks, state), partial(self._take_checks, state)
        yield "the nodes", api.nodes, partial(self.take_index, "nodes")

    async def take_index(self, what: str, answer: Answer, is_lost: bool) -> None:
        """Take the index of a query that shows that some service changed, but not which."""
        before = self._indexes.get(what)
        self._indexes[what] = answer.index
        self._note_beginning()
        if is_lost or (before is None and self.pool.is_known):
            self.finder.note_anything()
        if before not in (None, answer.index):
            if what == "catalog":
                self.finder.note_catalog(answer.index)
            else:
                self.finder.note_nodes()

    async def _take_checks(self, state: str, answer: Answer, is_lost: bool) -> None:
        found = frozenset(map(_check_id, as_objects(answer.data)))
        changed = found ^ self._checks.get(state, frozenset())
        self._checks[state] = found
        self._note_beginning()
        self.pool.mark_changed({service for _, _, service in changed if service})
        if nodes := {node for node, _, service in changed if not service}:
            self.pool.mark_changed(services_on(self.instances(), nodes))

    def _note_beginning(self) -> None:
        if len(self._checks) == len(UNHEALTHY) and "nodes" in self._indexes:
            self.begun.set()


def _outline(entry: Mapping[str, object]) -> int:
    """The instances in a summary of a service, as a hash of 64 bits, which is all that many services should take.

    States of checks are noticed otherwise.
    """
    return hash(repr([part for part in entry.items() if not part[0].startswith("Checks")]))


def _check_id(entry: Mapping[str, object]) -> CheckId:
    return (str(entry.get("Node", "")), str(entry.get("CheckID", "")), str(entry.get("ServiceName") or ""))
