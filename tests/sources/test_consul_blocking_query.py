"""Blocking queries one after another, on a clock of the test's own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.consul.client.api import Answer
from mesh_pilot.consul.client.blocking_query import OutageGate, run_blocking_query
from mesh_pilot.consul.client.query_pool import QueryPool
from mesh_pilot.consul.source import ConsulError, ConsulSettings

SETTINGS = ConsulSettings()
TIMING = SETTINGS.timing


@attrs.define
class Script:
    """Answers a query as a function of the index says; notes when it was asked, and what was taken."""

    reply: Callable[[int, float], Answer | Exception]
    asked: list[tuple[float, int]] = attrs.field(factory=list)
    taken: list[tuple[int, bool]] = attrs.field(factory=list)

    async def query(self, index: int, wait_seconds: float) -> Answer:
        self.asked.append((trio.current_time(), index))
        await trio.lowlevel.checkpoint()
        reply = self.reply(index, wait_seconds)
        if isinstance(reply, Exception):
            raise reply
        if index == reply.index:
            await trio.sleep(wait_seconds)
        return reply

    async def take(self, answer: Answer, is_lost: bool) -> None:
        self.taken.append((answer.index, is_lost))

    async def run(self, seconds: float, check: Callable[[], object] | None = None) -> OutageGate:
        """Follow for so long; ``check`` is asked whether Consul is back."""

        async def asked() -> object:
            return check() if check else None

        pool = QueryPool(SETTINGS)
        gate = OutageGate("consul", asked, Backoff(TIMING.retry_seconds, TIMING.retry_limit_seconds))
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(gate.run)
                nursery.start_soon(run_blocking_query, "it", self.query, self.take, gate, pool, SETTINGS)
        return gate


async def test_a_query_goes_on_from_the_index_of_the_answer(autojump_clock: trio.testing.MockClock) -> None:
    script = Script(lambda index, _: Answer(7, []))
    await script.run(TIMING.wait_seconds * 3)
    assert [index for _, index in script.asked] == [0, *[7] * (len(script.asked) - 1)]
    assert 4 <= len(script.asked) <= 6, "each waits a little less than a minute"


async def test_an_index_that_goes_back_starts_anew(autojump_clock: trio.testing.MockClock) -> None:
    answers = iter([9, 3, 3])
    script = Script(lambda index, _: Answer(next(answers, 3), []))
    await script.run(20)
    assert [index for _, index in script.asked][:4] == [0, 9, 0, 3]
    assert script.taken[:3] == [(9, False), (3, True), (3, False)]


@pytest.mark.parametrize("index", [0, 7])
async def test_answers_that_come_again_and_again_are_asked_for_in_measure(
    autojump_clock: trio.testing.MockClock, index: int
) -> None:
    numbers = iter(range(1, 10**6))
    script = Script(lambda _, __: Answer(index and next(numbers), []))
    await script.run(60)
    assert len(script.asked) <= 4 + 60 / TIMING.pace_seconds + 1


async def test_while_consul_does_not_answer_one_asks_and_the_others_wait(
    autojump_clock: trio.testing.MockClock,
) -> None:
    knocks: list[float] = []
    script = Script(lambda index, _: ConsulError("500 No cluster leader"))

    def check() -> None:
        knocks.append(trio.current_time())
        raise ConsulError("500 No cluster leader")

    gate = await script.run(600, check)
    assert len(script.asked) == 1
    gaps = [after - before for before, after in itertools.pairwise(knocks)]
    ceilings = [min(TIMING.retry_limit_seconds, TIMING.retry_seconds * 2**n) for n in range(len(gaps))]
    assert all(gap <= ceiling + 1e-6 for gap, ceiling in zip(gaps, ceilings, strict=True))
    assert 600 / TIMING.retry_limit_seconds <= len(knocks) <= 200
    assert gate.error == "500 No cluster leader"
    assert gate.outages == 1


async def test_a_query_that_fails_alone_is_tried_again_ever_more_rarely(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script(lambda index, _: ConsulError("429 too many"))
    await script.run(600)
    gaps = [after[0] - before[0] for before, after in zip(script.asked, script.asked[1:], strict=False)]
    # A wait is a random share of a range that doubles up to its limit; asking may be paced besides.
    for rank, gap in enumerate(gaps):
        ceiling = min(TIMING.retry_limit_seconds, TIMING.retry_seconds * 2.0**rank)
        assert gap <= ceiling + TIMING.pace_seconds + 1e-6
    assert all(index == 0 for _, index in script.asked)
    assert 600 / TIMING.retry_limit_seconds <= len(gaps) <= 300


@given(share=st.floats(0, 1, exclude_max=True), tries=st.integers(0, 100))
def test_a_wait_is_any_share_of_its_range(share: float, tries: int) -> None:
    backoff = Backoff(TIMING.retry_seconds, TIMING.retry_limit_seconds, random=lambda: share)
    waits = [backoff.next_seconds() for _ in range(tries + 1)]
    for rank, wait in enumerate(waits):
        assert wait == share * min(TIMING.retry_limit_seconds, TIMING.retry_seconds * 2.0 ** min(rank, 64))


async def test_many_that_failed_together_do_not_come_back_together(autojump_clock: trio.testing.MockClock) -> None:
    """Each of a hundred followers, whose queries all fail once, asks again at its own time."""
    again: list[float] = []

    async def query(failed: set[int], number: int, index: int, wait_seconds: float) -> Answer:
        if number not in failed:
            failed.add(number)
            raise ConsulError("ReadError")
        again.append(trio.current_time())
        await trio.sleep(wait_seconds + 1000)
        raise AssertionError("not reached")

    async def take(answer: Answer, is_lost: bool) -> None:
        raise AssertionError("nothing to take")

    async def check() -> None: ...

    failed: set[int] = set()
    settings = attrs.evolve(SETTINGS, max_starts=200, max_queries=1000)
    pool = QueryPool(settings)
    gate = OutageGate("consul", check, Backoff(0.5, 15))
    with trio.move_on_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gate.run)
            for number in range(100):
                nursery.start_soon(
                    run_blocking_query, f"{number}", partial(query, failed, number), take, gate, pool, settings
                )
    with suppress(ValueError):
        again.remove(min(again))
    assert len(again) >= 98
    assert len({round(moment, 3) for moment in again}) > 80
    assert max(again) - min(again) > TIMING.retry_seconds / 2
