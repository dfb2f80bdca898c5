"""The log of revisions that wait to be written: what each changed and why, what it came to, and where proxies are.

In the event loop; pure but for the wall clock that it is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

import attrs

from mesh_pilot.model.history import ProxyRevision, RevisionOutcome, RevisionTraffic
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.safety.state.settings import DEFAULT_HISTORY
from mesh_pilot.world.intake import ItemChange
from mesh_pilot.world.reducer import Published

Key = tuple[str, ...]

MAX_GONE = 1000
"""Proxies that have left and wait to be written."""

MAX_CHANGES = 50_000
"""Changes that wait to be written, while the disk is full. Of further revisions only the causes are kept."""

PROXY_SECONDS = 5.0
"""The interval at which it is looked at where proxies are."""

RESTORED = "restored from the state of the last run"
"""The cause of a revision that no source's event caused."""

NOT_RECORDED = "not recorded, as the state could not be written"
"""The cause of a revision whose changes could not wait."""


class ProxyRecord(Protocol):
    """The log's view of a stream of a proxy."""

    @property
    def proxy(self) -> Proxy | None: ...

    def position(self) -> ProxyRevision: ...


class Effects(Protocol):
    """The effects of revisions on proxies."""

    def take_outcomes(self) -> Sequence[RevisionOutcome]:
        """The revisions whose effects changed since the last call."""

    def proxies(self) -> Iterable[ProxyRecord]:
        """The streams that are open."""


@attrs.frozen
class RevisionEntry:
    """A revision as it was published."""

    number: int
    at: datetime
    changed: frozenset[Key]
    """Item keys whose merged value changed."""
    changes: Sequence[ItemChange]
    """The items of sources that changed since the last revision."""
    is_complete: bool = True
    """False if `changes` lacks any."""
    cause: str = ""
    """The cause if there are no changes."""
    is_published: bool = True
    """False for changes that no revision came of yet: they will belong to this one."""


@attrs.frozen
class ProxyEntry:
    """A proxy and the revision that it is at."""

    proxy: Proxy
    position: ProxyRevision
    at: datetime
    is_connected: bool = True


@attrs.frozen
class HistoryBatch:
    """The part of the history that was not written yet."""

    revisions: Sequence[RevisionEntry] = ()
    outcomes: Sequence[RevisionOutcome] = ()
    proxies: Sequence[ProxyEntry] = ()
    settings: Mapping[str, str] = attrs.field(factory=dict)
    """The settings that decide how objects are read, to make a World of them again."""
    traffic: Sequence[RevisionTraffic] = ()

    def __bool__(self) -> bool:
        return bool(self.revisions or self.outcomes or self.proxies or self.traffic)

    @property
    def begins(self) -> bool:
        """True if it has a revision."""
        return any(entry.is_published for entry in self.revisions)


NO_HISTORY = HistoryBatch()


def _utc_now() -> datetime:
    return datetime.now(UTC)


class ProxyMoves:
    """Finds the proxies that came, went, or are at another revision.

    State: the proxies as they were, by node id; whether all count as moved the next time.
    """

    def __init__(self, *, now: Callable[[], datetime] = _utc_now) -> None:
        self._now = now
        self._proxies: Mapping[str, ProxyEntry] = {}
        self._is_again = False

    def __repr__(self) -> str:
        return f"<ProxyMoves of {len(self._proxies)}>"

    def again(self) -> None:
        """All proxies count as moved the next time."""
        self._is_again = True

    def take(self, records: Iterable[ProxyRecord]) -> list[ProxyEntry]:
        """The proxies that did since the last call."""
        now, before = self._now(), self._proxies
        found: dict[str, ProxyEntry] = {}
        for record in records:
            proxy = record.proxy
            if proxy is None:
                continue
            position = record.position()
            other = found.get(proxy.id)
            if other is None or _is_before(position, other.position):
                known = before.get(proxy.id)
                is_same = known is not None and known.proxy is proxy and known.position == position
                found[proxy.id] = known if known is not None and is_same else ProxyEntry(proxy, position, now)
        self._proxies = found
        moved = [entry for name, entry in found.items() if self._is_again or before.get(name) is not entry]
        self._is_again = False
        gone = [attrs.evolve(entry, at=now, is_connected=False) for name, entry in before.items() if name not in found]
        return [*moved, *gone]


class RevisionLog:
    """The revisions that wait to be written. State: those, and the proxies as they were last taken."""

    def __init__(
        self,
        settings: Mapping[str, str],
        *,
        limit: int = DEFAULT_HISTORY.revisions,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        """`settings`: those that decide how objects are read; `limit`: more revisions than that are not kept anyway."""
        self.effects: Effects | None = None
        """The effects at proxies; None: they are not recorded."""
        self._settings = settings
        self._limit = limit
        self._now = now
        self._entries: list[RevisionEntry] = []
        self._changes = 0
        self._is_complete = True
        self._moves = ProxyMoves(now=now)
        self._looked_at = -math.inf
        self.is_settling = False
        """True while there is more to come of what was taken last."""
        self._returned: HistoryBatch | None = None
        self._traffic: list[RevisionTraffic] = []

    def __repr__(self) -> str:
        return f"<RevisionLog {len(self._entries)} waiting>"

    def published(self, published: Published) -> None:
        """A revision of the World: for `Reducer.on_publish`."""
        revision = published.revision
        is_new = bool(revision.changed)
        if not is_new and not published.changes:
            return
        changes, cause = published.changes, RESTORED
        if self._changes and self._changes + len(changes) > MAX_CHANGES:
            changes, cause, self._is_complete = (), NOT_RECORDED, False
        self._changes += len(changes)
        number = revision.number if is_new else revision.number + 1
        self._entries.append(
            RevisionEntry(number, self._now(), revision.changed, changes, self._is_complete, cause, is_published=is_new)
        )
        if is_new:
            self._is_complete = True

    def judged(self, outcome: RevisionTraffic) -> None:
        """A revision was judged by its traffic."""
        self._traffic = [*self._traffic[-self._limit :], outcome]

    def take(self, now: float) -> HistoryBatch:
        """All that waits; `now` is a monotonic time in seconds. Give it back if it could not be written."""
        entries, self._entries, self._changes = self._entries, [], 0
        outcomes: Sequence[RevisionOutcome] = ()
        proxies: Sequence[ProxyEntry] = ()
        if self.effects is not None:
            outcomes = self.effects.take_outcomes()
            if now - self._looked_at >= PROXY_SECONDS:
                self._looked_at = now
                proxies = self._moves.take(self.effects.proxies())
        self.is_settling = bool(entries) or any(not outcome.is_over for outcome in outcomes)
        returned, self._returned = self._returned, None
        traffic, self._traffic = self._traffic, []
        if returned is None:
            return HistoryBatch(entries, outcomes, proxies, self._settings, traffic)
        return HistoryBatch(
            [*returned.revisions, *entries],
            [*{outcome.revision: outcome for outcome in (*returned.outcomes, *outcomes)}.values()],
            [*{entry.proxy.id: entry for entry in (*returned.proxies, *proxies)}.values()],
            self._settings,
            [*returned.traffic, *traffic][-self._limit :],
        )

    def give_back(self, batch: HistoryBatch) -> None:
        """A batch could not be written: it returns with the next."""
        revisions = list(batch.revisions[-self._limit :])
        if len(revisions) < len(batch.revisions):
            for index, entry in enumerate(revisions):
                revisions[index] = attrs.evolve(entry, is_complete=False)
                if entry.is_published:
                    break
        here = [entry for entry in batch.proxies if entry.is_connected]
        gone = [entry for entry in batch.proxies if not entry.is_connected]
        kept = attrs.evolve(
            batch, revisions=revisions, outcomes=batch.outcomes[-self._limit :], proxies=[*here, *gone[-MAX_GONE:]]
        )
        self._returned = kept or None
        self._moves.again()  # the file may be another one by then: it gets all of them
        self._changes += sum(len(entry.changes) for entry in revisions)


def _is_before(one: ProxyRevision, other: ProxyRevision) -> bool:
    if one.revision is None:
        return False
    return other.revision is None or one.revision < other.revision
