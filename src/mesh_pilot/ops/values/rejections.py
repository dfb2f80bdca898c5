"""Problems of every kind, by list: ``/debug/rejections`` and the API's ``/rejections``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, islice
from typing import Any

import structlog
import trio

from mesh_pilot.base.containment import Contained
from mesh_pilot.model.json import Json, as_json
from mesh_pilot.net.rpc.rate_limits import LogLimiter
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values import objects, proxies, quarantine, rollout
from mesh_pilot.ops.values.conditions import condition_entries, connected_gateways
from mesh_pilot.ops.values.problems import at_proxies, internal_errors, listener_conflicts
from mesh_pilot.ops.values.sources import source_conditions

log = structlog.get_logger(scope="ops")

Seen = Callable[[dict[str, Any]], dict[str, Any] | None]
"""Gives what a caller may view of an entry; None: nothing."""

ENTRIES = 1000
"""Entries of each list, unless ``?limit=N`` asks for another number."""


class Rejections:
    """``/debug/rejections``: lists of problems, each bounded. State: the lists whose failure was logged."""

    def __init__(self, state: PlaneState) -> None:
        self._state = state
        self._limiter = LogLimiter()

    def listed(self, limit: int) -> Json:
        """The entries by list; ``more`` has the number of entries omitted from each."""
        return _joined({name: self._taken(name, entries, limit) for name, entries in self._lists().items()})

    async def listed_in_turns(self, limit: int, seen_of: Seen | None = None) -> Json:
        """The same, with what ``seen_of`` gives of each entry; proxies are served between two lists."""
        taken: dict[str, tuple[list[Json], int]] = {}
        for name, entries in self._lists().items():
            taken[name] = self._taken(name, entries, limit, seen_of)
            await trio.lowlevel.checkpoint()
        return _joined(taken)

    def _lists(self) -> dict[str, Callable[[], Iterable[object]]]:
        state = self._state
        found = state.catalog.diagnostics()
        ignored = (supervisor.statistics() for supervisor in state.supervisors)
        return {
            "sources": lambda: source_conditions(state),
            "configs": lambda: objects.rejections(state.world),
            "warnings": lambda: chain(objects.warnings(state.world), objects.ignored(ignored)),
            "conditions": lambda: condition_entries(state.world, connected_gateways(state)),
            "internal": lambda: internal_errors(state.failures()),
            "quarantined": lambda: quarantine.quarantined_objects(state),
            "trials": lambda: quarantine.trials(state),
            "held": lambda: quarantine.refusals_on_hold(state),
            "taken_back": lambda: rollout.taken_back(state),
            "proxies": lambda: proxies.recent_nacks(state),
            "patches": lambda: at_proxies(found.patches()),
            "listeners": lambda: listener_conflicts(found.conflicts()),
            "authorization": lambda: at_proxies(found.denied()),
            "credentials": lambda: at_proxies(found.credentials()),
            "zones": lambda: at_proxies(found.zones()),
        }

    def _taken(
        self,
        name: str,
        entries: Callable[[], Iterable[object]],
        limit: int,
        seen_of: Seen | None = None,
    ) -> tuple[list[Json], int]:
        """The first entries of a list, and the number of the others. A list that cannot be made has its error."""
        with Contained(log, "cannot list rejections", list=name, is_logged=lambda: self._is_news(name)) as failed:
            if seen_of is not None:
                shown: list[Any] = [as_json(each) for each in entries()]
                seen: list[Json] = [entry for each in shown if (entry := seen_of(each)) is not None]
                return seen[:limit], len(seen[limit:])
            left = iter(entries())
            return [as_json(each) for each in islice(left, limit)], sum(1 for _ in left)
        return [{"error": f"cannot be listed: {type(failed.error).__name__}: {failed.error}"}], 0

    def _is_news(self, name: str) -> bool:
        return self._limiter.admit(name, time.monotonic()) is not None


def _joined(taken: Mapping[str, tuple[list[Json], int]]) -> Json:
    found: dict[str, Json] = {name: entries for name, (entries, _) in taken.items()}
    more: dict[str, Json] = {name: rest for name, (_, rest) in taken.items() if rest}
    return {**found, "more": more} if more else found


def merged(pages: Mapping[int, Any]) -> Json:
    """The lists of several workers as one. What more than one of them lists is there once: they serve the same."""
    found: dict[str, dict[str, Json]] = {}
    more: dict[str, int] = {}
    for page in pages.values():
        for name, entries in page.items():
            if name == "more":
                more |= {part: max(count, more.get(part, 0)) for part, count in entries.items()}
            else:
                found.setdefault(name, {}).update((json.dumps(entry, sort_keys=True), entry) for entry in entries)
    lists: dict[str, Json] = {name: [*entries.values()] for name, entries in found.items()}
    return {**lists, "more": more} if more else lists
