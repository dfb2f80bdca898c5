"""The stream of an agent's reports: control planes that want none, go, come back, or are others."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from mesh_pilot.agent.envoy.admin import AdminClient
from mesh_pilot.agent.envoy.child import since_boot
from mesh_pilot.agent.relay.node_message import encode_node
from mesh_pilot.agent.relay.planes import Planes
from mesh_pilot.agent.traffic.reporter import MERGED_SECONDS, TrafficReporter
from mesh_pilot.model.service import Locality
from mesh_pilot.model.traffic import REPORTS_PATH, Counter, TrafficReport, encode_answer, read_report
from mesh_pilot.net.rpc import Cardinality, GRPCError, Handler, ServerStream, Status
from tests.support.envoy import eventually
from tests.support.fake_plane import FakePlane, fake_plane
from tests.support.relayed import CLIENT, relayed
from tests.support.small_http import Said, SmallHttp, small_http

INTERVAL = 0.5
HERE = Locality("eu", "eu-1")


@attrs.define(eq=False)
class ReportServer:
    """A service of reports that adds them up."""

    seconds: float = INTERVAL
    refuses: Status | None = None
    calls: int = 0
    reports: list[TrafficReport] = attrs.field(factory=list)
    ends: trio.Event = attrs.field(factory=trio.Event)
    """Set to end streams in order."""
    ended_by_agents: int = 0

    def __mapping__(self) -> Mapping[str, Handler]:
        return {REPORTS_PATH: Handler(self._stream, Cardinality.STREAM_STREAM, bytes, bytes)}

    async def _stream(self, stream: ServerStream[bytes, bytes]) -> None:
        self.calls += 1
        if self.refuses is not None:
            raise GRPCError(self.refuses, "not here")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._receive, stream, nursery.cancel_scope)
            await self.ends.wait()
            nursery.cancel_scope.cancel()

    async def _receive(self, stream: ServerStream[bytes, bytes], scope: trio.CancelScope) -> None:
        async for data in stream:
            self.reports.append(read_report(data))
            if self.reports[-1].node:
                await stream.send_message(encode_answer(self.seconds))
        self.ended_by_agents += 1
        scope.cancel()

    def sums(self) -> Mapping[str, int]:
        """Requests by cluster."""
        found: Tally[str] = Tally()
        for report in self.reports:
            for row in report.rows:
                found[row.name] += row.counts.get(Counter.REQUESTS, 0)
        return found

    @property
    def gaps(self) -> int:
        return sum(report.follows_gap for report in self.reports)


@attrs.define
class Process:
    """What is known of an Envoy's process."""

    pid: int = 1
    epoch: int = 0
    started: float = attrs.field(factory=lambda: since_boot() + 1)


@attrs.define
class Envoy:
    """An Envoy that is nothing but an admin interface."""

    http: SmallHttp
    client: AdminClient
    facts: Process
    has_admin: bool = True

    @property
    def age_seconds(self) -> float:
        return since_boot() - self.facts.started

    def has_admin_file(self) -> bool:
        return True

    async def admin(self) -> AdminClient:
        return self.client

    def counts(self, **requests: int) -> None:
        lines = [f"cluster.{name}.upstream_rq_completed: {count}" for name, count in requests.items()]
        self.http.answers["/stats"] = Said("\n".join(lines).encode())


@attrs.define
class Runner:
    """In place of the agent's part that runs Envoy."""

    current: Envoy | None


@attrs.define
class Reporting:
    """A reporter that runs."""

    reporter: TrafficReporter
    runner: Any
    envoy: Envoy
    planes: Planes


@asynccontextmanager
async def reporting(folder: Path, *pilots: str) -> AsyncIterator[Reporting]:
    async with small_http({"/stats": Said(b"")}) as http, relayed(folder, *pilots, locality=HERE) as relay:
        runner: Any = Runner(None)
        reporter = TrafficReporter(runner, relay.planes, encode_node(CLIENT, {}))
        client = AdminClient(f"127.0.0.1:{http.port}")
        envoy = runner.current = Envoy(http, client, Process())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reporter.run)
            yield Reporting(reporter, runner, envoy, relay.planes)
            nursery.cancel_scope.cancel()
        client.abort()


def cut(plane: FakePlane) -> None:
    """End its connections without a word."""
    assert plane.server is not None
    for connection in list(plane.server._connections):
        connection.cut()


async def other_looks(folder: Path) -> None:
    """Wait until another agent would have looked at its Envoy three times."""
    await trio.Path(folder).mkdir()
    async with fake_plane(ReportServer()) as plane, reporting(folder, plane.address) as other:
        await eventually(lambda: len(other.envoy.http.requests) >= 4)


async def test_the_node_is_in_the_first_report_and_rows_only_where_something_changes(tmp_path: Path) -> None:
    server = ReportServer()
    async with fake_plane(server) as plane, reporting(tmp_path, plane.address) as at:
        await eventually(lambda: len(server.reports) >= 2)
        assert b"web-1" in server.reports[0].node
        assert server.reports[1].follows_gap, "the agent is new"
        at.envoy.counts(a=3, b=1)
        await eventually(lambda: server.sums() == {"a": 3, "b": 1})
        at.envoy.counts(a=5, b=1)
        await eventually(lambda: server.sums() == {"a": 5, "b": 1})
        assert [row.name for row in server.reports[-1].rows] == ["a"]
        assert not any(report.node for report in server.reports[1:])
        assert server.gaps == 1
        statistics = at.reporter.statistics()
        assert (statistics.connected, statistics.rows_total, statistics.gaps_total) == (True, 3, 1)


async def test_a_control_plane_that_wants_none_costs_no_look_at_envoy(tmp_path: Path) -> None:
    for server in (ReportServer(seconds=0.0), ReportServer(refuses=Status.UNIMPLEMENTED)):
        async with fake_plane(server) as plane, reporting(tmp_path, plane.address) as at:
            await eventually(lambda at=at: at.reporter.statistics().interval_seconds == 0)  # type: ignore[misc]
            looks = len(at.envoy.http.requests)
            at.envoy.counts(a=3)
            await other_looks(tmp_path / server.refuses.name if server.refuses else tmp_path / "other")
            assert len(at.envoy.http.requests) == looks
            assert server.calls == 1
            at.envoy.counts(a=4)
            server.seconds, server.refuses = INTERVAL, None
            cut(plane)
            await eventually(lambda server=server: server.gaps == 1)  # type: ignore[misc]
            at.envoy.counts(a=6)
            await eventually(lambda server=server: server.sums() == {"a": 2})  # type: ignore[misc]


async def test_while_no_control_plane_is_there_increases_are_added_up(tmp_path: Path) -> None:
    server = ReportServer()
    async with fake_plane(server) as plane, reporting(tmp_path, plane.address) as at:
        at.envoy.counts(a=3)
        await eventually(lambda: server.sums() == {"a": 3})
        plane.greets, plane.is_mute = False, True
        cut(plane)
        await eventually(lambda: at.planes.current.value is None)
        looks = len(at.envoy.http.requests)
        at.envoy.counts(a=7)
        await eventually(lambda: len(at.envoy.http.requests) > looks + 1)
        at.envoy.facts = Process(pid=2)  # it has exited, and another was started
        at.envoy.counts(a=1)
        await eventually(lambda: len(at.envoy.http.requests) > looks + 3)
        plane.greets, plane.is_mute = True, False
        await eventually(lambda: server.sums() == {"a": 8})
        assert server.gaps == 2


async def test_a_stream_that_is_left_for_another_control_plane_loses_nothing(tmp_path: Path) -> None:
    near, far = ReportServer(), ReportServer()
    async with fake_plane(near) as plane, fake_plane(far) as other:
        pilots = (f"{other.address}@us/a", f"{plane.address}@eu/eu-1")
        plane.greets, plane.is_mute = False, True
        async with reporting(tmp_path, *pilots) as at:
            at.envoy.counts(a=3)
            await eventually(lambda: far.sums() == {"a": 3})
            plane.greets, plane.is_mute = True, False
            await eventually(lambda: near.calls == 1)
            await eventually(lambda: far.ended_by_agents == 1)
            at.envoy.counts(a=9)
            await eventually(lambda: near.sums() == {"a": 6})
            assert (near.gaps, far.gaps) == (0, 1)


async def test_after_a_stream_that_broke_a_report_says_that_counts_may_be_lost(tmp_path: Path) -> None:
    server = ReportServer()
    async with fake_plane(server) as plane, reporting(tmp_path, plane.address) as at:
        at.envoy.counts(a=3)
        await eventually(lambda: server.sums() == {"a": 3})
        cut(plane)
        await eventually(lambda: server.gaps == 2)
        server.ends.set()  # in order, as when a connection is retired
        await eventually(lambda: server.calls == 3)
        server.ends = trio.Event()
        at.envoy.counts(a=4)
        await eventually(lambda: server.sums() == {"a": 4})
        assert server.gaps == 2


async def test_an_envoy_whose_successor_has_the_admin_interface_is_not_read(tmp_path: Path) -> None:
    server = ReportServer()
    async with fake_plane(server) as plane, reporting(tmp_path, plane.address) as at:
        at.envoy.counts(a=3)
        await eventually(lambda: server.sums() == {"a": 3})
        at.envoy.has_admin = False
        at.envoy.counts(a=100)
        looks = len(at.envoy.http.requests)
        await eventually(lambda: len(at.envoy.http.requests) > looks + 1)
        started = since_boot() - MERGED_SECONDS
        at.runner.current = Envoy(at.envoy.http, at.envoy.client, Process(pid=2, epoch=1, started=started))
        await eventually(lambda: server.gaps == 2)
        at.envoy.counts(a=101)
        await eventually(lambda: server.sums() == {"a": 4})


async def test_an_envoy_after_a_hot_restart_is_read_once_it_has_what_its_predecessor_counted_last(
    tmp_path: Path,
) -> None:
    server = ReportServer()
    async with fake_plane(server) as plane, reporting(tmp_path, plane.address) as at:
        at.envoy.counts(a=3)
        await eventually(lambda: server.sums() == {"a": 3})
        looks = len(at.envoy.http.requests)
        young = Process(pid=2, epoch=1, started=since_boot() - MERGED_SECONDS + 1.0)
        at.envoy.counts(a=2)  # of those that were reported
        at.runner.current = Envoy(at.envoy.http, at.envoy.client, young)
        await eventually(lambda: server.gaps == 2)
        assert since_boot() >= young.started + MERGED_SECONDS
        at.envoy.counts(a=3)
        await eventually(lambda: server.sums() == {"a": 4})
        assert len(at.envoy.http.requests) > looks


async def test_the_last_report_is_sent_and_its_stream_ended_before_the_agent_ends(tmp_path: Path) -> None:
    server = ReportServer(seconds=30.0)
    async with fake_plane(server) as plane, reporting(tmp_path, plane.address) as at:
        await eventually(lambda: at.reporter.statistics().connected)
        await eventually(lambda: server.gaps == 1)
        at.envoy.counts(a=3)
        await at.reporter.end()
        assert server.sums() == {"a": 3}
        assert server.ended_by_agents == 1
