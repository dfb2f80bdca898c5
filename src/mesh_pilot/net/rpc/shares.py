"""Shares: who has how many of something of which there is only so much. No clock and no I/O.

Below the limit nothing is refused: 10,000 proxies behind one address are a fleet, not an attack. At the limit, in this
order, room for one more is made by

1. the entry that has been stalled longest, whoever has it: it does nothing for anybody;
2. the newest entry of an owner with more than half of the limit.

Else the new one is refused. Whose new entry would be one of more than half takes a place from its own stalled entries
only. So whoever has no more than half loses nothing but what is stalled, and two owners never take the same place from
each other in turns. An owner is an identity where one is proven, else an address. Accomplices
with half of the limit each can keep others out: that is what authentication is for.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Shares"]

Entry = TypeVar("Entry", bound=Hashable)


class Shares(Generic[Entry]):
    """Entries (connections, streams) of owners. All operations take constant time.

    Mutable state: the owner of each entry; the entries of each owner, oldest first; the stalled ones, longest first.
    """

    def __init__(self, limit: float = math.inf) -> None:
        """``limit``: entries of all owners together; infinite for none."""
        self.limit = limit
        self._half = max(1.0, limit / 2)
        self._owners: dict[Entry, Hashable] = {}
        self._held: dict[Hashable, OrderedDict[Entry, None]] = {}
        self._stalled: OrderedDict[Entry, float] = OrderedDict()
        self._stalled_of: dict[Hashable, OrderedDict[Entry, None]] = {}
        self._largest: Hashable = None
        """The owner that came to more than half last: no other has so many."""

    def __repr__(self) -> str:
        return f"<Shares {len(self)} of {self.limit:g}, {len(self._held)} owners, {len(self._stalled)} stalled>"

    def __len__(self) -> int:
        return len(self._owners)

    def __contains__(self, entry: object) -> bool:
        return entry in self._owners

    @property
    def is_full(self) -> bool:
        return len(self) >= self.limit

    def owner_of(self, entry: Entry) -> Hashable:
        """The owner of an entry that is counted."""
        return self._owners[entry]

    def held_by(self, owner: Hashable) -> int:
        """The number of an owner's entries."""
        return len(self._held.get(owner, ()))

    def add(self, entry: Entry, owner: Hashable) -> None:
        """Count an entry, or give one that is counted to another owner, as the newest of that."""
        since = self._stalled.get(entry)
        if entry in self._owners:
            self._disown(entry)
        self._owners[entry] = owner
        if since is not None:
            self._stalled_of.setdefault(owner, OrderedDict())[entry] = None
        held = self._held.setdefault(owner, OrderedDict())
        held[entry] = None
        if len(held) > self._half:
            self._largest = owner

    def remove(self, entry: Entry) -> None:
        """Count an entry no more. Nothing happens if it is not counted."""
        if entry in self._owners:
            self._disown(entry)
            self._stalled.pop(entry, None)

    def stall(self, entry: Entry, now: float) -> None:
        """An entry waits for its peer from ``now`` on; no effect if it does already, or is not counted.

        What a peer sends bit by bit is one wait: call ``resume`` only when the wait is over.
        """
        if entry in self._owners and entry not in self._stalled:
            self._stalled[entry] = now
            self._stalled_of.setdefault(self._owners[entry], OrderedDict())[entry] = None

    def resume(self, entry: Entry) -> None:
        """An entry waits for its peer no more."""
        if self._stalled.pop(entry, None) is not None:
            self._resume_of(self._owners[entry], entry)

    def is_stalled(self, entry: Entry) -> bool:
        """True if an entry waits for its peer."""
        return entry in self._stalled

    def longest_stalled(self) -> tuple[Entry, float] | None:
        """The entry that has been stalled longest, and since when."""
        return next(iter(self._stalled.items()), None)

    def giving_way(self, owner: Hashable) -> Entry | None:
        """The entry to end for one more of ``owner`` at the limit; None: refuse the new one."""
        half = self._half
        if self.held_by(owner) + 1 > half:
            return next(iter(self._stalled_of.get(owner, ())), None)
        if self._stalled:
            return next(iter(self._stalled))
        largest = self._held.get(self._largest, OrderedDict())
        return next(reversed(largest)) if len(largest) > half else None

    def _disown(self, entry: Entry) -> None:
        owner = self._owners.pop(entry)
        held = self._held[owner]
        del held[entry]
        if not held:
            del self._held[owner]
        if entry in self._stalled:
            self._resume_of(owner, entry)

    def _resume_of(self, owner: Hashable, entry: Entry) -> None:
        stalled = self._stalled_of[owner]
        del stalled[entry]
        if not stalled:
            del self._stalled_of[owner]
