"""Memory is given back when many have left, and not before."""

from __future__ import annotations

import attrs

from mesh_pilot.ops.process.memory import ALL, FREED_ENOUGH, OBJECTS_A_STREAM, WORTH_A_COLLECTION, YOUNG, MemoryRelease

STREAMS = 100
BLOCKS = int(STREAMS * OBJECTS_A_STREAM / WORTH_A_COLLECTION)


@attrs.define
class Done:
    """What was done; collections find so much."""

    found: int = 0
    trims: int = 0
    collections: list[int] = attrs.Factory(list)

    def collect(self, generation: int) -> int:
        self.collections.append(generation)
        return self.found

    def trim(self) -> None:
        self.trims += 1

    def release(self) -> MemoryRelease:
        return MemoryRelease(collect=self.collect, trim=self.trim, blocks=lambda: BLOCKS)


async def test_little_that_is_freed_is_left_for_the_next() -> None:
    done = Done()
    release = done.release()
    for _ in range(10):
        await release.release(freed=10, streams=STREAMS - 1)
    assert (done.trims, done.collections) == (0, [])


async def test_much_that_is_freed_is_given_back_without_a_collection() -> None:
    done = Done()
    release = done.release()
    await release.release(freed=FREED_ENOUGH - 1, streams=0)
    await release.release(freed=1, streams=0)
    await release.release(freed=1, streams=0)
    assert (done.trims, done.collections) == (1, [])


async def test_after_an_exodus_what_is_in_cycles_is_collected_once() -> None:
    done = Done()
    release = done.release()
    for _ in range(3):
        await release.release(freed=0, streams=STREAMS)
    assert (done.trims, done.collections) == (1, [YOUNG, ALL])


async def test_all_is_not_looked_at_if_the_young_were_it() -> None:
    done = Done(found=STREAMS * OBJECTS_A_STREAM)
    await done.release().release(freed=0, streams=STREAMS)
    assert done.collections == [YOUNG]


async def test_memory_is_really_given_back_without_an_error() -> None:
    await MemoryRelease(blocks=lambda: 0).release(freed=FREED_ENOUGH, streams=0)
