"""The entry with the order of owners: what the leader writes, and when; what is said while the store is away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from mesh_pilot.app.shared_owners import SharedOwners
from mesh_pilot.consul.client.kv import ConsulKv, KvEntry
from mesh_pilot.model.events import HostClaim
from mesh_pilot.replicas.election.base import LockError, Replica, Term
from mesh_pilot.replicas.election.elections import Alone
from mesh_pilot.world.host_owners import HostPlace, Order
from mesh_pilot.world.host_ownership import HostOwnership
from mesh_pilot.world.shared_order import decode, encode

PLACE = HostPlace("", "be.test")
ORDER = (HostClaim("shop"), HostClaim("evil"))
OTHER = (HostClaim("evil"), HostClaim("shop"))


class Store:
    """One entry, for ConsulKv and for a term's writes."""

    def __init__(self, orders: dict[HostPlace, Order]) -> None:
        self.text = encode(orders)[0]
        self.writes: list[bytes] = []
        self.is_away = False
        self.number = 1

    async def get(self, key: str, after: int = 0, wait_seconds: float = 0.0) -> tuple[KvEntry, int]:
        self.check()
        if after == self.number:
            await trio.sleep(wait_seconds)
            self.check()
        return KvEntry(key, self.text, self.number, ""), self.number

    async def fenced_write(self, key: str, value: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.check()
        self.text, self.number = value, self.number + 1
        self.writes.append(value)

    def check(self) -> None:
        if self.is_away:
            raise LockError("away")


class Owners:
    """An HostOwnership whose order a test sets."""

    def __init__(self) -> None:
        self.changed = trio.Event()
        self.known: dict[HostPlace, Order] | None = None
        self.taken: list[Any] = []

    def orders(self) -> dict[HostPlace, Order] | None:
        return self.known

    def take(self, shared: Any) -> None:
        self.taken.append(shared)

    def become(self, known: dict[HostPlace, Order]) -> None:
        self.known = known
        self.changed.set()
        self.changed = trio.Event()


def parts(orders: dict[HostPlace, Order]) -> tuple[SharedOwners, Store, Owners, Term]:
    store, owners = Store(orders), Owners()
    shared = SharedOwners(Alone(Replica("r")), cast(HostOwnership, owners), cast(ConsulKv, store), "x/owners", 3.0)
    return shared, store, owners, cast(Term, store)


async def until(clock: MockClock, condition: Callable[[], bool]) -> None:
    for _ in range(300):
        await wait_all_tasks_blocked()
        if condition():
            return
        clock.jump(1)
    raise AssertionError("it never came")


async def test_a_leader_takes_what_is_stored_and_writes_once_it_has_seen_all(
    nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    shared, store, owners, term = parts({PLACE: ORDER})
    nursery.start_soon(shared._publish, term)
    await until(mock_clock, lambda: bool(owners.taken))
    mock_clock.jump(200)
    await wait_all_tasks_blocked()
    assert owners.taken == [{PLACE: ORDER}] and not store.writes, "an order that is not known erases none"
    owners.become({PLACE: ORDER})
    mock_clock.jump(200)
    await wait_all_tasks_blocked()
    assert not store.writes, "what is there is not written again"
    owners.become({PLACE: OTHER})
    await until(mock_clock, lambda: bool(store.writes))
    assert decode(store.text) == {PLACE: OTHER}


async def test_a_leader_writes_over_what_somebody_else_put_there_and_does_not_take_it(
    nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    shared, store, owners, term = parts({PLACE: ORDER})
    owners.known = {PLACE: ORDER}
    nursery.start_soon(shared._publish, term)
    await until(mock_clock, lambda: bool(owners.taken))
    nursery.start_soon(shared.run)
    store.text, store.number = encode({PLACE: OTHER})[0], 7
    await until(mock_clock, lambda: bool(store.writes))
    assert decode(store.text) == {PLACE: ORDER} and owners.taken == [{PLACE: ORDER}]


async def test_a_store_that_is_away_or_has_rubbish_changes_nothing_and_is_said_once(
    nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    shared, store, owners, _ = parts({PLACE: ORDER})
    store.is_away = True
    with capture_logs() as logs:
        nursery.start_soon(shared.run)
        for _ in range(60):
            mock_clock.jump(1)
            await wait_all_tasks_blocked()
        assert not owners.taken and [log["log_level"] for log in logs] == ["warning"]
        store.is_away = False
        await until(mock_clock, lambda: bool(owners.taken))
        assert [log["log_level"] for log in logs] == ["warning", "info"]
        store.text, store.number = b"rubbish", 7
        await until(mock_clock, lambda: len(logs) == 3)
    assert "not a list of owners" in logs[2]["reason"]
    assert {str(taken) for taken in owners.taken} == {str({PLACE: ORDER})}


async def test_hosts_without_room_in_the_entry_are_counted_in_a_warning(
    nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    shared, store, owners, term = parts({})
    owners.known = {HostPlace("", f"h{n:05}.test"): ORDER for n in range(5000)}
    with capture_logs() as logs:
        nursery.start_soon(shared._publish, term)
        await until(mock_clock, lambda: bool(logs))
    left_out = 5000 - len(decode(store.text))
    assert left_out and f"{left_out} contested hosts" in logs[0]["reason"]
