"""One end of a socket between two processes of a control plane."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count

import attrs
import structlog
import trio

from mesh_pilot.replicas.workers.frames import HEADER, Question, Reply, ancillary, decode, encode
from mesh_pilot.replicas.workers.questions import Answer

log = structlog.get_logger(scope="bootstrap")

READ_BYTES = 1 << 20

UNLIMITED = 1 << 62


class LinkClosed(Exception):
    """The other end is gone, or this link is being closed."""


@attrs.frozen
class _Outgoing:
    """A frame that waits: its body, or what makes it when its turn comes."""

    body: bytes | Callable[[], bytes]
    descriptors: tuple[int, ...] = ()


@attrs.define(eq=False)
class _Pending:
    event: trio.Event = attrs.field(factory=trio.Event)
    value: object = None
    is_answered: bool = False


class Link:
    """Messages and questions over a socket, in order. It takes the socket over.

    State: the frames that wait to be sent, the questions that wait for answers, and the reason why it ends.
    """

    def __init__(self, sock: socket.socket, *, buffered_bytes: int = UNLIMITED) -> None:
        """``buffered_bytes``: so much may wait to be sent; more closes the link."""
        sock.setblocking(False)
        self._sock = trio.socket.from_stdlib_socket(sock)
        self._limit = buffered_bytes
        self._waiting: deque[_Outgoing] = deque()
        self._buffered = 0
        self._news = trio.Event()
        self._scope = trio.CancelScope()
        self._numbers = count(1)
        self._questions: dict[int, _Pending] = {}
        self.reason = ""
        """Why it was closed from this side; empty if it was not."""

    def __repr__(self) -> str:
        return f"<Link {len(self._waiting)} frames wait{f', closed: {self.reason}' if self.reason else ''}>"

    def put(self, message: object, descriptors: Sequence[int] = ()) -> None:
        """Send a message. The descriptors are closed here once they are sent."""
        self.put_frame(encode(message), descriptors)

    def put_frame(self, body: bytes | Callable[[], bytes], descriptors: Sequence[int] = ()) -> None:
        """Send an encoded message, or what the function makes when its turn has come."""
        if self._scope.cancel_called:
            _close(descriptors)
            return
        self._waiting.append(_Outgoing(body, tuple(descriptors)))
        self._buffered += len(body) if isinstance(body, bytes) else 0
        self._news.set()
        if self._buffered > self._limit:
            self.close(f"it has not read {self._buffered >> 20} MB")

    def close(self, reason: str) -> None:
        """End ``run``."""
        self.reason = self.reason or reason
        self._scope.cancel()

    async def ask(self, question: object) -> object:
        """The other end's answer; waits as long as that takes. Raises LinkClosed."""
        if self._scope.cancel_called:
            raise LinkClosed
        number = next(self._numbers)
        asked = self._questions[number] = _Pending()
        try:
            self.put(Question(number, question))
            await asked.event.wait()
        finally:
            self._questions.pop(number, None)
        if not asked.is_answered:
            raise LinkClosed
        return asked.value

    async def run(self, take: Callable[[object], None], answer: Answer) -> None:
        """Send and receive until either side ends it; ``take`` gets the messages, ``answer`` answers questions.

        The socket is closed then, and questions that wait fail.
        """
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._send)
                    await self._receive(take, answer, nursery)
                    nursery.cancel_scope.cancel()
        finally:
            self._scope.cancel()
            self._sock.close()
            for outgoing in self._waiting:
                _close(outgoing.descriptors)
            self._waiting.clear()
            for asked in self._questions.values():
                asked.event.set()

    async def _send(self) -> None:
        while True:
            while self._waiting:
                outgoing = self._waiting[0]
                body = outgoing.body
                if not isinstance(body, bytes):
                    body = body()
                    await trio.lowlevel.checkpoint()
                else:
                    self._buffered -= len(body)
                self._waiting.popleft()
                try:
                    await self._send_frame(body, outgoing.descriptors)
                except OSError:
                    return  # the other end is gone, which _receive finds out
                finally:
                    _close(outgoing.descriptors)
            self._news = trio.Event()
            await self._news.wait()

    async def _send_frame(self, body: bytes, descriptors: tuple[int, ...]) -> None:
        head = HEADER.pack(len(body), len(descriptors))
        sent = await self._sock.sendmsg([head], ancillary(descriptors))
        for rest in (memoryview(head)[sent:], memoryview(body)):
            while rest:
                rest = rest[await self._sock.send(rest) :]

    async def _receive(self, take: Callable[[object], None], answer: Answer, nursery: trio.Nursery) -> None:
        data = bytearray()
        while True:
            while len(data) >= HEADER.size:
                length, _ = HEADER.unpack_from(data)
                end = HEADER.size + length
                if len(data) < end:
                    break
                try:
                    message = decode(data[HEADER.size : end])
                except Exception as error:  # pickle raises whatever classes do, as after an upgrade of the package
                    self.close(f"it sends what cannot be read: {error!r}")
                    return
                del data[:end]
                match message:
                    case Question(number=number, question=question):
                        nursery.start_soon(self._answer, number, question, answer)
                    case Reply(number=number, value=value):
                        if (asked := self._questions.get(number)) is not None:
                            asked.value, asked.is_answered = value, True
                            asked.event.set()
                    case _:
                        take(message)
            try:
                more = await self._sock.recv(READ_BYTES)
            except OSError:
                return
            if not more:
                return
            data += more

    async def _answer(self, number: int, question: object, answer: Answer) -> None:
        try:
            reply = encode(Reply(number, await answer(question)))
        except Exception as error:
            log.error("cannot answer another worker", question=repr(question)[:200], exc_info=error)
            reply = encode(Reply(number, None))
        self.put_frame(reply)


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)
