"""The task that keeps the memory of traffic: each minute that is over is taken from the table, once.

The first worker has the memory, and the file. The others fold their tables alike, as no other process knows their
slots, and the first one asks them for the minutes that it has not had yet: what was not answered is in the next answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import attrs
import structlog
import trio

from mesh_pilot.base.in_turns import in_turns
from mesh_pilot.base.offload import LARGE_BYTES, offload
from mesh_pilot.base.sqlite_file import FAULTS
from mesh_pilot.traffic.file import TrafficFile
from mesh_pilot.traffic.memory import FoldedMinutes, MeshTraffic, rows_of
from mesh_pilot.traffic.minutes import MinuteSlots, SlotRange
from mesh_pilot.traffic.spans import MINUTE, SpanSums, TrafficSpan, merged

T = TypeVar("T")

Ask = Callable[[Mapping[str, int]], Awaitable[Mapping[int, object]]]
"""Asks the other workers for their minutes, given how many were had of each process: the answers by worker."""

LARGE_ROWS = 500
"""Rows from which on they are packed in a thread."""

LAST_SECONDS = 2.0
"""The time for a last write after the task was cancelled."""

log = structlog.get_logger(scope="traffic")


class TrafficKeeper:
    """Mutable state: the slots that are folded, how many minutes of each other worker were had, and whether the disk is
    known to take none."""

    def __init__(
        self, traffic: MeshTraffic, folder: Path | None = None, *, ask: Ask | None = None, leads: bool = True
    ) -> None:
        """``folder``: of the state; None: in memory only. ``leads``: in the first worker, which has all minutes."""
        self._table, self._memory = traffic.table, traffic.memory
        self._slots = MinuteSlots(now=traffic.memory.now)
        self._file = TrafficFile(folder) if folder is not None else None
        self._ask = ask
        self._leads = leads
        self._had: dict[int, FoldedMinutes] = {}
        """The last answer of each other worker."""
        self.restored = trio.Event()
        """Set once the memory has what was on disk."""
        self._trouble = ""
        self._turn = trio.CapacityLimiter(1)

    def __repr__(self) -> str:
        return f"<TrafficKeeper {self._slots}{f', failing: {self._trouble}' if self._trouble else ''}>"

    async def run(self) -> None:
        """Fold until cancelled; what is left is folded and written then, within `LAST_SECONDS`."""
        try:
            await self._restore()
            while True:
                await trio.sleep(self._slots.seconds_to_wait())
                await self.fold()
        except trio.Cancelled:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + LAST_SECONDS):
                await self.fold(is_last=True)
                if self._file is not None:
                    await self._in_thread(self._file.close)
            raise

    async def fold(self, *, is_last: bool = False) -> None:
        """Fold what is over, also of other workers; merge what is to be merged, and write what changed. If cancelled,
        the rest comes the next time."""
        for slots in self._slots.due(is_last=is_last):
            span = await self._folded(slots)
            (self._memory.add if self._leads else self._memory.offer)(span)
            self._slots.done(slots)
        if not self._leads:
            return
        if self._ask is not None and not is_last:
            await self._take_of_others(self._ask)
        while due := self._memory.due():
            for each in due:
                is_large = sum(len(part.data) for part in each.parts) > LARGE_BYTES
                whole = await offload(is_large, partial(merged, each.begin, each.seconds, each.parts))
                self._memory.replace(each.parts, whole)
        self._memory.forget()
        await self._save()

    async def _folded(self, slots: SlotRange) -> TrafficSpan:
        sums = SpanSums()

        def added() -> Iterator[None]:
            for key, counts in rows_of(self._table.edges(slots.begin, slots.end, since_reported=True)):
                sums.add_counts(key, counts)
                yield

        await in_turns(added())
        data = await offload(len(sums) > LARGE_ROWS, sums.packed)
        return TrafficSpan(slots.minute, MINUTE, slots.slots if self._leads else 0, left_out=sums.left_out, data=data)

    async def _take_of_others(self, ask: Ask) -> None:
        answers = await ask({each.process: each.next for each in self._had.values()})
        for number, answer in answers.items():
            if not isinstance(answer, FoldedMinutes):
                continue
            before = self._had.get(number)
            goes_on = before is None or (before.process == answer.process and before.next == answer.first)
            for place, minute in enumerate(answer.minutes):
                has_gap = minute.has_gap or (place == 0 and not goes_on)
                self._memory.add(attrs.evolve(minute, has_gap=has_gap))
            if answer.minutes or before is None or goes_on:
                self._had[number] = answer

    async def _restore(self) -> None:
        if self._file is None or self.restored.is_set():
            return
        try:
            spans = await self._in_thread(self._file.load)
        except FAULTS as error:
            self._failed(error)  # it is tried again before the next write
            return
        self._memory.restore(spans)
        self.restored.set()

    async def _save(self) -> None:
        await self._restore()
        if self._file is None or not self.restored.is_set():
            return
        changes = self._memory.take_unsaved()
        if not changes:
            return
        try:
            await self._in_thread(partial(self._file.write, changes, self._memory.spans()))
        except BaseException as error:
            self._memory.give_back(changes)
            if not isinstance(error, FAULTS):
                raise
            self._failed(error)
        else:
            if self._trouble:
                log.info("traffic is kept again")
            self._trouble = ""

    async def _in_thread(self, call: Callable[[], T]) -> T:
        """Make a blocking call, after the one before it. If cancelled, it continues; its result is lost."""
        return await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._turn)

    def _failed(self, error: Exception) -> None:
        if str(error) != self._trouble:
            text = "traffic is not kept on disk; what there is in memory counts, and it is tried again"
            log.warning(text, reason=str(error))
        self._trouble = str(error)
