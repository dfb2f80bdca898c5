"""Memory is given back when many have left, and not before."""

from __future__ import annotations

from mesh_pilot.ops.process.memory import FREED_ENOUGH, MemoryRelease


async def test_little_that_is_freed_is_left_for_the_next() -> None:
    trims: list[None] = []
    release = MemoryRelease(lambda: trims.append(None))
    for streams in range(1, 11):
        await release.release(freed=10, streams=streams)
    assert trims == []


async def test_much_that_is_freed_is_given_back_once() -> None:
    trims: list[None] = []
    release = MemoryRelease(lambda: trims.append(None))
    await release.release(freed=FREED_ENOUGH - 1, streams=0)
    assert len(trims) == 0
    await release.release(freed=1, streams=0)
    await release.release(freed=1, streams=0)
    assert len(trims) == 1


async def test_an_exodus_is_given_back_once() -> None:
    trims: list[None] = []
    release = MemoryRelease(lambda: trims.append(None))
    for _ in range(3):
        await release.release(freed=0, streams=FREED_ENOUGH)
    assert len(trims) == 1


async def test_memory_is_really_given_back_without_an_error() -> None:
    await MemoryRelease().release(freed=FREED_ENOUGH, streams=0)
