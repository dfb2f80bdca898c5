"""Reports at a whole control plane: on both ports, in its statistics and metrics, and with reports switched off."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
from envoy.service.load_stats.v3.lrs_pb2 import LoadStatsResponse

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.model.traffic import REPORTS_PATH, Counter, read_answer
from mesh_pilot.net.rpc import Cardinality, GRPCError, Status, open_channel
from mesh_pilot.traffic.table import TrafficEdge
from tests.support.envoy import eventually, http_client
from tests.support.plane_process import PlaneProcess
from tests.support.planes import SERVICE, running_plane
from tests.support.traffic_counts import row
from tests.traffic_reports.streams import LRS_PATH, agents, loads, node

REVIEWS = "outbound|9080||reviews.test"
TEN = {"successful_requests": 8, "error_requests": 2}


def edges(plane: ControlPlane) -> list[TrafficEdge]:
    assert plane.state.traffic is not None
    return list(plane.state.traffic.table.edges())


async def metrics(plane: ControlPlane) -> str:
    async with http_client() as client:
        return (await client.get(f"http://{plane.addresses.monitoring}/metrics")).text


def config(folder: Path) -> Path:
    (folder / "service.yaml").write_text(SERVICE)
    return folder


@pytest.mark.plane
async def test_reports_of_both_kinds_come_to_one_table(tmp_path: Path) -> None:
    async with (
        running_plane(config(tmp_path), traffic_reports=7.0) as plane,
        open_channel(plane.addresses.grpc, tls=None) as channel,
        channel.request(LRS_PATH, Cardinality.STREAM_STREAM, bytes, LoadStatsResponse) as envoy,
        channel.request(REPORTS_PATH, Cardinality.STREAM_STREAM, bytes, bytes) as agent,
    ):
        await agent.send_message(agents(of=node("api-1")))
        await envoy.send_message(loads(node()))
        answer = await agent.recv_message()
        told = await envoy.recv_message()
        assert answer is not None
        assert told is not None
        assert read_answer(answer) == told.load_reporting_interval.seconds == 7
        await envoy.send_message(loads(node(), **{REVIEWS: TEN}))
        await agent.send_message(agents(row(REVIEWS, requests=9, errors=1)))
        await eventually(lambda: len(edges(plane)) == 2, what="both reports")
        found = {edge.proxy.name: edge.counts for edge in edges(plane)}
        assert (found["api-1.shop"].requests, found["api-1.shop"].errors) == (9, 1)
        assert found["web-1.shop"].tried == (10, 2, Counter.ATTEMPTS)
        text = await metrics(plane)
        for line in ("mesh_pilot_traffic_streams 2.0", "mesh_pilot_traffic_proxies 2.0", "mesh_pilot_traffic_rows 2.0"):
            assert line in text


@pytest.mark.plane
async def test_without_reports_nothing_is_counted_and_clients_are_told(tmp_path: Path) -> None:
    async with (
        running_plane(config(tmp_path), traffic_reports=None) as plane,
        open_channel(plane.addresses.grpc, tls=None) as channel,
    ):
        assert (plane.state.traffic, plane.state.reports) == (None, None)
        for path, first in ((LRS_PATH, loads(node())), (REPORTS_PATH, agents(of=node()))):
            with pytest.raises(GRPCError) as refused, trio.fail_after(30):
                async with channel.request(path, Cardinality.STREAM_STREAM, bytes, bytes) as call:
                    await call.send_message(first)
                    await call.recv_message()
            assert refused.value.status is Status.UNIMPLEMENTED
        assert "mesh_pilot_traffic" not in await metrics(plane)


@pytest.mark.process
async def test_every_worker_takes_reports(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    (tmp_path / "config").mkdir()
    folder, log = config(tmp_path / "config"), tmp_path / "log"
    process = PlaneProcess(log, free_ports(3), "--workers=2", "--no-state", f"--config-dir={folder}")
    async with AsyncExitStack() as stack:
        await process.start()
        stack.push_async_callback(process.kill)
        client = await stack.enter_async_context(http_client(process.web))
        for number in range(8):
            channel = await stack.enter_async_context(open_channel(process.grpc, tls=None))
            call = await stack.enter_async_context(
                channel.request(LRS_PATH, Cardinality.STREAM_STREAM, bytes, LoadStatsResponse)
            )
            await call.send_message(loads(node(f"web-{number}")))
            assert await call.recv_message() is not None
            await call.send_message(loads(**{REVIEWS: TEN}))

        async def summed() -> bool:
            text = (await client.get("/metrics")).text
            return "mesh_pilot_traffic_reports 8.0" in text and "mesh_pilot_traffic_proxies 8.0" in text

        await eventually(summed, what="the reports of all workers")
