"""Turns for work that strangers can make slow: one owner's slow server does not take the places of other owners."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import attrs
import trio

from mesh_pilot.net.fetching import OWNER


@attrs.define(eq=False)
class _Place:
    owners: tuple[str, ...]
    granted: trio.Event = attrs.field(factory=trio.Event)
    owner: str | None = None
    """The one whose place it has."""
    is_gone: bool = False


class Turns:
    """Places, of which each owner has a few at a time. Owners that wait have their turns in a circle.

    State: the places that each owner holds, and who waits, by owner, in the order of turns.
    """

    def __init__(self, places: int, each: int) -> None:
        """``places``: in all; ``each``: of one owner."""
        self._places = places
        self._each = each
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[_Place]] = {}

    def __repr__(self) -> str:
        waiting = sum(map(len, self._waiting.values()))
        return f"<Turns {self._held.total()} of {self._places} held, {waiting} waiting>"

    @asynccontextmanager
    async def turn(self, owners: Collection[str]) -> AsyncIterator[None]:
        """A place, by the turn of whichever of its owners comes first. Cancelled, it is given back."""
        mine = _Place(tuple(owners) or ("",))
        for owner in mine.owners:
            self._waiting.setdefault(owner, deque()).append(mine)
        self._grant()
        try:
            await mine.granted.wait()
            owner = mine.owner or ""
            token = OWNER.set(owner)
            try:
                yield
            finally:
                OWNER.reset(token)
        finally:
            mine.is_gone = True
            if mine.owner is not None:
                self._held[mine.owner] -= 1
                if not self._held[mine.owner]:
                    del self._held[mine.owner]
            self._grant()

    def _grant(self) -> None:
        while self._held.total() < self._places:
            owner = next((owner for owner in self._waiting if self._held[owner] < self._each), None)
            if owner is None:
                return
            queue = self._waiting.pop(owner)  # and at the end of the circle again
            while queue and (queue[0].is_gone or queue[0].owner is not None):
                queue.popleft()
            if not queue:
                continue
            next_one = queue.popleft()
            next_one.owner = owner
            self._held[owner] += 1
            next_one.granted.set()
            if queue:
                self._waiting[owner] = queue
