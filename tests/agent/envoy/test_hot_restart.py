"""Envoy replaced under a load of connections: by a new epoch, without a request that fails."""

from __future__ import annotations

import os
import signal
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from structlog.testing import capture_logs

from tests.agent.envoy.conftest import Life, answering
from tests.agent.envoy.load import CLIENTS, load_on
from tests.support.envoy import eventually

pytestmark = [pytest.mark.process, pytest.mark.envoy]


async def replaced(one: Life, before: int) -> None:
    await eventually(lambda: one.pid != before and one.runner.statistics().draining == 0, what="the old one's end")


SHORT = {"drain_seconds": 2.0, "parent_shutdown_seconds": 3.0}


KEEPING = CLIENTS // 2
"""Clients of a load that keep their connections."""


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


@pytest.mark.smoke
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
        assert event["event"] == "envoy is not replaced; the one that runs serves on"
        assert "nowhere" in event["reason"]
        assert one.pid == first
        assert one.runner.ready.value
        os.kill(first, signal.SIGKILL)  # even one that starts again has the last that was good
        await one.runner.ready.wait_for(lambda ready: not ready)
        await one.ready()
        one.bootstrap.set(answering(one.port, one.admin, "third"))
        await eventually(lambda: one.runner.statistics().hot_restarts == 1, what="the next that is good")


@pytest.fixture(params=["1.36.2", "1.38.3"])
def other_envoy(request: pytest.FixtureRequest) -> Path:
    """The Envoy of another release, in the folder of the variable ``OTHER_ENVOYS`` (tools/get_envoys.py fills one)."""
    binary = Path(os.environ.get("OTHER_ENVOYS", ""), request.param, "envoy", "_bin", "envoy")
    if not binary.is_file():
        why = f"no Envoy {request.param}: OTHER_ENVOYS names no folder that tools/get_envoys.py has filled"
        pytest.fail(why) if os.environ.get("CI") else pytest.skip(why)
    return binary


def wrapped(binary: Path, folder: Path, hot_restart: str) -> Path:
    """An Envoy that gives another version of its hot restart."""
    script = folder / "envoy"
    script.write_text(
        f'#!/bin/sh\n[ "$1" = --hot-restart-version ] && {{ printf {hot_restart}; exit; }}\nexec {binary} "$@"\n'
    )
    script.chmod(0o755)
    return script


async def test_a_version_that_cannot_follow_starts_beside_the_old_without_a_failed_request(
    life: Callable[..., Any], envoy_binary: Path, tmp_path: Path
) -> None:
    binary = wrapped(envoy_binary, tmp_path, "11.1")
    async with life(**SHORT, binary=binary) as one:
        await one.ready()
        first, base_id = one.pid, one.runner.statistics().base_id
        async with load_on(one.port) as load:
            await eventually(lambda: load.count > 100, what="load")
            for number in range(2):
                before = one.pid
                wrapped(envoy_binary, tmp_path, f"12.{number}")
                one.bootstrap.set(answering(one.port, one.admin, f"next to {number}"))
                await replaced(one, before)
                so_far = load.count
                await eventually(lambda so_far=so_far: load.count > so_far + 200, what="load")
        assert Counter(load.failures) == {}
        assert set(load.answers) == {"hello", "next to 0", "next to 1"}
        assert one.runner.ready.value
        assert one.pid != first
        statistics = one.runner.statistics()
        assert (statistics.epoch, statistics.hot_restarts, statistics.restarts) == (0, 2, 0)
        assert statistics.base_id != base_id


async def test_an_epoch_that_fails_costs_no_new_connection_and_leaves_one_that_can_be_replaced(
    life: Callable[..., Any], free_ports: Callable[[int], list[int]]
) -> None:
    async with life(**SHORT) as one:
        await one.ready()
        first = one.pid
        (taken,) = free_ports(1)
        with socket.create_server(("127.0.0.1", taken)):
            async with load_on(one.port) as load:
                await eventually(lambda: load.count > 100, what="load")
                bad = answering(taken, one.admin)
                with capture_logs() as logs:
                    one.bootstrap.set(bad)
                    await eventually(lambda: one.runner.statistics().failed_hot_restarts == 1, what="a failure")
                    await replaced(one, first)
                assert one.runner.ready.value
                one.bootstrap.set(answering(one.port, one.admin, "fixed"))
                await eventually(lambda: load.answers.get("fixed", 0) > 100, what="the next")
        reasons = [entry["reason"] for entry in logs if entry["log_level"] == "error" and entry["scope"] == "agent"]
        assert len(reasons) == 1
        assert f"cannot bind '127.0.0.1:{taken}'" in reasons[0]
        # Without its admin interface the first could not be told to drain: connections that are kept end with it.
        assert load.failures == load.kept_failures
        assert len(load.failures) <= KEEPING


@pytest.mark.slow
async def test_another_release_takes_over_and_gives_back(
    life: Callable[..., Any], envoy_binary: Path, other_envoy: Path
) -> None:
    async with life(**SHORT, binary=other_envoy) as one:
        await one.ready()
        async with load_on(one.port) as load:
            for binary in (envoy_binary, other_envoy):
                before = one.pid
                one.runner.settings.set(attrs.evolve(one.runner.settings.value, binary=binary))
                await replaced(one, before)
                so_far = load.count
                await eventually(lambda so_far=so_far: load.count > so_far + 200, what="load")
        assert Counter(load.failures) == {}
        assert one.runner.statistics().hot_restarts == 2
