"""A drain: which connections are waited for, and what becomes of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from mesh_pilot.agent.envoy.drain import active_connections
from tests.support.envoy import eventually, http_client


def test_connections_of_the_admin_readiness_and_metrics_are_not_waited_for() -> None:
    statistics = {
        "listener.0.0.0.0_15006.downstream_cx_active": 3,
        "listener.0.0.0.0_15006.worker_0.downstream_cx_active": 2,
        "listener.0.0.0.0_15006.worker_1.downstream_cx_active": 1,
        "listener.[__]_15001.downstream_cx_active": 1,
        "listener.0.0.0.0_15021.downstream_cx_active": 1,
        "listener.0.0.0.0_15090.downstream_cx_active": 1,
        "listener.[__]_15090.downstream_cx_active": 1,
        "listener.admin.downstream_cx_active": 1,
        "listener.admin.main_thread.downstream_cx_active": 1,
        "http.inbound_0.0.0.0_80.downstream_cx_active": 2,
    }
    assert active_connections(statistics, (15021, 15090)) == 4
    assert active_connections({}, (15021, 15090)) == 0


@pytest.mark.process
@pytest.mark.envoy
async def test_it_waits_until_there_is_no_connection(life: Callable[..., Any]) -> None:
    async with life(exit_on_zero_active_connections=True, minimum_drain=0.0) as one:
        await one.ready()
        drained = trio.Event()

        async def drain() -> None:
            await one.runner.drain(3600)
            drained.set()

        async with http_client(f"http://127.0.0.1:{one.port}") as client:
            assert (await client.get("/")).status_code == 200
            with capture_logs() as logs:
                one.nursery.start_soon(drain)
                await eventually(lambda: any("waiting" in str(entry["event"]) for entry in logs), what="the wait")
            assert not one.runner.ready.value
            assert one.runner.why_not_ready == "Envoy is draining"
            assert not drained.is_set()
            last = await client.get("/")  # on the connection that is open
            assert last.status_code == 200
            assert last.headers["connection"] == "close"
        with trio.fail_after(30):
            await drained.wait()


@pytest.mark.process
@pytest.mark.envoy
async def test_otherwise_it_lasts_as_long_as_told_unless_envoy_ends(life: Callable[..., Any]) -> None:
    async with life() as one:
        await one.ready()
        with trio.fail_after(30):
            await one.runner.drain(0.2)

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.runner.drain, 3600)
                os.kill(one.pid, signal.SIGKILL)
        assert one.runner.statistics().restarts == 0
        assert not one.runner.ready.value
