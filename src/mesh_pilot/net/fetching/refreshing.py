"""Documents that are fetched from third-party servers again and again: key sets, trust bundles.

The last good one is kept while its server fails; the next try is a backoff away. What one document costs is its
owners': the namespaces whose objects name it take turns, their failures make only their own pauses longer, and an error
that was not foreseen is one document's failure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import TypeVar

import attrs
import structlog
import trio

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.net.fetching import FetchError
from mesh_pilot.net.fetching.turns import Turns

RETRY_LIMIT_SECONDS = 60.0
"""The longest wait between tries that fail."""
FIRST_ROUND_SECONDS = 10.0
"""The time that a start waits for the first tries of all documents."""
MANY_FAILING = 25
"""An owner with more documents that fail than these waits longer between their tries, in proportion."""
THE_OTHERS = "the other sources"
"""`waiting_for` of a source that only waits for other sources; omitted when a more specific reason is known."""
NAMED = 3
"""Documents that a statistic names."""

T = TypeVar("T")

log = structlog.get_logger(scope="sources")


@attrs.frozen
class RefreshStatistics:
    """The statistics of a source of such documents."""

    items: int
    """Documents in force."""
    rejected: int
    """Documents that were never fetched."""
    synced: bool
    waiting_for: str
    stale_seconds: float
    """The time for which the oldest failure to refresh lasts; 0 while there is none."""
    trouble: str
    """The reason of that failure's last try, and how many others fail; empty while none does."""
    fetched: int = 0
    """Fetches that succeeded since the start."""
    failed: int = 0
    """Fetches that failed."""


@attrs.define(eq=False)
class Refresh(ABC):
    """One document. Mutable state: how the last try went; a subclass has what was fetched."""

    of: str
    """The name of the document, for statistics and logs: without secrets."""
    owners: frozenset[str] = attrs.field(default=frozenset(), kw_only=True)
    """The namespaces whose objects name it; none: the operator does."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, kw_only=True)
    """Cancelled once it is not needed."""
    tried: bool = attrs.field(default=False, init=False)
    failing_since: float | None = attrs.field(default=None, init=False)
    trouble: str = attrs.field(default="", init=False)

    @property
    @abstractmethod
    def is_in_force(self) -> bool:
        """True if there is anything that was fetched."""


class Rounds:
    """The tries of a source's documents.

    State: the documents that fail, by owner, and when the first round ends.
    """

    def __init__(self, woken: Callable[[], None], turns: Turns | None = None) -> None:
        """``woken`` is called after the first try of a document. Without ``turns`` all are tried at once."""
        self._woken = woken
        self._turns = turns
        self._failing: Counter[str] = Counter()
        self._counted: dict[Refresh, frozenset[str]] = {}
        self._ends: float | None = None

    def __repr__(self) -> str:
        return f"<Rounds with {self._failing.total()} failing>"

    def begin(self) -> None:
        """The source is run again, with no document yet."""
        self._failing.clear()
        self._counted.clear()
        self._ends = None

    def is_first_over(self, refreshes: Collection[Refresh]) -> bool:
        """True once each was tried, or the time for that is over. The first call begins the round."""
        if self._ends is None:
            self._ends = trio.current_time() + FIRST_ROUND_SECONDS
        return trio.current_time() >= self._ends or all(refresh.tried for refresh in refreshes)

    async def wait(self, wake: trio.Event, *, synced: bool) -> None:
        """Wait for ``wake``, or for the end of a first round that has begun."""
        if synced or self._ends is None:
            await wake.wait()
            return
        with trio.move_on_at(self._ends):
            await wake.wait()

    async def run(
        self,
        refresh: Refresh,
        fetch: Callable[[], Awaitable[T]],
        take: Callable[[T], Awaitable[float]],
        failed: Callable[[str, bool], Awaitable[None]],
        recovered: Callable[[], None],
    ) -> None:
        """Fetch forever, until the ``scope`` of the refresh is cancelled.

        ``take`` puts what ``fetch`` found in force, and gives the seconds to the next fetch. ``failed`` is told the
        reason of each failure, and whether it is a new one; ``recovered`` that it works again. What ``fetch`` raises
        is a failure of this document alone; what ``take`` and ``failed`` raise ends the source.
        """
        backoff = Backoff(limit_seconds=RETRY_LIMIT_SECONDS)
        with refresh.scope:
            try:
                while True:
                    found, reason = await self._attempt(refresh, fetch)
                    if found is None:
                        is_new = reason != refresh.trouble
                        self._note(refresh, reason)
                        await failed(reason, is_new)
                        pause = backoff.next_seconds() * self._pause_factor(refresh)
                    else:
                        pause = await take(found[0])
                        del found  # it may be large, and the pause is long
                        if refresh.failing_since is not None:
                            recovered()
                        self._note(refresh, "")
                        backoff.reset()
                    if not refresh.tried:
                        refresh.tried = True
                        self._woken()
                    await trio.sleep(pause)
            finally:
                self._failing.subtract(self._counted.pop(refresh, ()))

    async def _attempt(self, refresh: Refresh, fetch: Callable[[], Awaitable[T]]) -> tuple[tuple[T] | None, str]:
        """The document, or None and the reason. No exception outlives it: its frames would keep what came."""
        try:
            async with self._turn(refresh):
                return (await fetch(),), ""
        except FetchError as error:
            return None, str(error)
        except Exception as error:
            reason = f"an internal error: {type(error).__name__}: {error}"
            if reason != refresh.trouble:
                log.error("fetch failed with an internal error; others are unaffected", of=refresh.of, exc_info=error)
            return None, reason

    @asynccontextmanager
    async def _turn(self, refresh: Refresh) -> AsyncIterator[None]:
        if self._turns is None:
            yield
            return
        async with self._turns.turn(refresh.owners):
            yield

    def _note(self, refresh: Refresh, reason: str) -> None:
        self._failing.subtract(self._counted.pop(refresh, ()))
        if not reason:
            refresh.failing_since = None
        else:
            self._counted[refresh] = refresh.owners
            self._failing.update(refresh.owners)
            if refresh.failing_since is None:
                refresh.failing_since = trio.current_time()
        refresh.trouble = reason

    def _pause_factor(self, refresh: Refresh) -> float:
        """The factor of its pauses for other failures of its owners: of the owner with the fewest."""
        return max(1.0, min((self._failing[owner] for owner in refresh.owners), default=0) / MANY_FAILING)


def refresh_statistics(refreshes: Collection[Refresh], what: str, *, synced: bool) -> RefreshStatistics:
    """The statistics of a source; ``what`` it fetches is a word such as ``keys``."""
    failing = [refresh for refresh in refreshes if refresh.failing_since is not None]
    oldest = min(failing, key=lambda refresh: refresh.failing_since or 0.0, default=None)
    others = f" (and {len(failing) - 1} more)" if len(failing) > 1 else ""
    untried = [refresh.of for refresh in refreshes if not refresh.tried]
    return RefreshStatistics(
        items=sum(refresh.is_in_force for refresh in refreshes),
        rejected=sum(refresh.tried and not refresh.is_in_force for refresh in refreshes),
        synced=synced,
        waiting_for="" if synced else f"{what} at {_named(untried)}" if untried else THE_OTHERS,
        stale_seconds=0.0 if oldest is None else trio.current_time() - (oldest.failing_since or 0.0),
        trouble="" if oldest is None else f"{oldest.trouble}{others}",
    )


def _named(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"
