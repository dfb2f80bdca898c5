"""What tells services that hold no query that they may have changed: a few queries that each cover all of them.

- A check that turns critical or warning, or ceases to be so, comes into ``/v1/health/state`` or goes: it names its
  service.
- An instance that is registered, changed or gone moves the index of the catalog; a node that is, that of the nodes.
  Neither says which services: that is found out (``sweeper``).

That these are all ways in which the instances of a service can change was found out by trying; see
``docs/decisions/005-many-services-of-consul.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import attrs
import trio

from mesh_pilot.sources.consul.api import Answer, ConsulApi
from mesh_pilot.sources.consul.crowd import Crowd, Query
from mesh_pilot.sources.consul.follow import Take
from mesh_pilot.sources.consul.sweeper import Sweeper

UNHEALTHY = ("critical", "warning")
"""States of checks that are few, mostly."""

Check = tuple[str, str, str]
"""Node, id and service; the service is empty for a check of the node."""


@attrs.define
class Triggers:
    """State: the unhealthy checks by their state, and the indexes that were seen last."""

    crowd: Crowd
    sweeper: Sweeper
    services_on: Callable[[str], Iterable[str]]
    """The services with an instance on a node."""
    begun: trio.Event = attrs.field(factory=trio.Event, init=False)
    """Set once all of them were answered: what changes from then on is told."""
    _checks: dict[str, frozenset[Check]] = attrs.field(factory=dict, init=False)
    _indexes: dict[str, int] = attrs.field(factory=dict, init=False)

    def followed(self, api: ConsulApi) -> Iterable[tuple[str, Query, Take]]:
        """What to follow besides the catalog, each with what takes its answers."""
        for state in UNHEALTHY:
            yield f"the {state} checks", partial(api.checks, state), partial(self._take_checks, state)
        yield "the nodes", api.nodes, partial(self.take_index, "nodes")

    async def take_index(self, what: str, answer: Answer, is_lost: bool) -> None:
        """The index of something that says that some service changed, but not which."""
        before = self._indexes.get(what)
        self._indexes[what] = answer.index
        self._note_beginning()
        if before != answer.index and (before is not None or self.crowd.is_known):
            self.sweeper.want(answer.index if what == "catalog" else 0)

    async def _take_checks(self, state: str, answer: Answer, is_lost: bool) -> None:
        entries = answer.data if isinstance(answer.data, list) else []
        found = frozenset(_check(entry) for entry in entries if isinstance(entry, Mapping))
        changed = found ^ self._checks.get(state, frozenset())
        self._checks[state] = found
        self._note_beginning()
        self.crowd.call({service for _, _, service in changed if service})
        for node in {node for node, _, service in changed if not service}:
            self.crowd.call(self.services_on(node))

    def _note_beginning(self) -> None:
        if len(self._checks) == len(UNHEALTHY) and "nodes" in self._indexes:
            self.begun.set()


def _check(entry: Mapping[str, object]) -> Check:
    return (str(entry.get("Node", "")), str(entry.get("CheckID", "")), str(entry.get("ServiceName") or ""))
