from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog.testing
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mesh_pilot.model.events import Delete, Endpoints, Event, Synced, Upsert, item_key
from mesh_pilot.model.guard import DEFAULT_GUARD
from mesh_pilot.model.service import Endpoint, Port, Protocol, Service, ServiceKey
from mesh_pilot.world import Reducer, World
from mesh_pilot.world.intake import Intake

WEB = ServiceKey("web.example.com", "shop")


class Bench:
    """A reducer at work, and when it published what."""

    def __init__(self, send: trio.MemorySendChannel[Event], reducer: Reducer, world: World) -> None:
        self.send = send
        self.reducer = reducer
        self.world = world
        self.published: list[tuple[float, int]] = []
        self.started = trio.current_time()
        reducer.on_publish(lambda p: self.published.append((self.now(), len(p.revision.changed))))

    def now(self) -> float:
        return round(trio.current_time() - self.started, 3)

    async def tell(self, *events: Event) -> None:
        for event in events:
            await self.send.send(event)


@asynccontextmanager
async def bench(**options: Any) -> AsyncIterator[Bench]:
    world = World()
    world.expect("test")
    reducer = Reducer(world, **options)
    send, receive = trio.open_memory_channel[Event](100)
    async with trio.open_nursery() as nursery:
        await nursery.start(reducer.run, receive)
        made = Bench(send, reducer, world)
        yield made
        nursery.cancel_scope.cancel()


def service(number: int) -> Upsert:
    return Upsert("test", Service(f"s{number}.example.com", "shop", (Port(80, "http", Protocol.HTTP),)))


def endpoints(*addresses: str) -> Upsert:
    return Upsert("test", Endpoints(WEB, tuple(Endpoint(a, 80, "http") for a in addresses)))


async def synced(b: Bench, sleep: Callable[[float], Any] = trio.sleep) -> None:
    await b.tell(Synced("test"))
    await b.reducer.wait_synced()
    b.published.clear()
    b.started = trio.current_time()


async def test_changes_wait_for_quiet_and_are_published_together(autojump_clock: MockClock) -> None:
    async with bench(debounce_after=0.1) as b:
        await synced(b)
        await b.tell(service(1))
        await trio.sleep(0.06)
        await b.tell(service(2))
        await trio.sleep(1)
        assert b.published == [(0.16, 2)]
        assert b.reducer.statistics().debounced == 1


async def test_a_source_that_never_rests_is_published_at_the_limit(autojump_clock: MockClock) -> None:
    async with bench(debounce_after=0.1, debounce_max=1) as b:
        await synced(b)
        for number in range(30):
            await b.tell(service(number))
            await trio.sleep(0.05)
        await trio.sleep(1)
        assert [at for at, _ in b.published] == [1.0, 1.55]
        assert sum(n for _, n in b.published) == 30


async def test_endpoints_alone_are_published_at_once(autojump_clock: MockClock) -> None:
    async with bench(debounce_after=0.1) as b:
        await synced(b)
        await b.tell(endpoints("10.0.0.1"))
        await wait_all_tasks_blocked()
        assert b.published == [(0.0, 1)]


async def test_endpoints_behind_a_waiting_config_wait_with_it(autojump_clock: MockClock) -> None:
    async with bench(debounce_after=0.1) as b:
        await synced(b)
        await b.tell(service(1), endpoints("10.0.0.1"))
        await trio.sleep(1)
        assert b.published == [(0.1, 2)]


async def test_nothing_is_published_piecemeal_before_every_source_has_synced(autojump_clock: MockClock) -> None:
    async with bench() as b:
        b.world.expect("slow")
        await b.tell(service(1), Synced("test"))
        await trio.sleep(5)
        assert not b.reducer.synced
        await b.tell(Synced("slow"))
        await b.reducer.wait_synced()
        assert b.world.services.peek(ServiceKey("s1.example.com", "shop")) is not None


async def test_what_does_not_come_back_goes_without_another_event(autojump_clock: MockClock) -> None:
    """And it is said: that it is held, and that the rest came back."""
    async with bench() as b:
        b.reducer.intake = Intake(b.world, guarded=["test"])
        services = [service(number) for number in range(10)]
        await b.tell(*services)
        await synced(b)
        with structlog.testing.capture_logs() as logs:
            await b.tell(*(Delete("test", item_key(each.item)) for each in services))
            await trio.sleep(1)
            assert len(b.world.services) == 10
            await b.tell(*services[:9])
            await trio.sleep(DEFAULT_GUARD.steady_seconds)
            assert len(b.world.services) == 10
            await trio.sleep(1)
            assert len(b.world.services) == 9
            await trio.sleep(1000)
        told = [line for line in logs if line["event"] in ("picture held", "held picture recovered")]
        assert [(line["event"], line["log_level"]) for line in told] == [
            ("picture held", "warning"),
            ("held picture recovered", "info"),
        ]
        assert told[0]["first"].startswith("service/s0.example.com/shop")
        assert told[1]["gone"] == 1
        assert len(b.published) == 3, "it does not wake up for nothing"


async def test_a_closed_channel_ends_it_after_the_last_events(autojump_clock: MockClock) -> None:
    world = World()
    world.expect("test")
    reducer = Reducer(world)
    send, receive = trio.open_memory_channel[Event](10)
    async with trio.open_nursery() as nursery:
        await nursery.start(reducer.run, receive)
        async with send:
            await send.send(service(1))
    assert len(world.services) == 1


async def test_a_hook_that_fails_stops_nobody(autojump_clock: MockClock) -> None:
    async with bench() as b:
        b.reducer.on_publish(lambda published: 1 / 0)  # type: ignore[arg-type, return-value]
        b.reducer.on_publish(lambda published: b.published.append((b.now(), -1)))
        await synced(b)
        with structlog.testing.capture_logs() as logs:
            await b.tell(service(1))
            await trio.sleep(1)
        assert b.published == [(0.1, 1), (0.1, -1)]
        assert [line["event"] for line in logs if line["log_level"] == "error"] == [
            "publish hook failed; world state is unaffected"
        ]


async def test_many_waiting_events_make_one_revision(autojump_clock: MockClock) -> None:
    async with bench() as b:
        await synced(b)
        await b.tell(*(service(n) for n in range(90)))
        await trio.sleep(1)
        assert [n for _, n in b.published] == [90]
        assert b.reducer.statistics().waiting == 0


async def test_a_follower_has_the_numbers_of_the_reducer_that_it_follows(autojump_clock: MockClock) -> None:
    async with bench(follows=True) as b:
        b.reducer.replay([service(1)], 7, 0.0, 0.0)
        b.reducer.replay([service(2)], 9, 0.0, 0.0)  # what another one withholds is a revision there alone
        b.reducer.replay([service(2)], 9, 0.0, 0.0)
        assert b.world.revision == 9
        own: list[tuple[int, int]] = []
        b.reducer.on_publish(lambda p: own.append((p.revision.number, len(p.revision.changed))))
        await b.tell(service(3))
        await trio.sleep(1)
        assert own == [(9, 1)]
        since = b.world.history.since(9)
        b.reducer.replay([service(4)], 10, 0.0, 0.0)
        assert own[1:] == [(10, 1)]
        assert len(b.world.history.since(9)) == len(since) + 1


async def test_an_internal_error_of_the_intake_costs_the_guards_and_nothing_else(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    async with bench() as b:
        await synced(b)
        monkeypatch.setattr(b.reducer.intake, "admit", fail)
        with structlog.testing.capture_logs() as logs:
            await b.tell(service(1))
            await trio.sleep(1)
        assert [entry["log_level"] for entry in logs if "internal error in intake" in entry["event"]] == ["error"]
        await b.tell(service(2))
        await trio.sleep(1)
        assert {key[1] for key in b.world.items_of("test")} >= {"s1.example.com", "s2.example.com"}
