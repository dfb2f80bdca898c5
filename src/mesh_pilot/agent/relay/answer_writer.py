"""Keeps the accepted answers on disk, off the path of the answers: in batches, in a worker thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import attrs
import structlog
import trio

from mesh_pilot.agent.base.memory import return_freed_memory
from mesh_pilot.agent.relay.ack_tracker import FULL_TYPES, Interest, wanted_by_name
from mesh_pilot.agent.relay.answers import AcceptedResponse, Answers, AnswersStatistics
from mesh_pilot.agent.relay.messages import Head, KeptResource, XdsProtocol, read_response
from mesh_pilot.base.protowire import WireError
from mesh_pilot.base.sqlite_file import FAULTS

log = structlog.get_logger(scope="agent.relay")

T = TypeVar("T")

COALESCE_SECONDS = 0.3
"""Answers accepted within this time are written together: the first answers of an Envoy come as dozens."""
RETRY_SECONDS = 5.0
MAX_WAITING = 32 * 1024 * 1024
"""Bytes of answers that wait while the disk takes none; beyond that they are dropped."""
LARGE = 1024 * 1024
"""Bytes of answers after which freed memory is given back: with 1,000 clusters of 100 endpoints, 7 MB of 55 MB."""
REPEAT_SECONDS = 300.0
"""Between log lines about a disk that takes nothing."""


@attrs.frozen
class _Waiting:
    head: Head
    protocol: XdsProtocol
    data: bytes


@attrs.frozen
class _Parts:
    """The responses that wait, taken apart one after the other: together they may be large."""

    waiting: Sequence[_Waiting]

    def __iter__(self) -> Iterator[AcceptedResponse]:
        for each in self.waiting:
            try:
                response = read_response(each.data, each.protocol)
            except (WireError, UnicodeDecodeError) as error:
                log.warning("an answer is not kept: it cannot be read", type=each.head.type_url, reason=str(error))
                continue
            is_full = each.protocol is XdsProtocol.SOTW and response.type_url in FULL_TYPES
            yield AcceptedResponse(each.protocol, response, is_full)


class AnswerWriter:
    """Mutable state: the answers that wait to be written, oldest first, and what the file is known to hold."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._waiting: list[_Waiting] = []
        self._arrived = trio.Event()
        self._disk = trio.Lock()
        self._thread = trio.CapacityLimiter(1)
        self._said_at: float | None = None
        self.known = AnswersStatistics(0, 0)
        """The statistics of the file, as it was last written or read."""

    def __repr__(self) -> str:
        return f"<AnswerWriter of {self._answers!r}, {len(self._waiting)} waiting>"

    def accepted(self, head: Head, protocol: XdsProtocol, response: bytes) -> None:
        """Have a response written that Envoy accepted."""
        if protocol is XdsProtocol.SOTW and head.type_url in FULL_TYPES:  # those before it are of no use any more
            self._waiting = [each for each in self._waiting if each.head.type_url != head.type_url]
        self._waiting.append(_Waiting(head, protocol, response))
        if sum(len(each.data) for each in self._waiting[:-1]) > MAX_WAITING:
            del self._waiting[0]
        self._arrived.set()

    async def run(self) -> None:
        """Write, forever; at the end, what waits. What a disk does not take is tried again."""
        await self.look()
        try:
            while True:
                await self._arrived.wait()
                self._arrived = trio.Event()
                await trio.sleep(COALESCE_SECONDS)
                if not await self.flush():
                    await trio.sleep(RETRY_SECONDS)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await self.flush()
                await self._in_thread(self._answers.close)

    async def flush(self) -> bool:
        """Write what waits; False where the disk does not take it."""
        async with self._disk:
            waiting, self._waiting = self._waiting, []
            if not waiting:
                return True
            size = sum(len(each.data) for each in waiting)
            try:
                self.known = await self._in_thread(partial(self._write, waiting))
            except FAULTS as error:
                self._waiting = waiting + self._waiting
                self._arrived.set()
                self._say("answers are not kept; they are tried again", error)
                return False
            except Exception:  # of these answers or ours, which another try would not fix
                log.exception("answers are not kept", types=sorted({each.head.type_url for each in waiting}))
                return True
            self._said_at = None
            del waiting
            if size >= LARGE:
                await self._in_thread(return_freed_memory)
            return True

    def _write(self, waiting: Sequence[_Waiting]) -> AnswersStatistics:
        self._answers.keep(_Parts(waiting), now=time.time())
        return self._answers.statistics()

    async def confirm(self) -> None:
        """Note that a control plane stands by what is kept."""
        if self.known.resources:
            await self._try(partial(self._answers.keep, (), now=time.time()))
            self.known = attrs.evolve(self.known, confirmed_at=time.time())

    async def forget_others(self, interests: Iterable[Interest]) -> None:
        """Drop what no stream subscribes to by name any more."""
        for type_url, names in wanted_by_name(interests).items():
            await self._try(partial(self._answers.forget, type_url, names))

    async def find(self, type_url: str, names: Collection[str] | None) -> tuple[str, list[KeptResource]] | None:
        """The kept resources of a type, see ``Answers.find``; None also where the disk cannot be read."""
        await self.flush()
        found: list[tuple[str, list[KeptResource]] | None] = []
        await self._try(lambda: found.append(self._answers.find(type_url, names)))
        return found[0] if found else None

    async def look(self) -> None:
        """Bring ``known`` up to date."""

        def read() -> None:
            self.known = self._answers.statistics()

        await self._try(read)

    async def _try(self, act: Callable[[], object]) -> None:
        async with self._disk:
            try:
                await self._in_thread(act)
            except Exception as error:  # of any kind: what is on disk is never worth the stream that is at hand
                self._say("kept answers cannot be used", error)

    async def _in_thread(self, act: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(act, limiter=self._thread)

    def _say(self, event: str, error: Exception) -> None:
        now = trio.current_time()
        if self._said_at is None or now - self._said_at >= REPEAT_SECONDS:
            self._said_at = now
            log.error(event, reason=str(error), **({} if isinstance(error, FAULTS) else {"exc_info": error}))
