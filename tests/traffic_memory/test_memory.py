"""Minutes, hours and days of traffic: every slot is counted once, whatever the clocks do; bounds hold; gaps show."""

from __future__ import annotations

import random
from collections import Counter as Tally
from datetime import UTC, datetime, timedelta

import attrs
import pytest

from mesh_pilot.model.traffic import Counter, RowKind
from mesh_pilot.traffic import spans
from mesh_pilot.traffic.counts import Counts
from mesh_pilot.traffic.memory import TrafficMemory, rows_of
from mesh_pilot.traffic.minutes import MinuteSlots
from mesh_pilot.traffic.spans import HOUR, MINUTE, OTHERS, TrafficSpan, merged
from mesh_pilot.traffic.table import CallingWorkload, TrafficTable
from tests.support.traffic_counts import reporting, row, span_of

WEB = "outbound|80||web.shop"
NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)


@attrs.define
class Clocks:
    """The clock of Trio, and the wall clock, which somebody may set."""

    time: float = 1000.0
    wall: datetime = NOON

    def now(self) -> datetime:
        return self.wall

    def monotonic(self) -> float:
        return self.time

    def go(self, seconds: float) -> None:
        self.time += seconds
        self.wall += timedelta(seconds=seconds)


@attrs.define
class Folding:
    """A table that is folded into a memory, as the task does it."""

    clocks: Clocks = attrs.field(factory=Clocks)

    def __attrs_post_init__(self) -> None:
        self.table = TrafficTable(clock=self.clocks.monotonic)
        self.memory = TrafficMemory(now=self.clocks.now)
        self.slots = MinuteSlots(clock=self.clocks.monotonic, now=self.clocks.now)

    table: TrafficTable = attrs.field(init=False)
    memory: TrafficMemory = attrs.field(init=False)
    slots: MinuteSlots = attrs.field(init=False)

    def report(self, requests: int, name: str = WEB) -> None:
        self.table.add(reporting(), [row(name, requests=requests)], of_agent=True)

    def fold(self, *, is_last: bool = False) -> None:
        for each in self.slots.due(is_last=is_last):
            rows = rows_of(self.table.edges(each.begin, each.end, since_reported=True))
            self.memory.add(span_of(each.minute, rows, each.slots))
            self.slots.done(each)
        self.table.forget()
        while due := self.memory.due():
            for merge in due:
                self.memory.replace(merge.parts, merged(merge.begin, merge.seconds, merge.parts))
        self.memory.forget()

    def requests(self, since: datetime = datetime(2000, 1, 1, tzinfo=UTC)) -> int:
        return sum(each.counts[Counter.REQUESTS] for each in self.memory.hours(since))


def test_a_minute_has_what_was_counted_in_it() -> None:
    folding = Folding()
    folding.report(0)
    for minute in range(3):
        for slot in range(6):
            folding.report(100 * minute + slot)
            folding.clocks.go(10)
    folding.clocks.go(10)
    folding.fold()
    found = [
        [each.counts.requests for each in folding.memory.minutes(at, at + timedelta(minutes=1))]
        for at in (NOON, NOON + timedelta(minutes=1), NOON + timedelta(minutes=2))
    ]
    assert found == [[15], [615], [1215]]
    (both,) = folding.memory.minutes(NOON, NOON + timedelta(minutes=2))
    assert (both.counts.requests, both.counts.is_complete) == (630, True)
    assert str(both.cluster) == WEB
    (more,) = folding.memory.minutes(NOON - timedelta(minutes=1), NOON + timedelta(minutes=2))
    assert not more.counts.is_complete


@pytest.mark.parametrize("seed", range(30))
def test_every_count_is_there_once_whatever_the_clocks_do(seed: int) -> None:
    chance = random.Random(seed)
    folding = Folding(Clocks(time=chance.uniform(0, 1e6), wall=NOON + timedelta(seconds=chance.uniform(0, 3600))))
    counted: Tally[str] = Tally()
    for _ in range(400):
        name = chance.choice((WEB, "outbound|80||api.shop", "inbound|8080||"))
        requests = chance.randrange(1, 1000)
        folding.report(requests, name)
        counted[name] += requests
        folding.clocks.go(chance.choice((0, 0.1, 3, 9.99, 10, 47)))
        if chance.random() < 0.05:
            folding.clocks.wall += timedelta(seconds=chance.choice((-7200, -60, -10.5, -3, 0.4, 5, 61, 3600, 86400)))
        if chance.random() < 0.3:
            folding.fold()
    folding.fold(is_last=True)
    found = {
        each.name: each.counts[Counter.REQUESTS] for each in folding.memory.hours(datetime(2000, 1, 1, tzinfo=UTC))
    }
    assert found == counted


@pytest.mark.parametrize("seed", range(5))
def test_sums_stay_while_minutes_become_hours_and_hours_days(seed: int) -> None:
    chance = random.Random(seed)
    folding = Folding()
    counted = 0
    for hour in range(24 * 5):
        for _ in range(chance.randrange(3)):
            folding.clocks.go(chance.uniform(1, 500))
            folding.report(requests := chance.randrange(1, 100))
            counted += requests
            folding.clocks.go(80)
            folding.fold()
        folding.clocks.go(max(0.0, (NOON + timedelta(hours=hour + 1) - folding.clocks.wall).total_seconds()))
    folding.clocks.go(80)
    folding.fold()
    assert folding.requests() == counted
    kept = folding.memory.statistics()
    assert kept.days and kept.hours <= 96 and kept.minutes <= 61


def test_what_is_older_than_a_month_goes() -> None:
    folding = Folding()
    folding.report(1)
    for _ in range(35 * 24):
        folding.clocks.go(3600)
        folding.memory.add(span_of(int(folding.clocks.wall.timestamp()) - 60, []))
        folding.fold()
    assert folding.memory.since is not None
    assert timedelta(days=31) <= folding.clocks.wall - folding.memory.since <= timedelta(days=33)
    assert folding.requests() == 0


def test_clocks_that_are_set_to_and_fro_do_not_grow_the_memory() -> None:
    folding = Folding()
    chance = random.Random(1)
    for _ in range(600):
        folding.report(1)
        folding.clocks.go(90)
        folding.clocks.wall += timedelta(days=chance.uniform(-3000, 3000))
        folding.fold()
    kept = folding.memory.statistics()
    assert kept.minutes + kept.hours + kept.days <= 130 + 96 + 40


def test_a_slot_that_was_not_folded_in_time_is_a_gap() -> None:
    folding = Folding()
    folding.report(0)
    folding.clocks.go(60)
    folding.report(5)
    folding.clocks.go(1200)
    folding.report(7)
    folding.clocks.go(100)
    folding.fold()
    (edge,) = folding.memory.hours(NOON)
    assert (edge.counts.requests, edge.counts.is_complete) == (7, False)


def test_gauges_are_not_remembered_and_flags_are() -> None:
    memory = TrafficMemory(now=lambda: NOON + timedelta(seconds=70))
    table = TrafficTable(clock=lambda: 0.0)
    table.add(reporting("a.shop"), [row(WEB, requests=3, in_flight=9)], of_agent=True)
    table.add(reporting("b.shop"), [row(WEB, attempts=2)], of_agent=False)
    table.add(reporting("c.shop", "other"), [row(WEB, attempts=2)], of_agent=False, follows_gap=True)
    memory.add(span_of(int(NOON.timestamp()), rows_of(table.edges())))
    first, second = memory.minutes(NOON, NOON + timedelta(minutes=1))
    assert first.counts == Counts(
        {Counter.REQUESTS: 3, Counter.ATTEMPTS: 2}, has_requests=True, is_partial=True, is_complete=False
    )
    assert second.counts == Counts({Counter.ATTEMPTS: 2}, has_requests=False, is_complete=False)


def test_edges_without_room_are_summed_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "MAX_EDGES", 3)
    workload = CallingWorkload("shop", "web")
    rows = [
        ((workload, RowKind.CLUSTER, f"outbound|80||{number}"), Counts({Counter.ATTEMPTS: 1})) for number in range(5)
    ]
    part = span_of(0, rows)
    assert part.left_out == 2
    memory = TrafficMemory(now=lambda: datetime.fromtimestamp(MINUTE, UTC))
    memory.add(part)
    memory.add(part)
    found = {
        (each.workload, each.name): each.counts[Counter.ATTEMPTS]
        for each in memory.hours(datetime.fromtimestamp(0, UTC))
    }
    assert sum(found.values()) == 10
    assert found[OTHERS, ""] == 4
    assert memory.statistics().left_out == 4


def test_names_of_a_span_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "MAX_CHARACTERS", 3000)
    workload = CallingWorkload("shop", "web")
    rows = [((workload, RowKind.CLUSTER, str(number) * 1000), Counts({Counter.ATTEMPTS: 1})) for number in range(9)]
    assert span_of(0, rows).left_out == 6


def test_a_span_that_cannot_be_read_is_a_gap() -> None:
    memory = TrafficMemory(now=lambda: NOON)
    begin = int(NOON.timestamp()) - HOUR
    memory.restore([TrafficSpan(begin, HOUR, 360, data=b"no")])
    table = TrafficTable(clock=lambda: 0.0)
    table.add(reporting(), [row(WEB, requests=3)], of_agent=True)
    memory.add(span_of(begin + 60, rows_of(table.edges(0))))
    (edge,) = memory.hours(NOON - timedelta(hours=1))
    assert (edge.counts.requests, edge.counts.is_complete) == (3, False)


def test_hours_until_a_restart_and_after_it_are_one() -> None:
    before = Folding()
    before.report(4)
    before.clocks.go(500)
    before.report(5)
    before.fold(is_last=True)
    after = Folding(Clocks(time=77.0, wall=before.clocks.wall + timedelta(seconds=4)))
    after.memory.restore([each for each in before.memory.take_unsaved().values() if each is not None])
    after.report(6)
    after.clocks.go(90)
    after.fold()
    after.clocks.go(3600)
    after.fold()
    assert after.requests() == 15
    assert after.memory.statistics().hours == 1
    assert after.memory.since == NOON


@pytest.mark.parametrize("seed", range(20))
def test_two_memories_of_one_time_are_added_up_however_far_each_has_merged_it(seed: int) -> None:
    chance = random.Random(seed)
    both = [Folding(), Folding()]
    counted = 0
    for folding in both:
        for _ in range(60):
            folding.clocks.go(chance.uniform(10, 500))
            folding.report(requests := chance.randrange(1, 100))
            counted += requests
            folding.fold()
        folding.fold(is_last=True)
        folding.clocks.go(chance.choice((60.0, 86400.0 * 4)))
        folding.fold()
    first, second = both
    first.memory.restore(second.memory.spans())
    assert first.requests() == counted
    first.clocks.go(86400.0 * 10)
    first.fold()
    assert first.requests() == counted


def test_a_long_time_without_a_control_plane_loses_nothing_of_before() -> None:
    folding = Folding()
    for _ in range(20):
        folding.clocks.go(300)
        folding.report(1)
        folding.fold()
    folding.fold(is_last=True)
    folding.clocks.go(86400.0 * 5)
    folding.fold()
    assert folding.requests() == 20
    assert folding.memory.statistics().days == 1
