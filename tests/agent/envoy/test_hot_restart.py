"""Envoy replaced under a load of connections: by a new epoch, without a request that fails."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.agent.envoy.conftest import Life, answering
from tests.agent.envoy.load import load_on
from tests.support.envoy import eventually

pytestmark = [pytest.mark.process, pytest.mark.envoy]


async def replaced(one: Life, before: int) -> None:
    await eventually(lambda: one.pid != before and one.runner.statistics().draining == 0, what="the old one's end")


SHORT = {"drain_seconds": 2.0, "parent_shutdown_seconds": 3.0}


async def test_another_bootstrap_replaces_envoy_without_a_failed_request(life: Callable[..., Any]) -> None:
    async with life(**SHORT) as one:
        await one.ready()
        first = one.pid
        async with load_on(one.port) as load:
            await eventually(lambda: load.count > 100, what="load")
            one.bootstrap.set(answering(one.port, one.admin, "second"))
            await replaced(one, first)
            assert one.runner.ready.value
            so_far = load.count
            await eventually(lambda: load.count > so_far + 100, what="load")
        assert load.failures == []
        assert set(load.answers) == {"hello", "second"}
        statistics = one.runner.statistics()
        assert (statistics.epoch, statistics.hot_restarts, statistics.restarts) == (1, 1, 0)
        one.runner.restart()
        await eventually(lambda: one.runner.statistics().epoch == 2, what="a restart on request")


async def test_a_refused_bootstrap_leaves_the_old_one_serving(life: Callable[..., Any]) -> None:
    async with life(**SHORT) as one:
        await one.ready()
        first = one.pid
        bad = answering(one.port, one.admin)
        bad["static_resources"]["listeners"][0]["address"]["socket_address"]["address"] = "nowhere"
        with capture_logs() as logs:
            one.bootstrap.set(bad)
            await eventually(lambda: one.runner.statistics().failed_hot_restarts == 1, what="a failure")
        (event,) = [entry for entry in logs if entry["log_level"] == "error"]
        assert event["event"] == "Envoy is not replaced; the one that runs serves on"
        assert "nowhere" in event["reason"]
        assert one.pid == first
        assert one.runner.ready.value
        os.kill(first, signal.SIGKILL)  # even one that starts anew has the last that was good
        await one.runner.ready.wait_for(lambda ready: not ready)
        await one.ready()
        one.bootstrap.set(answering(one.port, one.admin, "third"))
        await eventually(lambda: one.runner.statistics().hot_restarts == 1, what="the next that is good")
