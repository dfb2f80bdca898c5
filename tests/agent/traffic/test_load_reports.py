"""Envoy's load reports at the agent: what they add to its own report, and what they do without a control plane."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
from envoy.service.load_stats.v3.lrs_pb2 import LoadStatsRequest, LoadStatsResponse
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.traffic.increases import Increases
from mesh_pilot.agent.traffic.load_reports import (
    LOAD_STATS_PATH,
    LoadReportService,
    attempts_of,
    reporting_answer,
)
from mesh_pilot.base.protowire import WireError
from mesh_pilot.model.traffic import Counter, RowKind, TrafficReport, TrafficRow
from mesh_pilot.net.rpc import (
    Cardinality,
    ClientCall,
    GRPCError,
    StreamTerminatedError,
    open_channel,
    open_listeners,
    serve,
)
from tests.support.envoy import eventually

numbers = st.integers(0, 2**40)


def report(*attempts: tuple[int, int], node: str = "web-1") -> bytes:
    """A report as Envoy sends it, with a cluster for each pair of successes and errors."""
    message = LoadStatsRequest()
    message.node.id = node
    for number, (successes, errors) in enumerate(attempts):
        cluster = message.cluster_stats.add(cluster_name=f"c{number}", total_dropped_requests=errors)
        cluster.load_report_interval.FromSeconds(10)
        if successes or errors:
            cluster.upstream_locality_stats.add(
                total_issued_requests=successes, total_successful_requests=successes, total_error_requests=errors
            )
    data: bytes = message.SerializeToString()
    return data


@attrs.define
class Serving:
    """A service that runs."""

    service: LoadReportService
    increases: Increases
    interval: Observable[float]
    address: str

    def reported(self) -> TrafficReport | None:
        """What the agent has to report."""
        return self.increases.take(10)

    async def received(self, count: int) -> None:
        await eventually(lambda: self.service.statistics().reports_total == count)


@asynccontextmanager
async def serving(folder: Path, seconds: float = 10) -> AsyncIterator[Serving]:
    increases, interval = Increases(), Observable(seconds)
    service = LoadReportService(increases, interval)
    address = f"unix://{folder / 'xds.sock'}"
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, [service], await open_listeners(address)))
        yield Serving(service, increases, interval, address)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def load_stream(at: Serving) -> AsyncIterator[ClientCall[bytes, bytes]]:
    """A stream of an Envoy that has said who it is."""
    async with (
        open_channel(at.address) as channel,
        channel.request(LOAD_STATS_PATH, Cardinality.STREAM_STREAM, bytes, bytes) as call,
    ):
        await call.send_message(report())
        yield call


async def interval_told(call: ClientCall[bytes, bytes]) -> float:
    with trio.fail_after(20):
        data = await call.recv_message()
    assert data is not None
    answer = LoadStatsResponse.FromString(data)
    assert answer.send_all_clusters
    return answer.load_reporting_interval.ToMilliseconds() / 1000


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), st.lists(st.tuples(numbers, numbers))))
def test_attempts_are_what_ended_in_all_localities(clusters: dict[str, list[tuple[int, int]]]) -> None:
    message = LoadStatsRequest()
    message.node.id = "web-1"
    expected = []
    for name, localities in clusters.items():
        stats = message.cluster_stats.add(cluster_name=name, total_dropped_requests=3)
        for successes, errors in localities:
            stats.upstream_locality_stats.add(
                total_successful_requests=successes,
                total_error_requests=errors,
                total_issued_requests=7,
                total_requests_in_progress=5,
            )
        successes, errors = (sum(each[place] for each in localities) for place in (0, 1))
        if successes or errors:
            expected.append((name, successes + errors, errors))
    assert [*attempts_of(message.SerializeToString())] == expected


def test_what_is_between_envoy_and_its_agent_is_left_out() -> None:
    message = LoadStatsRequest.FromString(report((1, 0), (1, 0)))
    message.cluster_stats[0].cluster_name = "prometheus_stats"
    assert [*attempts_of(message.SerializeToString())] == [("c1", 1, 0)]


@given(st.binary(max_size=200), st.integers(1, 60))
def test_no_bytes_do_more_than_be_refused(data: bytes, cut: int) -> None:
    for each in (data, report((3, 1), (0, 2))[:-cut]):
        with suppress(WireError):
            assert all(name and attempts >= failed for name, attempts, failed in attempts_of(each))


@given(st.integers(1, 10**7))
def test_the_answer_is_envoys(milliseconds: int) -> None:
    answer = LoadStatsResponse.FromString(reporting_answer(milliseconds / 1000))
    assert answer.load_reporting_interval.ToMilliseconds() == milliseconds
    assert answer.send_all_clusters


async def test_attempts_are_in_the_next_report_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as at, load_stream(at) as envoy:
        assert await interval_told(envoy) == 10
        for attempts in ((5, 1), (0, 0), (7, 0)):
            await envoy.send_message(report(attempts, (0, 0)))
        await at.received(4)
        found = at.reported()
        assert found is not None
        counts = {Counter.ATTEMPTS: 13, Counter.FAILED_ATTEMPTS: 1}
        assert found.rows == (TrafficRow(RowKind.CLUSTER, "c0", counts),)
        assert at.reported() is None
        assert at.service.statistics().streams == 1
        await envoy.end()
        await eventually(lambda: at.service.statistics().streams == 0)


async def test_envoys_interval_is_the_agents(tmp_path: Path) -> None:
    async with serving(tmp_path, seconds=0) as at, load_stream(at) as envoy:
        await envoy.send_message(report((5, 0)))
        await at.received(2)
        assert at.reported() is None, "none is wanted"
        at.interval.set(2.5)
        assert await interval_told(envoy) == 2.5
        await envoy.send_message(report((6, 0)))
        await at.received(3)
        found = at.reported()
        assert found is not None and found.rows[0].counts == {Counter.ATTEMPTS: 6}


async def test_what_an_envoy_counted_last_before_its_successor_alone_serves_is_marked_as_lost(tmp_path: Path) -> None:
    async with serving(tmp_path) as at:
        at.increases.read("")
        assert at.reported() is not None and at.reported() is None  # the gap of the agent's start
        async with load_stream(at):
            async with load_stream(at):
                await eventually(lambda: at.service.statistics().streams == 2)
            await eventually(lambda: at.service.statistics().streams == 1)
            found = at.reported()
            assert found is not None and found.follows_gap


async def test_a_report_that_cannot_be_read_ends_its_stream_with_the_reason(tmp_path: Path) -> None:
    async with serving(tmp_path) as at, load_stream(at) as envoy:
        await interval_told(envoy)
        await envoy.send_message(report((1, 0))[:-1])
        with pytest.raises((GRPCError, StreamTerminatedError), match="the report is cut short"), trio.fail_after(20):
            await envoy.recv_message()


async def test_two_envoys_are_added_up(tmp_path: Path) -> None:
    async with serving(tmp_path) as at, load_stream(at) as old, load_stream(at) as new:
        for envoy in (old, new):
            await envoy.send_message(report((4, 2)))
        await at.received(4)
        found = at.reported()
        assert found is not None
        assert Tally(found.rows[0].counts) == {Counter.ATTEMPTS: 12, Counter.FAILED_ATTEMPTS: 4}
