"""The guard of a source: objects that it loses implausibly are *held*, which means that they stay in force. Pure, with
the caller's clock.

More than a set share of a picture that goes at once is more often an unmounted folder or a purged catalog than a wish.
Shares are counted for all objects, for the services that have endpoints, and for each collection. What went shortly
before comes back when the rest is held. A source that has nothing at all after a restart is held however little it had:
nothing tells an empty folder from one that is not mounted yet.

What is held ends in one of these ways:

- The source has an object again: it is as the source says.
- The source has enough again, and has been steady for a while: what is still missing goes. Services that register anew
  come one by one, so the first of them do not end it for the others.
- An operator confirms that it is gone.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum

import attrs

from mesh_pilot.model.config import Config
from mesh_pilot.model.events import Endpoints, Item

Key = tuple[str, ...]

LookUp = Callable[[Key], Item | None]
"""The item in force with a key."""

NAMED = 3
"""Objects of a held picture that are named."""


@attrs.frozen
class GuardOptions:
    """How much of a source's picture may go at once."""

    share: float = 0.5
    """The share of its objects, of a collection, or of its services with endpoints, that may go."""
    minimum: int = 3
    """Objects of fewer files, keys or services than this may always go."""
    seconds: float = 30.0
    """The time within which all that goes counts as gone at once."""
    steady_seconds: float = 120.0
    """The time for which a picture that has recovered must be steady before what is still missing goes. Agents of
    Consul register again within two minutes."""


DEFAULT_GUARD = GuardOptions()


@attrs.frozen
class HeldPicture:
    """The part of a source's picture that is in force although the source has lost it."""

    source: str
    keys: tuple[Key, ...]
    """The items that stay in force."""
    reason: str
    """How much the source lost, for people: ``8 of 10 objects went at once``."""
    since: float
    """When the first of them went, on the clock of `Intake.admit`."""

    @property
    def objects(self) -> int:
        """How many objects these are; a service and its endpoints are one."""
        return len(self.names())

    def names(self) -> list[str]:
        """The names of these objects, for people."""
        return _names(self.keys)

    @property
    def first_names(self) -> str:
        """The names of some of them, for people."""
        return names_of(self.keys)


def names_of(keys: Iterable[Key]) -> str:
    """The first names of items, for people; a service and its endpoints are one."""
    names = _names(keys)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _names(keys: Iterable[Key]) -> list[str]:
    return list(dict.fromkeys("/".join(filter(None, key[1:])) or key[0] for key in keys))


def accept_command(source: str) -> str:
    """The command by which an operator lets go what is held."""
    return f"mesh-pilot admin accept {source}"


class HoldStep(StrEnum):
    """A change in the life of a held picture."""

    BEGUN = "begun"
    RECOVERED = "recovered"
    ACCEPTED = "accepted"
    """By an operator."""


@attrs.frozen
class HoldChange:
    """A picture is held from now on, or not any more."""

    step: HoldStep
    held: HeldPicture
    """The part that is held; afterwards, the part that goes now."""


@attrs.frozen
class Judgement:
    """The decisions of a guard about a batch of changes, beside what it holds (`Guard.held`)."""

    put: Mapping[Key, Item | None]
    """Items to put in force although the batch says nothing of them, or the contrary. None: to delete."""
    change: HoldChange | None = None


_NOTHING = Judgement({})


class _SlidingCount:
    """How many things of one sort a source has, and had at most of late."""

    def __init__(self) -> None:
        self.now = 0
        self._were: deque[tuple[float, int]] = deque()
        """Numbers before they fell, with the time until which they held: each smaller and later than the one before."""

    def fell(self, before: int, at: float) -> None:
        while self._were and self._were[-1][1] <= before:
            self._were.pop()
        self._were.append((at, before))

    def moved(self, count: int) -> None:
        """So many of those that were there are another source's now."""
        self._were = deque((until, number - count) for until, number in self._were)

    def forget(self) -> None:
        """Nothing has fallen as far as is known."""
        self._were.clear()

    def peak(self, horizon: float) -> int:
        """The most since then."""
        while self._were and self._were[0][0] < horizon:
            self._were.popleft()
        return max(self.now, self._were[0][1]) if self._were else self.now


class Guard:
    """The guard of one source's picture.

    State: `_counts`, what the source has, by sort; `_recent`, the items that went of late, with the time; `held`, what
    the source says now (None: nothing) of the items that stay in force, and `_peaks`, what it had when that began;
    `_is_nothing_implausible`, whether it began with a return after a restart; `_steady_since`, since when a held
    picture is whole enough and does not change.
    """

    def __init__(self, source: str, options: GuardOptions) -> None:
        self._source = source
        self._options = options
        self._counts: dict[str, _SlidingCount] = {sort: _SlidingCount() for sort in _SORTS}
        self._recent: dict[Key, tuple[float, Item]] = {}
        self.held: dict[Key, Item | None] = {}
        self._peaks: dict[str, int] = {}
        self._reason = ""
        self._since = 0.0
        self._steady_since: float | None = None
        self._is_nothing_implausible = False
        self.is_on = False
        """False before the first full picture: nothing is held."""

    def __repr__(self) -> str:
        return f"<Guard of {self._source}: {len(self.held)} held, {'on' if self.is_on else 'off'}>"

    @property
    def due(self) -> float:
        """The time at which `judge` is to be called even if nothing happens."""
        return math.inf if self._steady_since is None else self._steady_since + self._options.steady_seconds

    def picture(self) -> HeldPicture | None:
        """The part that is held; None if nothing is."""
        return self._picture_of(self.held) if self.held else None

    def take(self, items: Mapping[Key, Item]) -> None:
        """The source has these items, of which nothing was known."""
        for key, item in items.items():
            if _is_there(item):
                for sort in _sorts(key):
                    self._counts[sort].now += 1

    def judge(
        self,
        said: Mapping[Key, Item | None],
        in_force: LookUp,
        now: float,
        *,
        is_elsewhere: Callable[[Key], bool] = lambda key: False,
        accept: bool = False,
        is_return: bool = False,
    ) -> Judgement:
        """Decide about what the source says now of some items.

        `is_elsewhere`: another source has an object, too, so that it can't be lost;
        `accept`: an operator confirms what is gone; `is_return`: this makes its first full picture after a restart.
        """
        was_holding = bool(self.held)
        before = {sort: count.now for sort, count in self._counts.items()}
        gone, has_returned = self._take_in(said, in_force)
        moved = [key for key in gone if is_elsewhere(key)]
        for key in moved:
            del gone[key]
        for sort, number in Counter(sort for key in moved for sort in _sorts(key)).items():
            self._counts[sort].moved(number)
            before[sort] -= number
            if was_holding:
                self._peaks[sort] -= number
        if not self.is_on:
            return _NOTHING
        if accept:
            return self._release(HoldStep.ACCEPTED) if was_holding else _NOTHING
        if was_holding:
            self.held.update((key, said[key]) for key in gone)
            return self._go_on(now, is_changing=has_returned or bool(gone))
        if not gone:
            return _NOTHING
        for sort, count in self._counts.items():
            if count.now < before[sort]:
                count.fell(before[sort], now)
        horizon = now - self._options.seconds
        self._forget_before(horizon)
        self._is_nothing_implausible = is_return
        peaks = {sort: count.peak(horizon) for sort, count in self._counts.items()}
        lost = self._implausible(peaks)
        if not lost or (not self._is_nothing(peaks) and self._is_from_few_places(gone)):
            for key, item in gone.items():
                self._recent.pop(key, None)
                self._recent[key] = (now, item)
            return _NOTHING
        self._peaks, self._since = peaks, now
        self._reason = f"{peaks[lost] - self._counts[lost].now} of {peaks[lost]} {_SORTS[lost]}"
        return self._hold(gone, said, in_force)

    def _take_in(self, said: Mapping[Key, Item | None], in_force: LookUp) -> tuple[dict[Key, Item], bool]:
        """Count what the source has: the items that it had and has no more, and whether it has held items again."""
        gone: dict[Key, Item] = {}
        has_returned = False
        for key, after in said.items():
            is_held = key in self.held
            before = None if is_held else in_force(key)
            had, has = _is_there(before), _is_there(after)
            if had != has:
                for sort in _sorts(key):
                    self._counts[sort].now += 1 if has else -1
                if before is not None and not has:
                    gone[key] = before
            if has:
                self._recent.pop(key, None)
            if is_held and has:
                del self.held[key]
                has_returned = True
            elif is_held:
                self.held[key] = after
        return gone, has_returned

    def _hold(self, gone: Mapping[Key, Item], said: Mapping[Key, Item | None], in_force: LookUp) -> Judgement:
        self.held = {key: said[key] for key in gone}
        back: dict[Key, Item | None] = {}
        for key, (_, item) in self._recent.items():
            current = said[key] if key in said else in_force(key)
            if not _is_there(current):
                self.held[key] = current
                back[key] = item
        self._recent.clear()
        return Judgement(back, HoldChange(HoldStep.BEGUN, self._picture_of(self.held)))

    def _go_on(self, now: float, *, is_changing: bool) -> Judgement:
        """Decide whether what is held stays so."""
        if not self.held:
            return self._release(HoldStep.RECOVERED)
        if self._implausible(self._peaks):
            self._steady_since = None
        elif is_changing or self._steady_since is None:
            self._steady_since = now
        return self._release(HoldStep.RECOVERED) if now >= self.due else _NOTHING

    def _release(self, step: HoldStep) -> Judgement:
        released, self.held = self.held, {}
        change = HoldChange(step, self._picture_of(released))
        self._recent.clear()
        for count in self._counts.values():
            count.forget()
        self._steady_since = None
        self._reason = ""
        return Judgement(released, change)

    def _implausible(self, peaks: Mapping[str, int]) -> str:
        """The sort of which the source lost too much; empty if there is none."""
        options = self._options
        if self._is_nothing(peaks):
            return next(sort for sort, peak in peaks.items() if peak)
        for sort, count in self._counts.items():
            if peaks[sort] - count.now >= options.minimum and count.now < peaks[sort] * (1 - options.share):
                return sort
        return ""

    def _is_nothing(self, peaks: Mapping[str, int]) -> bool:
        """True if the source returned with nothing at all, of which no number is too small."""
        return self._is_nothing_implausible and any(peaks.values()) and not any(c.now for c in self._counts.values())

    def _is_from_few_places(self, gone: Mapping[Key, Item]) -> bool:
        items = {key: item for key, (_, item) in self._recent.items()} | dict(gone)
        places: set[Key | str] = set()
        for key, item in items.items():
            places.add((isinstance(item, Config) and item.origin.location) or key[1:])
            if len(places) >= self._options.minimum:
                return False
        return True

    def _forget_before(self, horizon: float) -> None:
        for key in [*self._expired(horizon)]:
            del self._recent[key]

    def _expired(self, horizon: float) -> Iterator[Key]:
        for key, (at, _) in self._recent.items():
            if at >= horizon:
                return
            yield key

    def _picture_of(self, held: Mapping[Key, Item | None]) -> HeldPicture:
        return HeldPicture(self._source, tuple(held), self._reason, self._since)


_SORTS = {
    "objects": "objects went at once",
    "endpoints": "services lost all endpoints at once",
    "config": "objects of configuration went at once",
    "service": "services went at once",
    "secret": "credentials went at once",
    "": "settings went at once",
}
"""The sorts of things that are counted, with the words for a loss."""

_SORTS_OF = {sort: ("objects", sort) for sort in ("config", "service", "secret")} | {"endpoints": ("endpoints",)}


def _sorts(key: Key) -> tuple[str, ...]:
    return _SORTS_OF.get(key[0], ("objects", ""))


def _is_there(item: Item | None) -> bool:
    """True for an item that is there; a service without endpoints counts as one that has lost them."""
    return bool(item.endpoints) if isinstance(item, Endpoints) else item is not None
