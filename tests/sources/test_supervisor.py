"""A source that dies is restarted; nothing else notices."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence

import attrs
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.model.events import Event, EventSender, Synced
from mesh_pilot.sources.base.contract import Source
from mesh_pilot.sources.base.supervisor import SourceState, Supervisor


@attrs.frozen
class NoStatistics:
    items: int = 0
    rejected: int = 0
    synced: bool = False
    waiting_for: str = ""


@attrs.define
class Scripted:
    """A source that lives as its script says, one function a life; the last one over and over."""

    script: Sequence[Callable[[EventSender], Awaitable[None]]]
    name: str = "scripted"
    lives: list[float] = attrs.field(factory=list)
    """When each life began."""
    waiting_for: str = ""

    async def run(self, events: EventSender, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        self.lives.append(trio.current_time())
        await self.script[min(len(self.lives), len(self.script)) - 1](events)

    def statistics(self) -> NoStatistics:
        return NoStatistics(waiting_for=self.waiting_for)


async def dies(events: EventSender) -> None:
    raise OSError("connection refused")


async def syncs(events: EventSender) -> None:
    await events.send(Synced("scripted"))
    await trio.sleep_forever()


async def syncs_and_dies_after_an_hour(events: EventSender) -> None:
    await events.send(Synced("scripted"))
    await trio.sleep(3600)
    raise OSError("connection reset")


async def returns(events: EventSender) -> None:
    await events.send(Synced("scripted"))


def longest() -> float:
    return 1.0


def supervise(source: Source, *, first_seconds: float = 1, limit_seconds: float = 30) -> Supervisor:
    send, _ = trio.open_memory_channel[Event](100)
    return Supervisor(source, send, backoff=Backoff(first_seconds, limit_seconds, random=longest))


async def test_a_source_that_dies_is_started_again_after_ever_longer_waits(
    autojump_clock: trio.testing.MockClock,
) -> None:
    source = Scripted([dies] * 7 + [syncs])
    supervisor = supervise(source)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        await supervisor.wait_synced()
        assert [round(life - began) for life in source.lives] == [0, 1, 3, 7, 15, 31, 61, 91]
        statistics = supervisor.statistics()
        assert statistics.state is SourceState.SYNCED
        assert statistics.restarts == 7
        assert statistics.last_error == "OSError: connection refused"
        assert statistics.events == 1
        assert statistics.synced_since == statistics.last_event == began + 91
        nursery.cancel_scope.cancel()
    assert supervisor.statistics().state is SourceState.ENDED


async def test_the_reason_to_wait_is_the_present_one(autojump_clock: trio.testing.MockClock) -> None:
    async def waits(events: EventSender) -> None:
        await trio.sleep_forever()

    source = Scripted([dies, waits], waiting_for="keys")
    supervisor = supervise(source)
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        await trio.sleep(0.5)
        assert supervisor.statistics().waiting_for == "OSError: connection refused"
        await trio.sleep(1)
        assert supervisor.statistics().waiting_for == "keys"
        nursery.cancel_scope.cancel()


async def test_a_source_that_lived_long_is_started_again_soon(autojump_clock: trio.testing.MockClock) -> None:
    source = Scripted([dies, dies, dies, syncs_and_dies_after_an_hour, syncs])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervise(source).run)
        await trio.sleep(5000)
        assert round(source.lives[-1] - source.lives[-2]) == 3601
        nursery.cancel_scope.cancel()


async def test_its_siblings_never_notice(autojump_clock: trio.testing.MockClock) -> None:
    healthy = Scripted([syncs], name="healthy")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervise(Scripted([dies])).run)
        nursery.start_soon(supervise(healthy).run)
        await trio.sleep(1000)
        assert len(healthy.lives) == 1
        nursery.cancel_scope.cancel()


async def test_its_traceback_is_logged_once_for_each_error(autojump_clock: trio.testing.MockClock) -> None:
    async def dies_otherwise(events: EventSender) -> None:
        raise ValueError("bad answer")

    source = Scripted([dies, dies, dies, dies_otherwise, dies_otherwise, syncs])
    supervisor = supervise(source)
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            await nursery.start(supervisor.run)
            await supervisor.wait_synced()
            nursery.cancel_scope.cancel()
    assert [(entry["error"], bool(entry.get("exc_info"))) for entry in logs] == [
        ("OSError: connection refused", True),
        ("OSError: connection refused", False),
        ("OSError: connection refused", False),
        ("ValueError: bad answer", True),
        ("ValueError: bad answer", False),
    ]


async def test_once_synced_it_counts_as_synced_however_it_fares(autojump_clock: trio.testing.MockClock) -> None:
    async def syncs_and_dies(events: EventSender) -> None:
        await events.send(Synced("scripted"))
        raise OSError("connection reset")

    async def never_syncs(events: EventSender) -> None:
        await trio.sleep_forever()

    supervisor = supervise(Scripted([syncs_and_dies, never_syncs]))
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        await trio.sleep(100)
        statistics = supervisor.statistics()
        assert statistics.ever_synced
        assert (statistics.state, statistics.synced_since) == (SourceState.SYNCING, None)
        assert repr(supervisor) == "<Supervisor of scripted: syncing, 1 restarts>"
        nursery.cancel_scope.cancel()


async def test_a_source_that_returns_has_ended_and_is_not_started_again(autojump_clock: trio.testing.MockClock) -> None:
    source = Scripted([returns])
    supervisor = supervise(source)
    await supervisor.run()
    assert len(source.lives) == 1
    assert supervisor.statistics().state is SourceState.ENDED
    assert supervisor.statistics().ever_synced


async def test_it_ends_when_nobody_receives_events_any_more(autojump_clock: trio.testing.MockClock) -> None:
    send, receive = trio.open_memory_channel[Event](0)
    receive.close()
    with pytest.raises(trio.BrokenResourceError):
        await Supervisor(Scripted([syncs]), send).run()


async def test_it_ends_though_the_source_takes_the_broken_channel_for_a_failure_of_its_feed() -> None:
    async def syncs_in_a_task(events: EventSender) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(events.send, Synced("scripted"))

    send, receive = trio.open_memory_channel[Event](0)
    receive.close()
    with trio.fail_after(60), pytest.raises(trio.BrokenResourceError):
        await Supervisor(Scripted([syncs_in_a_task]), send).run()


async def test_a_receiver_that_is_slow_holds_up_the_source_and_loses_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    sent = []

    async def sends_many(events: EventSender) -> None:
        for number in range(10):
            await events.send(Synced(str(number)))
            sent.append(number)

    send, receive = trio.open_memory_channel[Event](0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Supervisor(Scripted([sends_many]), send).run)
        await trio.testing.wait_all_tasks_blocked()
        assert sent == []
        assert [(await receive.receive()).source for _ in range(10)] == [str(number) for number in range(10)]


def test_waits_are_a_random_share_of_an_exponential_ceiling() -> None:
    backoff = Backoff(0.5, 8, random=random.Random(1).random)
    for ceiling in (0.5, 1, 2, 4, 8, 8, 8):
        assert backoff.ceiling_seconds == ceiling
        assert 0 <= backoff.next_seconds() <= ceiling
    backoff.reset()
    assert backoff.ceiling_seconds == 0.5


def test_waits_stay_at_their_limit_after_any_number_of_tries() -> None:
    backoff = Backoff(1, 30, random=longest)
    assert [backoff.next_seconds() for _ in range(5000)][-1] == 30
