"""Bodies of answers: whatever comes, no more is decoded than is taken, and in small steps."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import AsyncIterator
from contextlib import suppress

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.net.fetching import FetchError, Gunzip, TooLarge, read_body, whole_body
from mesh_pilot.net.fetching.bodies import FREE_PIECES, MAX_MEMBERS, STEP_BYTES


def bomb(size: int) -> bytes:
    return gzip.compress(bytes(size))


def unzipped(parts: list[bytes], most: int) -> bytes:
    gunzip = Gunzip(most)
    found = b""
    for part in parts:
        for piece in gunzip.feed(part):
            assert len(piece) <= STEP_BYTES
            found += piece
    gunzip.finish()
    return found


@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=4),
    st.integers(1, 50),
    st.sampled_from([b"", bytes(9), b"x"]),
)
def test_members_in_any_pieces_are_one_stream(members: list[bytes], size: int, padding: bytes) -> None:
    data = b"".join(map(gzip.compress, members)) + padding
    assert unzipped([data[at : at + size] for at in range(0, len(data), size)], 10_000) == b"".join(members)


@given(st.binary(max_size=300) | st.binary(max_size=300).map(gzip.compress), st.data())
def test_whatever_the_bytes_it_ends_with_a_reason(data: bytes, more: st.DataObject) -> None:
    data = data[: more.draw(st.integers(0, len(data)))] + more.draw(st.binary(max_size=20))
    with suppress(FetchError):
        assert len(unzipped([data], 100)) <= 100


def test_what_is_too_much_ends_at_the_limit() -> None:
    gunzip = Gunzip(200_000)
    came = 0
    with pytest.raises(TooLarge, match="larger than 200000"):
        for piece in gunzip.feed(bomb(50_000_000)):
            came += len(piece)
    assert came <= 200_000
    with pytest.raises(FetchError, match="ends too early"):
        unzipped([bomb(10)[:-5]], 100)
    with pytest.raises(FetchError, match="cannot be decompressed"):
        unzipped([b"plain"], 100)
    with pytest.raises(FetchError, match=f"more than {MAX_MEMBERS} parts"):
        unzipped([gzip.compress(b"") * (MAX_MEMBERS + 1)], 100)


class Parts(httpx.AsyncByteStream):
    """A body in pieces, without an end if ``more``. State: how many were asked for."""

    def __init__(self, *parts: bytes, more: bytes = b"") -> None:
        self.parts, self.more, self.asked = parts, more, 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            yield part
        while self.more and self.asked < 1_000_000:
            self.asked += 1
            yield self.more


def answer(stream: Parts, **headers: str) -> httpx.Response:
    return httpx.Response(
        200, headers={name.replace("_", "-"): value for name, value in headers.items()}, stream=stream
    )


@pytest.mark.parametrize(
    ("stream", "headers", "reason"),
    [
        (Parts(b"x" * 101), {}, "more than 100 bytes"),
        (Parts(b"x"), {"content_length": "101"}, "more than 100 bytes"),
        (Parts(b"x"), {"content_length": "9" * 4000}, "more than 100 bytes"),
        (Parts(bomb(101)), {"content_encoding": "gzip"}, "larger than 100 bytes"),
        (Parts(bomb(99)), {"content_encoding": "gzip, gzip"}, "content coding"),
        (Parts(b"x"), {"content_encoding": "br"}, "content coding 'br'"),
        (Parts(zlib.compress(b"x")), {"content_encoding": "deflate"}, "content coding"),
        (Parts(b"plain"), {"content_encoding": "gzip"}, "cannot be decompressed"),
        (Parts(b"x"), {"content_encoding": "gzip"}, "ends too early"),
        (Parts(*[b""] * (FREE_PIECES + 2)), {}, "too many small pieces"),
    ],
)
async def test_bodies_that_are_not_taken(stream: Parts, headers: dict[str, str], reason: str) -> None:
    with pytest.raises(FetchError, match=reason):
        await whole_body(answer(stream, **headers), 100)


async def test_bodies_that_are_taken() -> None:
    assert await whole_body(answer(Parts(b"a", b"b")), 2) == b"ab"
    assert await whole_body(answer(Parts(gzip.compress(b"ab")), content_encoding="gzip"), 22) == b"ab"
    found: list[bytes] = []

    async def take(piece: bytes) -> None:
        found.append(piece)
        if len(found) == 3:
            raise FetchError("enough")

    with pytest.raises(FetchError, match="enough"):
        await read_body(answer(Parts(bomb(10 * STEP_BYTES)), content_encoding="gzip"), take)
    assert list(map(len, found)) == [STEP_BYTES] * 3
