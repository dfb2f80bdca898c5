"""The table: over random reports its sums are those of a list of all of them; who makes up names hurts no others."""

from __future__ import annotations

import math
from collections import Counter as Tally

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.model.traffic import Counter, RowKind, TrafficRow
from mesh_pilot.traffic import table as table_module
from mesh_pilot.traffic.table import SLOT_SECONDS, SLOTS, CallingWorkload, ReportingProxy, TrafficTable
from tests.support.traffic_counts import reporting, row

NODES = [reporting(f"web-{number}.shop") for number in range(3)]

counts = st.dictionaries(
    st.sampled_from([Counter.ATTEMPTS, Counter.FAILED_ATTEMPTS, Counter.REQUESTS]),
    st.sampled_from([0, 1, 3, 1000, 0xFFFF, 0x1_0000, 0x10_0000]),
    max_size=3,
)
reports = st.tuples(
    st.sampled_from([0.0, 0.5, 4.0, 10.0, 25.0, 130.0, 599.0, 900.0]),
    st.sampled_from(NODES),
    st.lists(st.tuples(st.sampled_from("abc"), counts), max_size=4),
)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(reports, max_size=30), st.integers(-5, SLOTS + 5), st.integers(-5, SLOTS + 5), st.booleans())
def test_sums_over_slots_are_those_of_all_reports(
    steps: list[tuple[float, ReportingProxy, list[tuple[str, dict[Counter, int]]]]],
    from_slot: int,
    to_slot: int,
    forgets: bool,
) -> None:
    clock = Clock()
    table = TrafficTable(clock=clock)
    told: list[tuple[int, str, str, dict[Counter, int]]] = []
    for wait, proxy, rows in steps:
        clock.now += wait
        table.add(proxy, [TrafficRow(RowKind.CLUSTER, *each) for each in rows], of_agent=False)
        told += [(math.floor(clock.now / SLOT_SECONDS), proxy.node, *each) for each in rows]
        if forgets:
            table.forget()
    now = math.floor(clock.now / SLOT_SECONDS)
    begin, end = now - from_slot, now - to_slot
    expected: dict[tuple[str, str], Tally[Counter]] = {}
    for slot, node, name, found in told:
        if max(begin, now - SLOTS + 1) <= slot < end:
            expected.setdefault((node, name), Tally()).update(found)
    found_edges = table.edges(begin * SLOT_SECONDS, end * SLOT_SECONDS)
    sums = {(edge.proxy.node, edge.name): dict(edge.counts.values) for edge in found_edges}
    assert sums == {key: dict(+tally) for key, tally in expected.items() if +tally}


def test_what_is_long_over_is_forgotten() -> None:
    clock = Clock()
    table = TrafficTable(clock=clock)
    for proxy in NODES:
        table.add(proxy, [row("a", attempts=1), row("b", attempts=1)], of_agent=False)
    clock.now += 400
    table.add(NODES[0], [row("a", attempts=1)], of_agent=False)
    clock.now += 300
    table.forget()
    assert (table.statistics().callers, table.statistics().rows) == (1, 1)
    clock.now += 600
    table.forget()
    assert (table.statistics().callers, table.statistics().rows) == (0, 0)


def named(number: int, principal: str) -> ReportingProxy:
    proxy = reporting(f"web-{number}.shop")
    return attrs.evolve(proxy, workload=attrs.evolve(proxy.workload, principal=principal))


def test_an_identity_has_at_most_half_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "MAX_ROWS", 100)
    table = TrafficTable()
    clock = Clock()
    table = TrafficTable(clock=clock)
    table.add(named(1, "spiffe://evil"), [row(f"a{n}", attempts=1) for n in range(200)], of_agent=False)
    assert table.statistics().rows == 50
    assert table.statistics().refused_rows == 150
    table.add(named(2, "spiffe://good"), [row(f"a{n}", attempts=1) for n in range(30)], of_agent=False)
    assert table.statistics().rows == 80
    clock.now += 700
    table.forget()
    table.add(named(1, "spiffe://evil"), [row(f"b{n}", attempts=1) for n in range(200)], of_agent=False)
    assert table.statistics().rows == 50


def test_those_without_an_identity_have_at_most_half_of_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "MAX_CALLERS", 10)
    table = TrafficTable(clock=Clock())
    for number in range(20):
        table.add(named(number, ""), (), of_agent=False)
    assert (table.statistics().callers, table.statistics().refused_callers) == (5, 15)
    table.add(named(100, "spiffe://good"), [row("a", attempts=1)], of_agent=False)
    assert table.statistics().callers == 6


def test_a_node_that_gets_an_identity_counts_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "MAX_CALLERS", 4)
    table = TrafficTable(clock=Clock())
    table.add(named(1, ""), [row("a", attempts=1)], of_agent=False)
    table.add(named(1, "spiffe://web"), [row("a", attempts=1)], of_agent=False)
    for number in (2, 3):
        table.add(named(number, ""), (), of_agent=False)
    assert table.statistics().callers == 3
    (edge,) = table.edges()
    assert edge.proxy.workload == CallingWorkload("shop", "web", "spiffe://web", (("app", "web"),))
    assert edge.counts[Counter.ATTEMPTS] == 2


def test_reports_may_come_while_edges_are_read() -> None:
    table = TrafficTable(clock=Clock())
    table.add(NODES[0], [row(name, attempts=1) for name in "abc"], of_agent=False)
    names = []
    for number, edge in enumerate(table.edges()):
        names.append(edge.name)
        table.add(reporting(f"late-{number}.shop"), [row("x", attempts=1)], of_agent=False)
        table.add(NODES[0], [row(f"x{number}", attempts=1)], of_agent=False)
    assert names == ["a", "b", "c"]
