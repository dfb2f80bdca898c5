"""The bodies of answers, piece by piece: raw bytes, decoded bytes and the number of pieces are bounded.

httpx decodes all that a network read brings through all codings that the server names, before anybody can look at the
size: 6 KB become gigabytes. Here one coding is taken, gzip, and at most ``STEP_BYTES`` come out of it at a time.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, cast

import trio

from mesh_pilot.net.fetching.errors import FetchError

if TYPE_CHECKING:
    import httpx

STEP_BYTES = 64 * 1024
"""The bytes that are decoded before other tasks have their turn."""
MAX_MEMBERS = 10_000
"""Parts of one gzip stream: each may be empty, and costs a few microseconds."""
FREE_PIECES, PIECE_BYTES = 1000, 256
"""A body may come in so many pieces, and in one more for each so many bytes that it may have."""

_ANY = 1 << 62

GZIP = b"\x1f\x8b"


class TooLarge(FetchError):
    """A body of more bytes than are taken."""


class Gunzip:
    """A gzip stream of one or more members. What follows the last, such as padding, is passed over.

    State: the member that is open, the bytes that wait for more, and what was counted.
    """

    def __init__(self, most: int) -> None:
        """``most``: the bytes that may come out."""
        self._most = most
        self._out = 0
        self._members = 0
        self._open: zlib._Decompress | None = None
        self._held = b""
        self._is_over = False

    def feed(self, data: bytes | bytearray) -> Iterator[bytes]:
        """Pieces of at most ``STEP_BYTES``, some of them empty. To be taken to the end. Raises FetchError."""
        for start in range(0, len(data), STEP_BYTES):
            rest = self._held + bytes(data[start : start + STEP_BYTES])
            self._held = b""
            is_full = False
            while (rest or is_full) and not self._is_over:
                if self._open is None:
                    if len(rest) < len(GZIP):
                        self._held = rest
                        break
                    self._begin(rest)
                    if self._open is None:
                        break
                try:
                    piece = self._open.decompress(rest, STEP_BYTES)
                except zlib.error as error:
                    raise FetchError(f"cannot be decompressed: {error}") from None
                is_full = len(piece) == STEP_BYTES
                rest = self._open.unconsumed_tail
                if self._open.eof:
                    rest, self._open, is_full = self._open.unused_data, None, False
                self._out += len(piece)
                if self._out > self._most:
                    raise TooLarge(f"is larger than {self._most} bytes when it is decompressed")
                yield piece

    def finish(self) -> None:
        """No more will come. Raises FetchError for a stream that was cut short."""
        if self._open is not None or not self._members:
            raise FetchError("is compressed and ends too early")

    def _begin(self, rest: bytes) -> None:
        if self._members and not rest.startswith(GZIP):
            self._is_over = True
            return
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise FetchError(f"is compressed in more than {MAX_MEMBERS} parts")
        self._open = zlib.decompressobj(wbits=31)


async def read_body(
    answer: httpx.Response, take: Callable[[bytes], Awaitable[object]], limit: int | None = None
) -> None:
    """Have each piece of the body of an answer taken, decoded. What ``take`` raises ends it.

    ``limit``: the bytes that the body may have, as sent and as decoded; None: any, as of a watch that never ends.
    Raises FetchError without the URL (TooLarge for the limit), and what httpx raises.
    """
    coding = answer.headers.get("content-encoding", "").strip().lower() or "identity"
    if coding not in ("identity", "gzip", "x-gzip"):
        raise FetchError(f"answers in the content coding {coding[:50]!r}, which it was not asked for")
    declared = answer.headers.get("content-length", "")
    if limit is not None and declared.isascii() and declared.isdigit() and int(declared[:18]) > limit:
        raise TooLarge(f"answers with more than {limit} bytes")
    counted = _Counted(limit)
    gunzip = None if coding == "identity" else Gunzip(_ANY if limit is None else limit)

    async def decoded(raw: bytes) -> None:
        counted.count(raw)
        for piece in (raw,) if gunzip is None else gunzip.feed(raw):
            if piece:
                await take(piece)
            if limit is not None or gunzip is not None:
                await trio.lowlevel.checkpoint()

    failure: BaseException | None = None
    with trio.CancelScope() as scope:
        # Not aiter_raw: it gives nothing of an answer that was made in this process.
        async for raw in cast("httpx.AsyncByteStream", answer.stream):
            if failure is None:
                try:
                    await decoded(raw)
                except BaseException as error:
                    failure = error
                    scope.cancel()  # httpx lets go of a body in its middle only where it waits for more
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # its traceback has this frame, and with it whatever came
    if gunzip is not None:
        gunzip.finish()


async def whole_body(answer: httpx.Response, limit: int) -> bytes:
    """The body of an answer that is not read yet. Raises as `read_body`."""
    body = bytearray()

    async def take(piece: bytes) -> None:
        body.extend(piece)

    await read_body(answer, take, limit)
    return bytes(body)


class _Counted:
    """Counts what comes. State: bytes and pieces."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._bytes = self._pieces = 0

    def count(self, raw: bytes) -> None:
        """Raises FetchError once it is too much."""
        self._bytes += len(raw)
        self._pieces += 1
        if self._limit is None:
            return
        if self._bytes > self._limit:
            raise TooLarge(f"answers with more than {self._limit} bytes")
        if self._pieces > FREE_PIECES + self._limit // PIECE_BYTES:
            raise FetchError("answers in too many small pieces")
