"""The rows of traffic of all workers: summed, also if a worker does not answer."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import attrs
import trio
from trio.testing import MockClock

from mesh_pilot.ops.values.traffic_rows import own_edges, traffic_edges
from mesh_pilot.traffic.memory import MeshTraffic, TrafficMemory
from mesh_pilot.traffic.table import TrafficTable
from tests.support.traffic_counts import reporting, row

WEB = "outbound|80||web.shop"


@attrs.define
class Others:
    """The other workers: what is asked and answered goes through bytes, as between processes."""

    states: Mapping[int, Any]
    silent: frozenset[int] = frozenset()

    @property
    def numbers(self) -> list[int]:
        return [*self.states]

    async def ask(self, question: Any) -> Mapping[int, object]:
        copied = pickle.loads(pickle.dumps(question))
        return {
            number: pickle.loads(pickle.dumps(await own_edges(state, copied)))
            for number, state in self.states.items()
            if number not in self.silent
        }


def plane(others: Any = None) -> Any:
    return SimpleNamespace(traffic=MeshTraffic(TrafficTable(), TrafficMemory()), others=others)


async def test_rows_of_all_workers_are_there_and_those_of_another_time_are_not(autojump_clock: MockClock) -> None:
    second = plane()
    first = plane(Others({2: second}))
    for number, each in enumerate((first, second), 1):
        each.traffic.table.add(reporting(f"api-{number}.shop"), [row(WEB, requests=number)], of_agent=True)
    await trio.sleep(60)
    second.traffic.table.add(reporting("api-2.shop"), [row(WEB, requests=10)], of_agent=True)
    every = {each.proxy.name: each.counts.requests for each in await traffic_edges(first)}
    assert every == {"api-1.shop": 1, "api-2.shop": 12}
    late = await traffic_edges(first, trio.current_time() - 20)
    assert [(each.proxy.name, each.counts.requests) for each in late] == [("api-2.shop", 10)]
    early = await traffic_edges(first, end=trio.current_time() - 20)
    assert [each.counts.requests for each in early] == [1, 2]
    assert [each.proxy.name for each in await traffic_edges(second)] == ["api-2.shop"]


async def test_no_row_is_complete_while_a_worker_is_silent(autojump_clock: MockClock) -> None:
    first, second = plane(), plane()
    first.traffic.table.add(reporting(), [], of_agent=True)
    await trio.sleep(20)
    first.traffic.table.add(reporting(), [row(WEB, requests=1)], of_agent=True)
    begin = trio.current_time() - 10
    for silent in (frozenset[int](), frozenset((2,))):
        first.others = Others({2: second}, silent)
        (edge,) = await traffic_edges(first, begin)
        assert edge.counts.is_complete is not bool(silent)


async def test_there_are_none_where_traffic_is_not_counted() -> None:
    off: Any = SimpleNamespace(traffic=None, others=None)
    assert await traffic_edges(off) == []
