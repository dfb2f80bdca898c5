"""The registrar with a store that does not take everything."""

from __future__ import annotations

from typing import Any

import attrs
import trio
from structlog.testing import capture_logs

from mesh_pilot.model.config import ConfigKey
from mesh_pilot.replicas.election.base import LockError, Replica
from mesh_pilot.replicas.election.elections import Alone
from mesh_pilot.replicas.registration.membership import Change
from mesh_pilot.replicas.registration.records import RegisteredWorkload
from mesh_pilot.replicas.registration.registrar import HealthReported, Registrar, WorkloadJoined, WorkloadLeft
from mesh_pilot.replicas.registration.stores import Take

REPLICA = Replica("r1")


def workload(name: str) -> RegisteredWorkload:
    return RegisteredWorkload(
        key=ConfigKey("WorkloadEntry", "shop", name),
        group="web",
        identity="spiffe://cluster.local/ns/shop/sa/web",
        address="10.0.0.1",
    )


@attrs.define
class PickyStore:
    """A store that some names cannot be written to. A write takes a second; what was written is in ``changes``."""

    refused: frozenset[str] = frozenset()
    is_behind: bool = False
    """Somebody else is always first, and what they wrote is never read."""
    attempts: int = 0
    place: str = "a test"
    is_shared: bool = False
    changes: list[Change] = attrs.field(factory=list)

    async def follow(self, take: Take) -> None:
        await trio.sleep_forever()

    async def write(self, change: Change) -> int | None:
        self.attempts += 1
        assert self.attempts < 100, "it does not pause"
        if self.is_behind:
            return None
        await trio.sleep(1)
        if change.key.name in self.refused:
            raise LockError("413 too large")
        self.changes.append(change)
        return len(self.changes)

    def names(self) -> list[str]:
        return [change.key.name for change in self.changes]


class Sink:
    async def send(self, value: Any, /) -> None:
        await trio.lowlevel.checkpoint()


async def test_an_entry_that_cannot_be_written_holds_no_other_up(autojump_clock: Any) -> None:
    store = PickyStore(frozenset({"bad"}))
    registrar = Registrar(Alone(REPLICA), grace_seconds=10.0, store=store)
    async with trio.open_nursery() as nursery:
        await nursery.start(registrar.run, Sink())
        for stream, name in enumerate(("bad", "one", "two")):
            registrar.tell(WorkloadJoined(stream, workload(name), False))
        await trio.sleep(10)
        assert sorted(store.names()) == ["one", "two"]
        for stream in (1, 2):
            registrar.tell(WorkloadLeft(stream))
        await trio.sleep(120)
        ends = [(change.key.name, change.record is None) for change in store.changes[2:]]
        assert sorted(ends) == [("one", False), ("one", True), ("two", False), ("two", True)]
        assert [record.key.name for record in registrar.records()] == ["bad"], "it counts here"
        nursery.cancel_scope.cancel()


async def test_an_entry_is_not_deleted_that_is_claimed_again_while_others_are_written(autojump_clock: Any) -> None:
    store = PickyStore()
    registrar = Registrar(Alone(REPLICA), grace_seconds=10.0, store=store)
    names = [f"web-{number}" for number in range(10)]
    async with trio.open_nursery() as nursery:
        await nursery.start(registrar.run, Sink())
        for stream, name in enumerate(names):
            registrar.tell(WorkloadJoined(stream, workload(name), False))
        await trio.sleep(15)
        for stream in range(len(names)):
            registrar.tell(WorkloadLeft(stream))
        while not any(change.record is None for change in store.changes):  # noqa: ASYNC110
            await trio.sleep(0.5)
        registrar.tell(WorkloadJoined(100, workload(names[-1]), False))
        await trio.sleep(60)
        deleted = [change.key.name for change in store.changes if change.record is None]
        assert sorted(deleted) == names[:-1]
        nursery.cancel_scope.cancel()


async def test_a_replica_that_cannot_read_what_others_write_does_not_write_without_pause(autojump_clock: Any) -> None:
    store = PickyStore()
    registrar = Registrar(Alone(REPLICA), grace_seconds=10.0, store=store)
    async with trio.open_nursery() as nursery:
        await nursery.start(registrar.run, Sink())
        registrar.tell(WorkloadJoined(1, workload("web"), False))
        await trio.sleep(5)
        registrar.tell(WorkloadLeft(1))
        await trio.sleep(5)
        store.is_behind, before = True, store.attempts
        await trio.sleep(25)
        assert 0 < store.attempts - before <= 11
        nursery.cancel_scope.cancel()


async def test_a_workload_that_waits_for_a_report_that_does_not_come_is_named_once(autojump_clock: Any) -> None:
    registrar = Registrar(Alone(REPLICA), grace_seconds=10.0, store=PickyStore())
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            await nursery.start(registrar.run, Sink())
            for stream, name in enumerate(("silent", "well", "gone", "unchecked")):
                registrar.tell(WorkloadJoined(stream, workload(name), False, name != "unchecked"))
            await trio.sleep(5)
            registrar.tell(HealthReported(1, (), "", None))
            registrar.tell(WorkloadLeft(2))
            await trio.sleep(200)
            nursery.cancel_scope.cancel()
    said = [entry for entry in logs if "has not reported" in entry["event"]]
    assert [(entry["entry"], entry["group"]) for entry in said] == [("shop/silent", "web")]
    assert "readinessProbe" in said[0]["advice"]
