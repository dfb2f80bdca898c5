"""The choice among several control planes: a pure decision machine, without I/O and without a clock.

A *link* is a connection, from the attempt on; it is ready once a request on it was answered. At most one is *used*.
What happens to links is told to the machine; ``decide`` answers what to do next, ``wake_at`` when to ask again.

- Nearest first. Among those of one distance the order is drawn by lot, so that a fleet spreads.
- While none is used, the next is tried when one fails, or has not answered for a while; the first that answers is
  used.
- One that fails is tried again after a random part of a time that doubles (full jitter).
- While one is used, only nearer ones are tried, now and then. One that answers is used once it has stayed connected
  for a while, longer each time that it was lost again soon.
- One that is going away is used on until another is ready.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import attrs


@attrs.frozen
class Timings:
    """Seconds."""

    stagger: float = 1.0
    """An attempt may take this long before the next control plane is tried next to it."""
    first_delay: float = 0.3
    """The most that is waited after a first failure; it doubles with each."""
    short_delay: float = 1.0
    """The most that is waited in the first half minute without one that works; a thirtieth of that time later."""
    longest_delay: float = 30.0
    probe: float = 30.0
    """Between attempts at a nearer one, give or take half."""
    steady: float = 10.0
    """A nearer one that answers has to stay connected for this long before it is used."""
    longest_steady: float = 600.0
    proven: float = 60.0
    """One that was used for this long has not been lost soon."""


DEFAULT_TIMINGS = Timings()


@attrs.frozen
class Connect:
    """Open a connection to a control plane, as the link of this number."""

    link: int
    plane: int


@attrs.frozen
class Use:
    """Have new streams use a link, and the others move to it."""

    link: int


@attrs.frozen
class Release:
    """Close a link once its streams have ended."""

    link: int


Action: TypeAlias = Connect | Use | Release


@attrs.define(eq=False)
class _Plane:
    number: int
    distance: int
    lot: float
    steady: float
    failures: int = 0
    has_failed: bool = False
    """Since one worked last."""
    due: float = -math.inf
    """When it may be tried next."""


@attrs.define(eq=False)
class _Link:
    number: int
    plane: _Plane
    since: float
    """The start of the attempt; then the time when it became ready; then the time since it is used."""
    is_ready: bool = False
    is_leaving: bool = False
    has_answered: bool = False


class Choice:
    """Chooses among control planes, given by their distances.

    Mutable state: what is known of each control plane, the links, and which of them is used.
    """

    def __init__(
        self, distances: Sequence[int], *, timings: Timings = DEFAULT_TIMINGS, lots: random.Random | None = None
    ) -> None:
        self._random = lots or random.Random()
        self._timings = timings
        self._planes = [
            _Plane(number, distance, self._random.random(), timings.steady) for number, distance in enumerate(distances)
        ]
        self._links: dict[int, _Link] = {}
        self._used: _Link | None = None
        self._last_number = 0
        self._trouble_since: float | None = None
        """The first failure since a control plane was known to work."""

    def __repr__(self) -> str:
        used = "none" if self._used is None else f"plane {self._used.plane.number}"
        return f"<Choice of {len(self._planes)}, {used} used, {len(self._links)} links>"

    @property
    def used(self) -> int | None:
        """The number of the link that is used."""
        return None if self._used is None else self._used.number

    @property
    def is_away(self) -> bool:
        """True if none is used, and each was tried in vain since one worked: one that refuses all calls does not."""
        return self._used is None and all(plane.has_failed for plane in self._planes)

    # -- what happens

    def ready(self, number: int, now: float) -> None:
        """A link is connected, and the control plane answers."""
        link = self._links.get(number)
        if link is not None:
            link.is_ready = True
            link.since = now

    def ended(self, number: int, now: float) -> None:
        """A link could not be connected, or was lost."""
        link = self._links.pop(number, None)
        if link is None:
            return
        plane = link.plane
        plane.failures += 1
        plane.has_failed = True
        if self._trouble_since is None:
            self._trouble_since = now
        if link is self._used:
            self._lose(link, now)
        elif self._has_good:
            plane.due = now + self._timings.probe * self._random.uniform(0.5, 1.5)
            return
        plane.due = now + self._delay(plane, now)

    def leaving(self, number: int, now: float) -> None:
        """A link takes no new calls; those that are open go on."""
        link = self._links.get(number)
        if link is None:
            return
        if link is not self._used:
            self.ended(number, now)
            return
        link.is_leaving = True
        for plane in self._planes:
            plane.due = min(plane.due, now)
            plane.lot = self._random.random()
        if now - link.since < self._timings.steady:  # it sends away whoever comes
            link.plane.failures += 1
            if self._trouble_since is None:
                self._trouble_since = now
            link.plane.due = now + self._delay(link.plane, now)

    def renew(self, now: float) -> None:
        """Another connection is wanted, with another certificate: what refused the last may take it."""
        self._trouble_since = None
        for plane in self._planes:
            plane.failures = 0
            plane.due = min(plane.due, now)
        if self._used is not None:
            self._used.is_leaving = True

    def answered(self, number: int) -> None:
        """A stream of Envoy's on a link was answered: the control plane works for it, too."""
        link = self._links.get(number)
        if link is not None:
            link.has_answered = True
            link.plane.failures = 0
            self._trouble_since = None

    def refused(self, number: int, now: float) -> list[Action]:
        """The used link is connected, but its calls are refused, or get no answer."""
        if self._used is None or self._used.number != number:
            return []
        self.ended(number, now)
        return [Release(number)]

    def _lose(self, link: _Link, now: float) -> None:
        self._used = None
        plane, timings = link.plane, self._timings
        is_proven = now - link.since >= timings.proven
        if is_proven:
            plane.steady = timings.steady
            plane.failures = 1
            self._trouble_since = now
        else:
            plane.steady = min(2 * plane.steady, timings.longest_steady)
        for other in self._planes:
            if other is plane:
                continue
            if is_proven or link.has_answered:
                other.has_failed = False
                other.due = min(other.due, now)
            else:  # none may work: that they take connections is no reason to hurry from one to the other
                other.due = min(other.due, now + self._delay(other, now))

    def _delay(self, plane: _Plane, now: float) -> float:
        timings = self._timings
        most = timings.first_delay * 2 ** max(0, min(plane.failures - 1, 30))
        trouble = 0.0 if self._trouble_since is None else now - self._trouble_since
        return self._random.uniform(0, min(most, timings.longest_delay, max(timings.short_delay, trouble / 30)))

    # -- what to do

    @property
    def _has_good(self) -> bool:
        return self._used is not None and not self._used.is_leaving

    def decide(self, now: float) -> list[Action]:
        """The next actions, which are taken to be done."""
        actions: list[Action] = []
        better = self._better(now)
        if better is not None:
            before, self._used = self._used, better
            better.since = now
            actions.append(Use(better.number))
            if before is not None:
                del self._links[before.number]
                actions.append(Release(before.number))
        if self._has_good:
            for link in list(self._links.values()):
                if link is not self._used and link.is_ready and not self._is_nearer(link.plane):
                    del self._links[link.number]
                    actions.append(Release(link.number))
        for plane in self._to_try(now):
            self._last_number += 1
            self._links[self._last_number] = _Link(self._last_number, plane, now)
            actions.append(Connect(self._last_number, plane.number))
        return actions

    def wake_at(self) -> float:
        """The time at which there is something to do though nothing has happened; ``math.inf`` for never."""
        times = [math.inf]
        times += (link.since + link.plane.steady for link in self._waiting())
        if candidates := self._candidates():
            start = -math.inf if self._has_good else self._next_start()
            times += (max(plane.due, start) for plane in candidates)
        return min(times)

    def _better(self, now: float) -> _Link | None:
        """The link to be used in place of the one that is."""
        if self._has_good:
            found = [link for link in self._waiting() if link.since + link.plane.steady <= now]
        else:
            found = [link for link in self._links.values() if link.is_ready and link is not self._used]
        return min(found, key=lambda link: (link.plane.distance, link.plane.lot), default=None)

    def _waiting(self) -> list[_Link]:
        """Links of nearer control planes that have to show that they last."""
        if not self._has_good:
            return []
        return [link for link in self._links.values() if link.is_ready and self._is_nearer(link.plane)]

    def _is_nearer(self, plane: _Plane) -> bool:
        return self._used is not None and plane.distance < self._used.plane.distance

    def _to_try(self, now: float) -> Iterator[_Plane]:
        due = [plane for plane in self._candidates() if plane.due <= now]
        if self._has_good:
            yield from due
        elif due and self._next_start() <= now:
            yield due[0]

    def _candidates(self) -> list[_Plane]:
        """Control planes that another attempt makes sense at, the best first."""
        linked = {link.plane.number for link in self._links.values() if not link.is_leaving}
        found = [plane for plane in self._planes if plane.number not in linked]
        if self._has_good:
            found = [plane for plane in found if self._is_nearer(plane)]
        return sorted(found, key=lambda plane: (plane.distance, plane.lot))

    def _next_start(self) -> float:
        """When the next attempt may begin: those under way have had their time."""
        started = [link.since for link in self._links.values() if not link.is_ready]
        return max(started, default=-math.inf) + self._timings.stagger
