"""Documents that are fetched from servers of others again and again: key sets, trust bundles.

The last good one stays in force while its server fails; the next try is a backoff away.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection

import attrs
import trio

from mesh_pilot.sources.base import THE_OTHERS, Backoff
from mesh_pilot.sources.jwks.fetch import FetchError

RETRY_LIMIT_SECONDS = 60.0
"""The longest wait between tries that fail."""


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
    """For how long the oldest failure to refresh lasts; 0 while there is none."""
    trouble: str
    """The last failure of those that last; empty while there is none."""
    fetched: int = 0
    """Fetches that succeeded since the start."""
    failed: int = 0
    """Fetches that failed."""


@attrs.define(eq=False)
class Refresh(ABC):
    """One document. Mutable state: how the last try went; a subclass has what was fetched."""

    of: str
    """Its name, for statistics."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, kw_only=True)
    """Cancelled once it is not needed."""
    tried: bool = attrs.field(default=False, init=False)
    failing_since: float | None = attrs.field(default=None, init=False)
    trouble: str = attrs.field(default="", init=False)

    @property
    @abstractmethod
    def is_in_force(self) -> bool:
        """True if there is anything that was fetched."""

    async def run(
        self, fetch: Callable[[], Awaitable[float]], report: Callable[[str], None], tried: Callable[[], None]
    ) -> None:
        """Fetch for ever, until ``scope`` is cancelled.

        ``fetch`` puts what it finds in force, gives the seconds to the next fetch, and raises FetchError. ``report`` is
        told each new reason of a failure, and "" once it works again; ``tried`` that the first try is over.
        """
        backoff = Backoff(limit_seconds=RETRY_LIMIT_SECONDS)
        with self.scope:
            while True:
                try:
                    pause = await fetch()
                except FetchError as error:
                    if self.failing_since is None:
                        self.failing_since = trio.current_time()
                    if str(error) != self.trouble:
                        report(str(error))
                    self.trouble = str(error)
                    pause = backoff.next_seconds()
                else:
                    if self.failing_since is not None:
                        report("")
                    self.failing_since, self.trouble = None, ""
                    backoff.reset()
                if not self.tried:
                    self.tried = True
                    tried()
                await trio.sleep(pause)


def refresh_statistics(refreshes: Collection[Refresh], what: str, *, synced: bool) -> RefreshStatistics:
    """The statistics of a source; ``what`` it fetches is a word such as ``keys``."""
    failing = sorted((r for r in refreshes if r.failing_since is not None), key=lambda r: r.failing_since or 0.0)
    since = failing[0].failing_since if failing else None
    untried = [refresh.of for refresh in refreshes if not refresh.tried]
    return RefreshStatistics(
        items=sum(refresh.is_in_force for refresh in refreshes),
        rejected=sum(refresh.tried and not refresh.is_in_force for refresh in refreshes),
        synced=synced,
        waiting_for="" if synced else f"{what} at {', '.join(untried)}" if untried else THE_OTHERS,
        stale_seconds=0.0 if since is None else trio.current_time() - since,
        trouble=failing[-1].trouble if failing else "",
    )
