"""Load reports on their way through the relay: what passes, what is left out, and what a control plane's end means."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from envoy.config.endpoint.v3.load_report_pb2 import ClusterStats
from envoy.service.load_stats.v3.lrs_pb2 import LoadStatsRequest, LoadStatsResponse

from mesh_pilot.agent.relay.load_reports import LOAD_STATS_PATH, shortened
from mesh_pilot.base.protowire import WireError
from mesh_pilot.model.service import Locality
from mesh_pilot.net.rpc import (
    Cardinality,
    ClientCall,
    GRPCError,
    Handler,
    ServerStream,
    Status,
    StreamTerminatedError,
    open_channel,
)
from tests.support.envoy import eventually
from tests.support.fake_plane import FakePlane, fake_plane
from tests.support.relayed import Relayed, relayed

ANSWER = LoadStatsResponse(send_all_clusters=True)
ANSWER.load_reporting_interval.FromSeconds(10)


class LoadServer:
    """A LoadReportingService that notes what it is sent, and answers the first report of a stream."""

    def __init__(self, refuses: Status | None = None) -> None:
        self.refuses = refuses
        self.calls = 0
        self.reports: list[LoadStatsRequest] = []

    def __mapping__(self) -> Mapping[str, Handler]:
        return {LOAD_STATS_PATH: Handler(self._stream, Cardinality.STREAM_STREAM, bytes, bytes)}

    async def _stream(self, stream: ServerStream[bytes, bytes]) -> None:
        self.calls += 1
        if self.refuses is not None:
            raise GRPCError(self.refuses, "not here")
        async for report in stream:
            self.reports.append(LoadStatsRequest.FromString(report))
            if self.reports[-1].HasField("node"):
                await stream.send_message(ANSWER.SerializeToString())


def report(*requests: int, node: str = "web-1", dropped: int = 0) -> bytes:
    """A report as Envoy sends it, with a cluster for each number of requests."""
    message = LoadStatsRequest()
    message.node.id = node
    for number, count in enumerate(requests):
        cluster = message.cluster_stats.add(cluster_name=f"c{number}", total_dropped_requests=dropped)
        cluster.load_report_interval.FromSeconds(10)
        if count:
            cluster.upstream_locality_stats.add(total_issued_requests=count, total_successful_requests=count)
    return message.SerializeToString()


@asynccontextmanager
async def load_stream(at: Relayed) -> AsyncIterator[ClientCall[bytes, bytes]]:
    """A stream of an Envoy that has said who it is."""
    async with (
        open_channel(at.address) as channel,
        channel.request(LOAD_STATS_PATH, Cardinality.STREAM_STREAM, bytes, bytes) as call,
    ):
        await call.send_message(report())
        yield call


async def answered(call: ClientCall[bytes, bytes]) -> LoadStatsResponse:
    with trio.fail_after(20):
        data = await call.recv_message()
    assert data is not None
    return LoadStatsResponse.FromString(data)


def cut(plane: FakePlane) -> None:
    """End its connections without a word."""
    assert plane.server is not None
    for connection in list(plane.server._connections):
        connection.cut()


def test_only_clusters_with_numbers_are_left_of_a_report() -> None:
    found = LoadStatsRequest.FromString(shortened(report(0, 3, 0, 1)))
    assert not found.HasField("node")
    assert [each.cluster_name for each in found.cluster_stats] == ["c1", "c3"]
    assert found.cluster_stats[0] == LoadStatsRequest.FromString(report(0, 3)).cluster_stats[1]
    assert shortened(report(0, 0)) == b""
    assert len(LoadStatsRequest.FromString(shortened(report(0, dropped=1))).cluster_stats) == 1
    by_category = ClusterStats(cluster_name="c", dropped_requests=[ClusterStats.DroppedRequests(category="x")])
    assert shortened(LoadStatsRequest(cluster_stats=[by_category]).SerializeToString())
    own = LoadStatsRequest.FromString(report(1, 1))
    own.cluster_stats[0].cluster_name = "prometheus_stats"
    assert len(LoadStatsRequest.FromString(shortened(own.SerializeToString())).cluster_stats) == 1
    with pytest.raises(WireError):
        shortened(report(1)[:-1])


async def test_the_node_is_in_the_first_report_alone_and_those_without_traffic_are_not_sent(tmp_path: Path) -> None:
    server = LoadServer()
    async with fake_plane(server) as plane, relayed(tmp_path, plane.address) as at, load_stream(at) as envoy:
        assert await answered(envoy) == ANSWER
        for requests in (5, 0, 7):
            await envoy.send_message(report(requests, 0))
        await eventually(lambda: len(server.reports) == 3)
        assert [each.node.id for each in server.reports] == ["web-1", "", ""]
        issued = [
            [each.upstream_locality_stats[0].total_issued_requests for each in every.cluster_stats]
            for every in server.reports
        ]
        assert issued == [[], [5], [7]]
        counts = {"streams": 1, "reports_total": 3, "passed_total": 2, "lost_total": 0}
        assert attrs.asdict(at.load_reports.statistics()) == counts
        await envoy.end()
        await eventually(lambda: at.load_reports.statistics().streams == 0)


async def test_a_control_plane_without_the_service_is_asked_once_and_envoys_stream_stays_open(tmp_path: Path) -> None:
    server = LoadServer(refuses=Status.UNIMPLEMENTED)
    async with fake_plane(server) as plane, relayed(tmp_path, plane.address) as at, load_stream(at) as envoy:
        await eventually(lambda: server.calls == 1)
        await envoy.send_message(report(5))
        await eventually(lambda: at.load_reports.statistics().lost_total == 1)
        async with load_stream(at):
            await eventually(lambda: at.load_reports.statistics().streams == 2)
        assert server.calls == 1
        server.refuses = None  # it has another version now: a new connection finds out
        cut(plane)
        assert await answered(envoy) == ANSWER


async def test_envoys_stream_goes_on_at_another_control_plane(tmp_path: Path) -> None:
    first, second = LoadServer(), LoadServer()
    async with fake_plane(second) as other, fake_plane(first) as plane:
        pilots = (f"{plane.address}@eu/eu-1", f"{other.address}@us/a")
        async with relayed(tmp_path, *pilots, locality=Locality("eu", "eu-1")) as at, load_stream(at) as envoy:
            await answered(envoy)
            plane.greets, plane.is_mute = False, True
            cut(plane)
            await answered(envoy)
            await envoy.send_message(report(3))
            await eventually(lambda: len(second.reports) == 2)
            assert [each.node.id for each in second.reports] == ["web-1", ""]


@pytest.mark.parametrize("status", [Status.UNAVAILABLE, Status.PERMISSION_DENIED])
async def test_a_control_plane_that_refuses_reports_for_now_is_asked_again(tmp_path: Path, status: Status) -> None:
    server = LoadServer(refuses=status)
    async with fake_plane(server) as plane, relayed(tmp_path, plane.address) as at, load_stream(at) as envoy:
        await eventually(lambda: server.calls >= 2)
        server.refuses = None
        assert await answered(envoy) == ANSWER


async def test_a_report_that_cannot_be_read_ends_its_stream_with_the_reason(tmp_path: Path) -> None:
    async with fake_plane(LoadServer()) as plane, relayed(tmp_path, plane.address) as at, load_stream(at) as envoy:
        await answered(envoy)
        await envoy.send_message(report(1)[:-1])
        with pytest.raises((GRPCError, StreamTerminatedError), match="the report is cut short"), trio.fail_after(20):
            await envoy.recv_message()
