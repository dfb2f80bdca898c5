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

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial

import attrs
import trio

from mesh_pilot.sources.consul.api import Answer, ConsulApi, ConsulError
from mesh_pilot.sources.consul.blocking_query import TakeAnswer
from mesh_pilot.sources.consul.query_pool import PooledQuery, QueryPool
from mesh_pilot.sources.consul.settings import ConsulTiming

UNHEALTHY = ("critical", "warning")
"""States of checks that are few, mostly."""

_SETTLE_SECONDS = 0.1
_SUMMARY_SHARE = 0.2
_REFRESH_SHARE = 0.25
"""The largest share of the time for summaries and for reading every service, so that others get at Consul too."""

CheckId = tuple[str, str, str]
"""Node, id and service of a check; the service is empty for a check of the node."""


class ChangeFinder:
    """Has those services read that may have changed. State: the index of the last change, and the last summary.

    1. Services with a slot show their changes themselves.
    2. Else a summary of all services is compared with the one before: it shows which have other instances.
    3. If neither explains the change, every service is read, one after the other. As one change may hide behind
       another, that happens some time after an explained change too.
    """

    def __init__(self, pool: QueryPool, summary: Callable[[], Awaitable[Answer]], timing: ConsulTiming) -> None:
        self._pool = pool
        self._summary = summary
        self._sweep_seconds = timing.sweep_seconds
        self._changed = trio.Event()
        self._index = 0
        self._outlines: dict[str, object] | None = None
        self.sweeps = 0
        """The number of times that every service was read."""

    def __repr__(self) -> str:
        return f"<ChangeFinder after {self.sweeps} sweeps>"

    def note_change(self, index: int) -> None:
        """Some service changed at `index`; 0: it is not known when, and a summary would not show it."""
        self._index = index
        self._changed.set()

    async def run(self) -> None:
        """Find the changed services after each change, until cancelled."""
        await self._compare_summaries()
        while True:
            await self._changed.wait()
            with trio.move_on_after(self._sweep_seconds):
                while await self._is_explained():
                    await self._changed.wait()
            await self._resting(self._pool.refresh_all, _REFRESH_SHARE)
            self.sweeps += 1

    async def _is_explained(self) -> bool:
        """True if the changed service was found, or if there are newer changes to look into."""
        self._changed = trio.Event()
        await trio.sleep(_SETTLE_SECONDS)
        index = self._index
        if index and not self._pool.explains(index):
            await self._resting(self._compare_summaries, _SUMMARY_SHARE)
        return self._changed.is_set() or self._pool.explains(index)

    async def _compare_summaries(self) -> None:
        """Have the services read whose summary differs from the last one."""
        try:
            answer = await self._summary()
        except ConsulError:
            return
        entries = answer.data if isinstance(answer.data, list) else []
        found = {str(entry.get("Name")): _outline(entry) for entry in entries if isinstance(entry, Mapping)}
        if self._outlines is not None:
            before = self._outlines
            await self._pool.refresh([name for name in found if found[name] != before.get(name)])
        self._outlines = found

    async def _resting(self, work: Callable[[], Awaitable[None]], share: float) -> None:
        """Work, then rest so that the work takes this share of the time; new changes wait."""
        began = trio.current_time()
        await work()
        await trio.sleep((trio.current_time() - began) * (1 / share - 1))


@attrs.define
class ChangeTriggers:
    """The queries that cover all services. State: the unhealthy checks by their state, and the last indexes."""

    pool: QueryPool
    finder: ChangeFinder
    services_on: Callable[[str], Iterable[str]]
    """The services with an instance on a node."""
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
        if before != answer.index and (before is not None or self.pool.is_known):
            self.finder.note_change(answer.index if what == "catalog" else 0)

    async def _take_checks(self, state: str, answer: Answer, is_lost: bool) -> None:
        entries = answer.data if isinstance(answer.data, list) else []
        found = frozenset(_check_id(entry) for entry in entries if isinstance(entry, Mapping))
        changed = found ^ self._checks.get(state, frozenset())
        self._checks[state] = found
        self._note_beginning()
        self.pool.mark_changed({service for _, _, service in changed if service})
        for node in {node for node, _, service in changed if not service}:
            self.pool.mark_changed(self.services_on(node))

    def _note_beginning(self) -> None:
        if len(self._checks) == len(UNHEALTHY) and "nodes" in self._indexes:
            self.begun.set()


def _outline(entry: Mapping[str, object]) -> object:
    """The instances in a summary of a service; states of checks are noticed otherwise."""
    return {key: value for key, value in entry.items() if not key.startswith("Checks")}


def _check_id(entry: Mapping[str, object]) -> CheckId:
    return (str(entry.get("Node", "")), str(entry.get("CheckID", "")), str(entry.get("ServiceName") or ""))
