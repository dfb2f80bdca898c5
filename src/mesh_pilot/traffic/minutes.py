"""The minutes that slots of the table belong to, each slot to exactly one.

Times of minutes are of the wall clock, slots are numbered by Trio's: a slot belongs to the minute that its middle lies
in, as the wall clock has it when it is folded, and is folded once. So a step of the clock makes minutes with more or
fewer slots; no count is lost or there twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime

import attrs
import trio

from mesh_pilot.traffic.spans import MINUTE
from mesh_pilot.traffic.table import SLOT_SECONDS, SLOTS

STEP_SECONDS = 1.0
"""A wall clock that is off by less than that is taken to run evenly, so that no slot is moved by a trifle."""


@attrs.frozen
class SlotRange:
    """Slots of the table that belong to a minute."""

    minute: int
    """The beginning of the minute, in seconds since the epoch."""
    first: int
    last: int

    @property
    def slots(self) -> int:
        return self.last - self.first + 1

    @property
    def begin(self) -> float:
        """The time of Trio's clock."""
        return self.first * SLOT_SECONDS

    @property
    def end(self) -> float:
        return (self.last + 1) * SLOT_SECONDS


class MinuteSlots:
    """Which slots of a table belong to which minute, each exactly once. State: the first slot that was not folded yet,
    and how far the wall clock is ahead of Trio's."""

    def __init__(self, *, now: Callable[[], datetime], clock: Callable[[], float] = trio.current_time) -> None:
        """``now``: the wall clock."""
        self._clock, self._now = clock, now
        self._next = math.floor(clock() / SLOT_SECONDS)
        self._ahead = now().timestamp() - clock()

    def __repr__(self) -> str:
        return f"<MinuteSlots from {self._next}>"

    def due(self, *, is_last: bool = False) -> list[SlotRange]:
        """The slots of minutes that are over, by minute. ``is_last``: all slots, as the process ends.

        What is older than the table remembers is left out: the minutes have fewer slots then.
        """
        here = self._clock()
        ahead = self._now().timestamp() - here
        if abs(ahead - self._ahead) >= STEP_SECONDS:
            self._ahead = ahead
        current = math.floor(here / SLOT_SECONDS)
        first = max(self._next, current - SLOTS + 1)
        end = current + 1 if is_last else current
        found: list[SlotRange] = []
        for slot in range(first, end):
            minute = self._minute_of(slot)
            if not is_last and minute == self._minute_of(current):
                break
            if found and found[-1].minute == minute:
                found[-1] = attrs.evolve(found[-1], last=slot)
            else:
                found.append(SlotRange(minute, slot, slot))
        return found

    def done(self, folded: SlotRange) -> None:
        """These slots are folded."""
        self._next = folded.last + 1

    def _minute_of(self, slot: int) -> int:
        middle = (slot + 0.5) * SLOT_SECONDS + self._ahead
        return math.floor(middle / MINUTE) * MINUTE

    def seconds_to_wait(self) -> float:
        """The time until the next minute is over, and all of its slots."""
        here = self._now().timestamp()
        return MINUTE - here % MINUTE + SLOT_SECONDS
