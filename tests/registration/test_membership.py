"""The membership of workloads over replicas: connects, ends of streams, deaths of replicas, time, in any order.

The model is one workload that is connected, or not, and three replicas that share a store with check-and-set. Each of
them sees the store, and the list of replicas, with its own delay.
"""

from __future__ import annotations

import math

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mesh_pilot.model.config import ConfigKey
from mesh_pilot.replicas.registration.membership import Change, Kept, Membership, Replicas
from mesh_pilot.replicas.registration.records import Record, RegisteredWorkload
from tests.support.sample import examples

KEY = ConfigKey("WorkloadEntry", "shop", "web-10.0.0.1")
MINE = RegisteredWorkload(key=KEY, group="web", identity="spiffe://cluster.local/ns/shop/sa/web", address="10.0.0.1")
GRACE, ORPHANED = 10.0, 60.0


@attrs.define
class Store:
    """A store with check-and-set."""

    index: int = 0
    kept: dict[ConfigKey, Kept] = attrs.field(factory=dict)

    def write(self, change: Change) -> int | None:
        held = self.kept.get(change.key)
        if (held.index if held is not None else 0) != change.index:
            return None
        self.index += 1
        if change.record is None:
            del self.kept[change.key]
        else:
            self.kept[change.key] = Kept(change.record, self.index)
        return self.index


def test_a_workload_that_connects_is_registered_and_one_that_leaves_is_deleted_after_the_grace_period() -> None:
    store, members = Store(), Membership("a", grace_seconds=GRACE)
    members.connected(1, MINE, 1000.0)
    alone = Replicas(leads=True, present=frozenset("a"))
    (change,) = members.changes(0.0, alone)
    assert change == Change(KEY, Record(workload=MINE, controller="a", created=1000.0), 0)
    members.wrote(change, store.write(change) or 0)
    assert members.changes(1.0, alone) == []
    members.disconnected(1)
    (change,) = members.changes(2.0, alone)
    assert change.record is not None and not change.record.is_connected
    members.wrote(change, store.write(change) or 0)
    assert members.changes(3.0, alone) == [] and members.deadline(alone) == 13.0
    assert members.changes(12.9, alone) == []
    assert members.changes(13.0, alone) == [Change(KEY, None, 2)]


def test_a_stream_that_has_not_ended_elsewhere_does_not_take_the_record_back() -> None:
    store = Store()
    both = Replicas(present=frozenset("ab"))
    old, new = (Membership(name, grace_seconds=GRACE) for name in "ab")
    for members in (old, new):
        members.replace(store.kept, store.index)
        members.connected(1, MINE)
        for change in members.changes(0.0, both):
            members.wrote(change, store.write(change) or 0)
    assert store.kept[KEY].record.controller == "b"
    old.replace(store.kept, store.index)
    assert old.changes(1.0, both) == []
    assert old.in_force(KEY) == new.in_force(KEY)
    old.disconnected(1)
    assert old.changes(2.0, both) == []
    # The later stream ends first: the earlier one is all there is.
    old.connected(2, MINE)
    (change,) = old.changes(3.0, both)
    assert change.record is not None and (change.record.controller, change.record.turn) == ("a", 3)


def test_a_report_counts_as_long_as_the_record_does() -> None:
    members = Membership("a", grace_seconds=GRACE)
    alone = Replicas(leads=True, present=frozenset("a"))
    members.connected(1, MINE)
    members.reported(KEY, is_healthy=False, reason="503")
    (change,) = members.changes(0.0, alone)
    assert change.record is not None and (change.record.is_healthy, change.record.reason) == (False, "503")
    members.wrote(change, 1)
    members.disconnected(1)
    members.forget_report(KEY)
    members.connected(2, MINE)
    found = members.in_force(KEY)
    assert found is not None and found.is_healthy is False
    members.reported(KEY, is_healthy=True)
    found = members.in_force(KEY)
    assert found is not None and (found.is_healthy, found.reason) == (True, "")


def test_another_identity_does_not_get_the_record_before_it_is_gone() -> None:
    members = Membership("a", grace_seconds=GRACE)
    alone = Replicas(leads=True, present=frozenset("a"))
    kept = Kept(Record(workload=MINE, controller="a", is_connected=False), 5)
    members.replace({KEY: kept})
    thief = attrs.evolve(MINE, identity="spiffe://cluster.local/ns/shop/sa/thief")
    assert members.is_taken(thief)
    members.connected(1, thief)
    assert members.changes(0.0, alone) == [] and members.in_force(KEY) == kept.record
    members.disconnected(1)
    assert members.changes(1.0, alone) == []
    assert members.changes(1.0 + GRACE, alone) == [Change(KEY, None, 5)]


def test_an_old_picture_of_the_store_undoes_nothing() -> None:
    members = Membership("a", grace_seconds=GRACE)
    alone = Replicas(leads=True, present=frozenset("a"))
    members.connected(1, MINE)
    (change,) = members.changes(0.0, alone)
    members.wrote(change, 7)
    members.replace({}, 6)
    assert members.changes(0.0, alone) == []
    members.replace({KEY: Kept(Record(workload=MINE, controller="b", turn=1), 5)}, 6)
    assert members.changes(0.0, alone) == []
    # A store that lost everything, or begins its count again, is believed.
    members.replace({}, None)
    (change,) = members.changes(0.0, alone)
    assert change.index == 0


@attrs.define
class Plane:
    """A replica. Mutable: its streams of the workload, alive ones first."""

    name: str
    members: Membership
    streams: set[int] = attrs.field(factory=set)


class Replicated(RuleBasedStateMachine):
    """State: the store, the replicas, the clock, and since when the workload has been without a stream."""

    @initialize()
    def begin(self) -> None:
        self.store = Store()
        self.now = 0.0
        self.number = 0
        self.planes: dict[str, Plane] = {}
        self.alive_stream: tuple[str, int] | None = None
        self.gone_since = 0.0
        self.was_registered = False
        for _ in range(3):
            self.start()

    def start(self) -> None:
        self.number += 1
        name = f"r{self.number}"
        self.planes[name] = Plane(name, Membership(name, grace_seconds=GRACE, orphaned_seconds=ORPHANED))
        self.planes[name].members.replace(self.store.kept, None)

    def replicas(self, plane: Plane) -> Replicas:
        return Replicas(leads=plane.name == min(self.planes), present=frozenset(self.planes))

    def work(self, plane: Plane) -> None:
        """Everything that is due at a replica."""
        for _ in range(5):
            plane.members.replace(self.store.kept, self.store.index)
            changes = plane.members.changes(self.now, self.replicas(plane))
            for change in changes:
                index = self.store.write(change)
                if index is not None:
                    plane.members.wrote(change, index)
            if not changes:
                return
        raise AssertionError(f"{plane.name} does not come to rest")

    def lose(self) -> None:
        if self.alive_stream is not None:
            self.alive_stream = None
            self.gone_since = self.now

    @rule(data=st.data(), ends_before=st.booleans())
    def connect(self, data: st.DataObject, ends_before: bool) -> None:
        """The workload connects; its last stream may stay open in silence."""
        plane = self.planes[data.draw(st.sampled_from(sorted(self.planes)))]
        if self.alive_stream is not None and ends_before:
            self.end(*self.alive_stream)
        self.number += 1
        plane.streams.add(self.number)
        plane.members.connected(self.number, MINE)
        self.alive_stream = (plane.name, self.number)
        self.work(plane)

    def end(self, name: str, stream: int) -> None:
        plane = self.planes[name]
        plane.streams.discard(stream)
        plane.members.disconnected(stream)

    @rule()
    def disconnect(self) -> None:
        if self.alive_stream is not None:
            self.end(*self.alive_stream)
            self.lose()

    @rule()
    def silent_streams_end(self) -> None:
        for plane in self.planes.values():
            for stream in [*plane.streams]:
                if (plane.name, stream) != self.alive_stream:
                    self.end(plane.name, stream)

    @rule(data=st.data())
    def replica_works(self, data: st.DataObject) -> None:
        self.work(self.planes[data.draw(st.sampled_from(sorted(self.planes)))])

    @rule(data=st.data())
    def replica_writes_late(self, data: st.DataObject) -> None:
        """A replica decides by an old picture, and another one works before it writes."""
        names = sorted(self.planes)
        late, other = (self.planes[data.draw(st.sampled_from(names))] for _ in range(2))
        changes = late.members.changes(self.now, self.replicas(late))
        self.work(other)
        for change in changes:
            index = self.store.write(change)
            if index is not None:
                late.members.wrote(change, index)

    @precondition(lambda self: len(self.planes) > 1)
    @rule(data=st.data())
    def replica_dies(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.planes)))
        del self.planes[name]
        if self.alive_stream is not None and self.alive_stream[0] == name:
            self.lose()
        self.start()

    @rule(seconds=st.sampled_from([1.0, GRACE / 2, GRACE, ORPHANED]))
    def time_passes(self, seconds: float) -> None:
        """All replicas work meanwhile."""
        self.rest()
        self.now += seconds
        self.rest()

    def rest(self) -> None:
        for _ in range(3):
            for plane in [*self.planes.values()]:
                self.work(plane)

    @invariant()
    def a_connected_workload_has_its_record(self) -> None:
        """Where it is connected it counts at once; nobody deletes what it has written."""
        if not hasattr(self, "planes") or self.alive_stream is None:
            return
        found = self.planes[self.alive_stream[0]].members.in_force(KEY)
        assert found is not None and found.is_connected

    @invariant()
    def the_record_is_not_gone_too_early(self) -> None:
        if not hasattr(self, "planes"):
            return
        if self.alive_stream is None and KEY in self.store.kept:
            self.was_registered = True
        if self.alive_stream is None and KEY not in self.store.kept and self.was_registered:
            assert self.now - self.gone_since >= GRACE
            self.was_registered = False
        if self.alive_stream is not None:
            self.was_registered = KEY in self.store.kept
            self.gone_since = self.now

    def teardown(self) -> None:
        """Whatever happened: once nobody is connected, the record goes; as long as somebody is, it stays."""
        if not hasattr(self, "planes"):
            return
        self.silent_streams_end()
        for _ in range(4):
            self.rest()
            self.now += ORPHANED + GRACE
        self.rest()
        if self.alive_stream is None:
            assert KEY not in self.store.kept
            assert all(plane.members.in_force(KEY) is None for plane in self.planes.values())
            assert all(plane.members.deadline(self.replicas(plane)) == math.inf for plane in self.planes.values())
        else:
            record = self.store.kept[KEY].record
            assert record.is_connected and record.controller == self.alive_stream[0]
            assert all(plane.members.in_force(KEY) == record for plane in self.planes.values())


TestReplicated = Replicated.TestCase
TestReplicated.settings = settings(max_examples=examples(200), stateful_step_count=30, deadline=None)
