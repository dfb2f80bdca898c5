"""Envoy replaced under a load of connections: by a new epoch, without a request that fails."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from structlog.testing import capture_logs

from tests.agent.envoy.conftest import Life, answering
from tests.support.envoy import eventually

pytestmark = [pytest.mark.process, pytest.mark.envoy]


@attrs.define
class Load:
    """Requests and their answers, counted by text; failures with their reasons."""

    answers: dict[str, int] = attrs.field(factory=dict)
    failures: list[str] = attrs.field(factory=list)

    @property
    def count(self) -> int:
        return sum(self.answers.values())


async def _ask(stream: trio.SocketStream) -> tuple[bytes, bytes]:
    """Head and body of the answer to one request."""
    await stream.send_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    answer = b""
    while not answer.partition(b"\r\n\r\n")[2]:
        data = await stream.receive_some(4096)
        if not data:
            raise OSError(f"closed after {answer!r}")
        answer += data
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


async def _client(port: int, load: Load, *, keeps: bool) -> None:
    """Ask again and again, on a new connection each time or on one that is kept until Envoy closes it."""
    while True:
        try:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                while True:
                    head, body = await _ask(stream)
                    if not head.startswith(b"HTTP/1.1 200"):
                        load.failures.append(head.decode())
                    load.answers[body.decode()] = load.answers.get(body.decode(), 0) + 1
                    await trio.sleep(0.002)
                    if not keeps or b"connection: close" in head.lower():
                        break
        except (OSError, trio.BrokenResourceError) as error:
            load.failures.append(repr(error))
            await trio.sleep(0.01)


@asynccontextmanager
async def load_on(port: int) -> AsyncIterator[Load]:
    load = Load()
    async with trio.open_nursery() as nursery:
        for number in range(16):
            nursery.start_soon(lambda keeps=number % 2 == 0: _client(port, load, keeps=keeps))
        yield load
        nursery.cancel_scope.cancel()


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
