"""Traffic from the wire to the command: a plane of two processes, streams of reports, ``mesh-pilot traffic``."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
import trio

from mesh_pilot.model.traffic import REPORTS_PATH
from mesh_pilot.net.rpc import Cardinality, ClientCall, open_channel
from tests.support.command import Done, mesh_pilot
from tests.support.envoy import eventually
from tests.support.plane_process import PlaneProcess
from tests.support.planes import SERVICE
from tests.support.ports import free_ports
from tests.support.traffic_counts import row
from tests.traffic_reports.streams import LRS_PATH, agents, loads, node

pytestmark = [pytest.mark.process, pytest.mark.slow]

REVIEWS = "outbound|9080|v1|reviews.test"
REPORTS = 5


async def test_what_agents_and_envoys_report_to_any_worker_is_what_the_command_tells(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "reviews.yaml").write_text(SERVICE)
    flags = ("--config-dir", str(tmp_path / "config"), "--no-state", "--workers", "2", "--traffic-reports", "1s")
    plane = PlaneProcess(tmp_path / "plane.log", free_ports(3), *flags)
    await plane.start()

    async def traffic(*arguments: str) -> Done:
        return await trio.to_thread.run_sync(partial(mesh_pilot, "traffic", "--pilot", plane.web, *arguments))

    try:
        assert (await traffic()).out.startswith("no proxy has connected yet")
        async with AsyncExitStack() as stack:
            calls = list[ClientCall[bytes, bytes]]()
            for number in range(6):  # so many that each worker most likely has some
                channel = await stack.enter_async_context(open_channel(plane.grpc))
                path = LRS_PATH if number == 5 else REPORTS_PATH
                request = channel.request(path, Cardinality.STREAM_STREAM, bytes, bytes)
                call = await stack.enter_async_context(request)
                await call.send_message((loads if number == 5 else agents)(of=node(f"web-{number}")))
                await call.recv_message()
                calls.append(call)
            reviews = row(REVIEWS, requests=10, errors=1)
            for _ in range(REPORTS):
                for call in calls[:5]:
                    await call.send_message(agents(reviews))
                await calls[5].send_message(
                    loads(**{REVIEWS: {"successful_requests": 3, "error_requests": 1, "issued_requests": 4}})
                )

            async def all_told() -> bool:
                edges = json.loads((await traffic("-o", "json")).out)["edges"]
                told = [(edge["requests"], edge["errors"], edge["attempts"], edge["proxies"]) for edge in edges]
                return told == [(5 * 10 * REPORTS, 5 * REPORTS, 4 * REPORTS, 6)]

            await eventually(all_told)
            (edge,) = json.loads((await traffic("-o", "json")).out)["edges"]
            assert (edge["failed_attempts"], edge["is_partial"]) == (REPORTS, True)
            assert edge["called"]["namespace"] == "shop"
            text = (await traffic("reviews")).out
            assert "some_proxies_only" in text and "90.00%" in text
            assert "1 proxy sends load reports alone" in text
    finally:
        await plane.terminate()
