"""The traffic that suggestions are made of: of the memory, and of the last minutes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from mesh_pilot.explain.suggestions.observed import read_observed
from mesh_pilot.model.json import as_json
from mesh_pilot.model.traffic import Counter, RowKind
from mesh_pilot.ops.values.observed_traffic import observed_traffic, recent_traffic
from mesh_pilot.traffic.memory import MeshTraffic, TrafficMemory, rows_of
from mesh_pilot.traffic.spans import MINUTE
from mesh_pilot.traffic.table import TrafficTable
from tests.support.traffic_counts import reporting, row, span_of

NOW = datetime(2026, 3, 8, 12, 0, 30, tzinfo=UTC)
WEB, API = reporting(), reporting("api-1.shop", "api")


def test_what_was_remembered_and_what_is_new_come_through_json_as_they_are() -> None:
    now = NOW - timedelta(days=2)
    memory, table = TrafficMemory(now=lambda: now), TrafficTable(clock=lambda: 1000.0)
    table.add(WEB, [row("outbound|80||old.shop", requests=7, errors=1)], of_agent=True)
    memory.add(span_of(int(now.timestamp()) // MINUTE * MINUTE, rows_of(table.edges())))
    table.add(API, [row("outbound|80||new.shop", attempts=3), row("p", RowKind.POLICY, denied=1)], of_agent=False)
    traffic = MeshTraffic(table, memory)

    value = observed_traffic(recent_traffic(traffic, table.edges(), 7, NOW), 7)
    seen = read_observed(json.loads(json.dumps(as_json(value))))
    assert seen is not None
    assert seen.until == NOW
    assert timedelta(days=2) <= seen.until - seen.since < timedelta(days=2, minutes=2)
    assert seen.is_short
    assert seen.reporters == {WEB.node: WEB.workload, API.node: API.workload}
    counts = {(each.workload, each.name): each.counts for each in seen.edges}
    assert counts[WEB.workload, "outbound|80||old.shop"].requests == 7
    assert counts[API.workload, "outbound|80||new.shop"].requests is None
    assert counts[API.workload, "outbound|80||new.shop"][Counter.ATTEMPTS] == 3
    assert [str(each) for each in seen.calls[API.workload]] == ["outbound|80||new.shop"]
    assert len(seen.edges) == 3

    yesterday = read_observed(as_json(observed_traffic(recent_traffic(traffic, (), 1, NOW), 1)))
    assert yesterday is not None
    assert not yesterday.calls
    assert not yesterday.is_short


def test_without_any_count_there_is_nothing_to_learn_from() -> None:
    traffic = MeshTraffic(TrafficTable(clock=lambda: 0.0), TrafficMemory(now=lambda: NOW))
    assert read_observed(as_json(observed_traffic(recent_traffic(traffic, (), 7, NOW), 7))) is None
