"""Sudden emptiness: objects that are missing from an answer of Consul are kept for a while.

An answer without any object, or one after Consul has started again, is more often an accident than meant: servers that
lost their data, a token that lost its rights. Taken at its word it would take a whole mesh from its proxies, while the
missing objects are on their way back. So what is missing stays until it is there again, or for as long as is set.
"""

from __future__ import annotations

import structlog
import trio

log = structlog.get_logger(scope="sources")


class HoldOver:
    """The questions whose answers lack objects that are kept. State: since when each does."""

    def __init__(self, source: str, hold_seconds: float) -> None:
        self._source = source
        self._hold_seconds = hold_seconds
        self._since: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<HoldOver of {self._source}: {', '.join(self.held) or 'nothing'}>"

    @property
    def held(self) -> tuple[str, ...]:
        """The questions, for people."""
        return tuple(sorted(self._since))

    def forget(self, what: str) -> None:
        self._since.pop(what, None)

    def is_over(self, what: str) -> bool:
        """True if what is missing of an answer was kept for as long as it may be."""
        since = self._since.get(what)
        return since is not None and since + self._hold_seconds <= trio.current_time()

    def keep_seconds(self, what: str, is_suspect: bool, is_missing: bool) -> float:
        """Seconds for which objects that are missing from an answer are kept; 0: they are gone."""
        now = trio.current_time()
        if not is_missing:
            self._since.pop(what, None)
            return 0.0
        if what not in self._since:
            if not is_suspect:
                return 0.0
            self._since[what] = now
            if not service_at(what):
                log.warning(
                    "Consul returned fewer objects than before; the missing ones are kept for now",
                    source=self._source,
                    what=what,
                    seconds=self._hold_seconds,
                )
        left = self._since[what] + self._hold_seconds - now
        if left <= 0:
            del self._since[what]
        return max(left, 0.0)


def service_place(name: str) -> str:
    """A service's location, for people and as a key."""
    return f"consul service {name}"


def service_at(location: str) -> str:
    """The name of the service that a location is of; empty for others."""
    name = location.removeprefix("consul service ")
    return name if name != location else ""
