"""Tallies of revisions: the streams that each touches, what they are sent, and when the last has answered everything.

Pure: the caller has the clock. A stream is woken within the write of a revision, before that has a number: it joins the
*upcoming* tally, which `published` numbers. What else wakes streams, such as a certificate, is not a revision: they
leave that tally again once they look (`noted`).

    revisions = Revisions()
    follower = revisions.follow()          # one for each stream
    follower.woken()                       # by the World
    revisions.published(7, now)
    follower.noted()                       # the stream begins to work
    follower.sent(1200)                    # bytes
    follower.settled(now)                  # nothing to send, everything answered
    revisions.take()                       # [RevisionOutcome(revision=7, proxies=1, waiting=0, bytes=1200, ...)]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence, Set

import attrs

from mesh_pilot.model.history import ProxyRevision, RevisionNack, RevisionOutcome

MAX_OPEN = 200
"""The latest revisions that are tallied. An older one that a stuck client keeps open counts as over."""

MAX_NACKS = 50
"""The refusals of a revision that are kept with the client's words; the others are counted."""

MAX_REASON = 2000
"""Characters of a client's reason that are kept."""


@attrs.define(eq=False)
class _RevisionTally:
    number: int = 0
    """0 while it is upcoming."""
    published_at: float = 0.0
    waiting: int = 0
    touched: int = 0
    bytes: int = 0
    acked_at: float | None = None
    nacks: list[RevisionNack] = attrs.field(factory=list)
    nacked: int = 0
    is_dropped: bool = False
    is_changed: bool = True
    """True if it has changed since it was taken."""

    def outcome(self) -> RevisionOutcome:
        return RevisionOutcome(
            revision=self.number,
            proxies=self.touched,
            waiting=self.waiting,
            bytes=self.bytes,
            acked_seconds=None if self.acked_at is None else max(0.0, self.acked_at - self.published_at),
            nacks=tuple(self.nacks),
            nacked=self.nacked,
            is_over=self.is_dropped or not self.waiting,
        )


class Revisions:
    """The tallies of the latest revisions.

    State: the tallies, oldest first; the upcoming one; those that were dropped before they were taken.
    """

    def __init__(self, latest: int = 0) -> None:
        """`latest`: the revision that there is already."""
        self.latest = latest
        """The number of the latest revision."""
        self._upcoming = _RevisionTally()
        self._tallies: deque[_RevisionTally] = deque()
        self._dropped: deque[_RevisionTally] = deque(maxlen=MAX_OPEN)

    def __repr__(self) -> str:
        waiting = sum(1 for tally in self._tallies if tally.waiting)
        return f"<Revisions up to {self.latest}, {waiting} of {len(self._tallies)} waiting>"

    def published(self, number: int, at: float) -> None:
        """The upcoming revision has this number, and was published at this time."""
        tally, self._upcoming = self._upcoming, _RevisionTally()
        tally.number, tally.published_at = number, at
        self.latest = number
        self._tallies.append(tally)
        if len(self._tallies) > MAX_OPEN:
            oldest = self._tallies.popleft()
            if oldest.waiting:
                oldest.is_dropped = oldest.is_changed = True
            if oldest.is_changed:
                self._dropped.append(oldest)

    def follow(self) -> RevisionFollower:
        """The part of a new stream."""
        return RevisionFollower(self)

    def take(self) -> list[RevisionOutcome]:
        """The revisions that changed since the last call, oldest first."""
        changed = [tally for tally in (*self._dropped, *self._tallies) if tally.is_changed]
        self._dropped.clear()
        for tally in changed:
            tally.is_changed = False
        return [tally.outcome() for tally in changed]

    def recent(self) -> list[RevisionOutcome]:
        """The latest revisions, oldest first."""
        return [tally.outcome() for tally in self._tallies]

    def _newest(self) -> _RevisionTally | None:
        return self._tallies[-1] if self._tallies else None

    def _after(self, number: int) -> Sequence[_RevisionTally]:
        """The tallies of the revisions after one, oldest first."""
        found: list[_RevisionTally] = []
        for tally in reversed(self._tallies):
            if tally.number <= number:
                break
            found.append(tally)
        return found[::-1]


class RevisionFollower:
    """The part of one stream.

    State: `_pending`, the tallies that wait for it, oldest first; `_sent_of`, the latest revision it was sent anything
    of; `_had`, the last revision that it had everything of before it fell behind or refused something; `_has_begun`, it
    has had everything once; `_refused`, the types it refuses.
    """

    def __init__(self, revisions: Revisions) -> None:
        self._revisions = revisions
        self._pending: list[_RevisionTally] = []
        self._sent_of = 0
        self._had = 0
        self._has_begun = False
        self._refused: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"<RevisionFollower {self.position()} pending for {[tally.number for tally in self._pending]}>"

    @property
    def is_behind(self) -> bool:
        """True while a revision waits for it, or it has not had everything yet."""
        return bool(self._pending) or not self._has_begun

    @property
    def refusing(self) -> Set[str]:
        """The types that it refuses."""
        return self._refused

    def position(self) -> ProxyRevision:
        """The revision that it is at."""
        is_latest = self._has_begun and not self._pending and not self._refused
        return ProxyRevision(None if is_latest else self._had, bool(self._refused))

    def is_before(self, revision: int) -> bool:
        """True while it may still be sent something of a revision, or has not answered all that it was."""
        return not self._has_begun or any(tally.number <= revision for tally in self._pending)

    def woken(self) -> None:
        """There may be news for it."""
        pending, upcoming = self._pending, self._revisions._upcoming
        if pending and pending[-1] is upcoming:
            return  # a change may concern several of its sets
        if not pending:
            self._remember()
        elif len(pending) > 2 * MAX_OPEN:  # it does not answer: what is over for others is so for it
            pending[:] = [tally for tally in pending if not tally.is_dropped]
        pending.append(upcoming)
        upcoming.waiting += 1

    def noted(self) -> None:
        """It looks for news now. What woke it last was not a revision if none has been published since."""
        if self._pending and not self._pending[-1].number:
            self._pending.pop().waiting -= 1

    def sent(self, size: int) -> int:
        """It is sent a response of so many bytes, made from the latest revision.

        Returns the number of the revision that it is sent because of, 0 if no revision is the reason.
        """
        pending = self._pending
        if not pending or not pending[0].number:
            return 0
        if pending[-1].number and pending[-1].number < self._revisions.latest:
            merged = self._revisions._after(pending[-1].number)
            for tally in merged:
                tally.waiting += 1
            pending += merged
        newest = pending[0]
        for tally in pending:
            if tally.number:
                newest = tally
                if tally.number > self._sent_of:
                    tally.touched += 1
                    tally.is_changed = True
        self._sent_of = newest.number
        newest.bytes += size
        newest.is_changed = True
        return newest.number

    def refused(self, nack: RevisionNack, type_url: str) -> None:
        """It refuses a response."""
        if not self._pending:
            self._remember()
        self._refused |= {type_url}
        published = [tally for tally in self._pending if tally.number]
        tally = published[-1] if published else self._revisions._newest()
        if tally is None:
            return
        tally.nacked += 1
        tally.is_changed = True
        if len(tally.nacks) < MAX_NACKS:
            tally.nacks.append(attrs.evolve(nack, reason=nack.reason[:MAX_REASON]))

    def accepted(self, type_url: str) -> None:
        """It accepts a response."""
        if self._refused:
            self._refused -= {type_url}

    def settled(self, at: float) -> None:
        """There is nothing more to send to it, and it has answered everything."""
        self._leave(at)
        self._has_begun = True

    def left(self) -> None:
        """The stream ended."""
        self._leave(None)

    def _leave(self, at: float | None) -> None:
        for tally in self._pending:
            tally.waiting -= 1
            tally.is_changed = True
            if at is not None and tally.number and tally.number <= self._sent_of:
                tally.acked_at = at
        self._pending.clear()

    def _remember(self) -> None:
        """It is about to fall behind the latest revision, or to refuse it."""
        if self._has_begun and not self._refused:
            self._had = self._revisions.latest
