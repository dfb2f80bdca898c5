"""The guard of a source: objects that it loses implausibly are *held*, which means that they are kept. Pure, with the
caller's clock.

An explicit deletion does not count as a loss: somebody asked for it, and the source saw it (see
`model.events.Delete`). An implausible picture does: when more than a set share of a sort disappears at once, the cause
is more often an unmounted folder or a purged catalog than an intention. Sorts are the objects of a namespace, those of
a kind, those of a collection, services that have endpoints, and all objects. The narrowest sorts are asked first, and
what they hold does not count as lost for wider ones: a tenant's mass deletion does not hold the objects of other
tenants. A wider sort is held, too, if most of the rest went.

What went shortly before comes back when its sort is held. A source that has nothing at all after a restart is held
however little it had: nothing tells an empty folder from one that is not mounted yet.

What is held ends in one of these ways:

- The source has an object again: it is as the source says.
- Somebody deletes it: a service that had lost its endpoints, say.
- The source has enough of the sort again, and has been steady for a while: what is still missing goes. Services that
  register again come one by one, so the first of them do not end it for the others.
- An operator confirms that it is gone.

Why counts by sort, and not a comparison of pictures: sources send single deletions all day, and each may cost only the
sorts that it belongs to. A limit on the rate of deletions would hold the deploy of a large service, and let a small
folder pass that is not mounted; a limit on a source as a whole would miss the one namespace whose folder is gone. So
the share of a sort decides, of what it had at most in the last seconds, with a minimum, because two of three objects
may well be deleted on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import StrEnum

import attrs

from mesh_pilot.model.config import Config
from mesh_pilot.model.events import Endpoints, Item
from mesh_pilot.model.guard import GuardOptions
from mesh_pilot.world.loss_counts import OBJECTS, FileCounts, SlidingCount, Sort, by_width, files_of, in_words, sorts_of

Key = tuple[str, ...]

LookUp = Callable[[Key], Item | None]
"""The item in force with a key."""

NAMED = 3
"""Objects of a held picture that are named."""

SECURITY_KINDS = frozenset(
    (
        "AuthorizationPolicy",
        "PeerAuthentication",
        "RequestAuthentication",
        "MeshPolicy",
        "Policy",
        "ClusterRbacConfig",
        "RbacConfig",
        "ServiceRole",
        "ServiceRoleBinding",
    )
)
"""Kinds whose objects are named one by one where they are held."""


@attrs.frozen
class HeldObjects:
    """The part of a source's picture that is in force although the source has lost it."""

    source: str
    keys: tuple[Key, ...]
    """The items that are kept."""
    reason: str
    """The loss of the source, for people: ``8 of 10 objects of kind Gateway went at once``."""
    since: float
    """When the first of them went, on the clock of `Intake.admit`."""

    @property
    def objects(self) -> int:
        """The number of objects; a service and its endpoints are one."""
        return len(self.names())

    def names(self) -> list[str]:
        """The names of these objects, for people."""
        return _names(self.keys)

    @property
    def first_names(self) -> str:
        """The names of some of them, for people."""
        return names_of(self.keys)

    @property
    def security(self) -> list[str]:
        """The names of all that decide who may do what."""
        return _names(key for key in self.keys if key[0] == "config" and key[1] in SECURITY_KINDS)


def names_of(keys: Iterable[Key]) -> str:
    """The first names of items, for people; a service and its endpoints are one."""
    names = _names(keys)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _names(keys: Iterable[Key]) -> list[str]:
    return list(dict.fromkeys(map(_name, keys)))


def _name(key: Key) -> str:
    """``VirtualService/shop/reviews``, ``service/web.shop/shop``: a service and its endpoints have the same."""
    kinds = {"config": (), "service": ("service",), "endpoints": ("service",)}
    return "/".join(filter(None, (*kinds.get(key[0], key[:1]), *key[1:])))


def accept_command(source: str) -> str:
    """The command by which an operator releases what is held."""
    return f"mesh-pilot admin accept {source}"


class HoldStep(StrEnum):
    """A change in the life of a held picture."""

    BEGUN = "begun"
    RECOVERED = "recovered"
    ACCEPTED = "accepted"
    """Accepted by an operator."""


@attrs.frozen
class HoldChange:
    """A picture is held from now on, or not any more."""

    step: HoldStep
    held: HeldObjects
    """The part that is held; afterwards, the part that goes now."""


@attrs.frozen
class Judgement:
    """The decisions of a guard about a batch of changes, next to what it holds (`Guard.held`)."""

    put: Mapping[Key, Item | None]
    """Items to put in force although the batch says nothing of them, or the contrary. None: to delete."""
    changes: tuple[HoldChange, ...] = ()


_NOTHING = Judgement({})


@attrs.define
class _Hold:
    """A sort of which too much went. Mutable."""

    peak: int
    """The number of them when that began."""
    reason: str
    since: float
    keys: dict[Key, None] = attrs.field(factory=dict)
    is_return: bool = False
    """True if the source came back from a restart with nothing."""
    steady_since: float | None = None
    """Since when there is enough again, and nothing changes."""


class Guard:
    """The guard of one source's picture.

    State: `_counts`, what the source has, by sort; `_files`, for a source whose objects lie in files, where each is;
    `_recent`, the items that went of late, with the time; `held`, what the source says now (None: nothing) of the held
    items, and `_holds`, by sort, why.
    """

    def __init__(self, source: str, options: GuardOptions, *, in_files: bool = False) -> None:
        """`in_files`: to remove a file is to delete its objects, while most files of its namespace stay."""
        self._source = source
        self.options = options
        self._in_files = in_files
        self._counts: dict[Sort, SlidingCount] = {}
        self._files = FileCounts()
        self._recent: dict[Key, tuple[float, Item]] = {}
        self.held: dict[Key, Item | None] = {}
        self._holds: dict[Sort, _Hold] = {}
        self.is_on = False
        """False before the first full picture: nothing is held."""

    def __repr__(self) -> str:
        return f"<Guard of {self._source}: {len(self.held)} held, {'on' if self.is_on else 'off'}>"

    @property
    def due(self) -> float:
        """The time at which `judge` is to be called even if nothing happens."""
        began = [hold.steady_since for hold in self._holds.values() if hold.steady_since is not None]
        return min(began) + self.options.steady_seconds if began else math.inf

    def picture(self) -> HeldObjects | None:
        """The part that is held; None if nothing is."""
        if not self.held:
            return None
        holds = self._holds.values()
        reasons = "; ".join(dict.fromkeys(hold.reason for hold in holds))
        return HeldObjects(self._source, tuple(self.held), reasons, min(hold.since for hold in holds))

    def take(self, items: Mapping[Key, Item]) -> None:
        """The source has these items, of which nothing was known."""
        for key, item in items.items():
            if _is_there(item):
                for sort in sorts_of(key):
                    self._count(sort).now += 1
            self._note_file(key, item)

    def judge(
        self,
        said: Mapping[Key, Item | None],
        in_force: LookUp,
        now: float,
        *,
        is_elsewhere: Callable[[Key], bool] = lambda key: False,
        explicit: Collection[Key] = (),
        accept: bool = False,
        is_return: bool = False,
    ) -> Judgement:
        """Decide about what the source says now of some items.

        `is_elsewhere`: another source has an object, too, so that it can't be lost; `explicit`: objects that somebody
        deleted; `accept`: an operator confirms what is gone; `is_return`: this makes its first full picture after a
        restart.
        """
        # The order decides: what is not a loss must leave the counts before anything is compared with them; narrow
        # sorts are judged before wide ones, which then see what is held already; and only when all that goes now is
        # known, it shows whether an earlier hold is over.
        horizon = now - self.options.seconds
        before = {
            sort: self._count(sort).in_force for key in said for sort in (*sorts_of(key), *self._files.sorts(key))
        }
        gone, deleted, changing = self._take_in(said, in_force, explicit)
        no_loss = [
            key for key in gone if key in explicit or is_elsewhere(key) or self._stays_in_files(key, before, horizon)
        ]
        self._leave_out((*no_loss, *deleted), gone, before)
        if not self.is_on:
            return _NOTHING
        if accept:
            return self._release([*self._holds], HoldStep.ACCEPTED)
        for sort, number in before.items():
            if self._count(sort).in_force < number:
                self._count(sort).fell(number, now)
        self._forget_before(horizon)
        put: dict[Key, Item | None] = {}
        is_nothing = is_return and bool(gone) and not any(count.now for count in self._counts.values())
        changes: list[HoldChange] = []
        for sort, lost in self._lost_implausibly(gone, now, is_nothing=is_nothing):
            changes.append(self._hold(sort, lost, said, in_force, now, put))
            self._holds[sort].is_return |= is_nothing
            changing.add(sort)
        for key, item in gone.items():
            if key not in self.held:
                self._recent.pop(key, None)
                self._recent[key] = (now, item)
        over = [sort for sort, hold in self._holds.items() if self._is_over(sort, hold, now, sort in changing)]
        released = self._release(over, HoldStep.RECOVERED)
        return Judgement({**put, **released.put}, (*changes, *released.changes))

    # -- counting

    def _count(self, sort: Sort) -> SlidingCount:
        return self._counts.setdefault(sort, SlidingCount())

    def _take_in(
        self, said: Mapping[Key, Item | None], in_force: LookUp, explicit: Collection[Key]
    ) -> tuple[dict[Key, Item], list[Key], set[Sort]]:
        """Count what the source has: the items that it has no more, the held ones that somebody deleted, and the sorts
        of which held items are back or deleted."""
        gone: dict[Key, Item] = {}
        deleted: list[Key] = []
        returned: set[Sort] = set()
        for key, after in said.items():
            # A held item is in force without being there: its return is not a gain, and its end no second loss.
            is_held = key in self.held
            before = None if is_held else in_force(key)
            had, has = _is_there(before), _is_there(after)
            if had != has:
                for sort in sorts_of(key):
                    self._count(sort).now += 1 if has else -1
                if before is not None and not has:
                    gone[key] = before
            is_deleted = key in explicit and after is None
            if has or is_deleted:
                self._recent.pop(key, None)
            if is_held and is_deleted:
                deleted.append(key)
            if is_held and (has or is_deleted):
                returned |= self._let_go(key)
            elif is_held:
                self.held[key] = after
            self._note_file(key, after)
        return gone, deleted, returned

    def _note_file(self, key: Key, item: Item | None) -> None:
        if self._in_files and key[0] == "config":
            place = item.origin.location if isinstance(item, Config) else ""
            for sort, more in self._files.put(key, place):
                self._count(sort).now += more

    def _leave_out(self, keys: Iterable[Key], gone: dict[Key, Item], before: dict[Sort, int]) -> None:
        """Act as if items had not been there: their end is not a loss."""
        for key in keys:
            gone.pop(key, None)
            for sort in sorts_of(key):
                self._count(sort).moved(1)
                before[sort] -= 1
                if sort in self._holds:
                    self._holds[sort].peak -= 1

    def _let_go(self, key: Key) -> set[Sort]:
        """A held item is held no more: the sorts that held it."""
        del self.held[key]
        for sort in sorts_of(key):
            self._count(sort).held -= 1
        found = {sort for sort, hold in self._holds.items() if key in hold.keys}
        for sort in found:
            del self._holds[sort].keys[key]
        return found

    def _stays_in_files(self, key: Key, before: Mapping[Sort, int], horizon: float) -> bool:
        """True if more than half of the files that its namespace had of late are there: then its file was removed."""
        if not self._in_files or key[0] != "config":
            return False
        sort = files_of(key)
        count = self._count(sort)
        return count.now > max(count.peak(horizon), before.get(sort, 0)) * (1 - self.options.share)

    # -- deciding

    def _lost_implausibly(
        self, gone: Mapping[Key, Item], now: float, *, is_nothing: bool
    ) -> Iterator[tuple[Sort, Mapping[Key, Item]]]:
        """The sorts of which too much went, with what is not held yet: the caller holds it before the next is judged.

        ``is_nothing``: a source came back with nothing at all, which is one loss of everything.
        """
        for sort in [OBJECTS] if is_nothing else by_width(gone):
            mine = {
                key: item
                for key, item in gone.items()
                if (is_nothing or sort in sorts_of(key)) and key not in self.held
            }
            if mine and (is_nothing or self._is_implausible(sort, mine, now)):
                yield sort, mine

    def _is_implausible(self, sort: Sort, gone: Mapping[Key, Item], now: float) -> bool:
        """True if the source lost too much of a sort. What narrower sorts hold counts for the whole, but if of the rest
        most is there, this sort is well."""
        if sort in self._holds:
            return True  # while it is held, whatever else of it goes is held as well
        options, count = self.options, self._count(sort)
        peak, limit = count.peak(now - options.seconds), 1 - options.share
        if peak - count.now < options.minimum or count.now >= peak * limit:
            return False
        rest = peak - count.held
        if count.now >= rest * limit:
            return False
        is_more = any(hold.since >= now - options.seconds for hold in self._holds.values())
        return is_more or (rest - count.now >= options.minimum and not self._is_from_few_places(sort, gone))

    def _is_from_few_places(self, sort: Sort, gone: Mapping[Key, Item]) -> bool:
        items = {key: item for key, (_, item) in self._recent.items() if sort in sorts_of(key)} | dict(gone)
        places: set[Key | str] = set()
        for key, item in items.items():
            places.add((isinstance(item, Config) and item.origin.location) or key[1:])
            if len(places) >= self.options.minimum:
                return False
        return True

    def _hold(
        self,
        sort: Sort,
        gone: Mapping[Key, Item],
        said: Mapping[Key, Item | None],
        in_force: LookUp,
        now: float,
        put: dict[Key, Item | None],
    ) -> HoldChange:
        """Hold what is gone of a sort, and what went of it shortly before, which is ``put`` back."""
        count = self._count(sort)
        hold = self._holds.get(sort)
        if hold is None:
            peak = count.peak(now - self.options.seconds)
            hold = self._holds[sort] = _Hold(peak, f"{peak - count.now} of {peak} {in_words(sort)}", now)
        found = {key: said[key] for key in gone}
        for key, (_, item) in [*self._recent.items()]:
            if sort in sorts_of(key):
                del self._recent[key]
                current = said[key] if key in said else in_force(key)
                if not _is_there(current) and key not in self.held:
                    found[key] = current
                    put[key] = item
        for key, current in found.items():
            self.held[key] = current
            hold.keys[key] = None
            for each in sorts_of(key):
                self._count(each).held += 1
        return HoldChange(HoldStep.BEGUN, HeldObjects(self._source, tuple(found), hold.reason, now))

    def _is_over(self, sort: Sort, hold: _Hold, now: float, is_changing: bool) -> bool:
        """True if what is held of a sort may go: it is all back, or enough of it, and steady."""
        if not hold.keys:
            return True
        count, options = self._count(sort), self.options
        lost, limit = hold.peak - count.now, 1 - options.share
        if (hold.is_return and not count.now) or (lost >= options.minimum and count.now < hold.peak * limit):
            hold.steady_since = None
        elif is_changing or hold.steady_since is None:
            hold.steady_since = now
        return hold.steady_since is not None and now >= hold.steady_since + options.steady_seconds

    def _release(self, sorts: Collection[Sort], step: HoldStep) -> Judgement:
        put: dict[Key, Item | None] = {}
        changes: list[HoldChange] = []
        for sort in sorts:
            hold = self._holds[sort]
            keys = tuple(hold.keys)
            for key in keys:
                put[key] = self.held[key]
                self._let_go(key)
                for each in sorts_of(key):
                    self._count(each).forget()
            del self._holds[sort]
            self._count(sort).forget()
            changes.append(HoldChange(step, HeldObjects(self._source, keys, hold.reason, hold.since)))
        if sorts:
            self._recent.clear()
        return Judgement(put, tuple(changes))

    def _forget_before(self, horizon: float) -> None:
        while self._recent and next(iter(self._recent.values()))[0] < horizon:
            del self._recent[next(iter(self._recent))]


def _is_there(item: Item | None) -> bool:
    """True for an item that is there; a service without endpoints counts as one that has lost them."""
    return bool(item.endpoints) if isinstance(item, Endpoints) else item is not None
