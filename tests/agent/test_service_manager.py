"""The service manager is told how far the agent is, as systemd has it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from mesh_pilot.agent.base.service_manager import VARIABLE, ServiceManager


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket of a service manager, with its address in the environment."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        monkeypatch.setenv(VARIABLE, str(tmp_path / "notify"))
        yield sock


async def told(manager: socket.socket) -> dict[str, str]:
    """The assignments of the next datagram."""
    manager.setblocking(False)
    with trio.fail_after(60):
        await trio.lowlevel.wait_readable(manager)
    return dict(line.split("=", 1) for line in manager.recv(4096).decode().split("\n"))


async def test_each_state_is_a_datagram(manager: socket.socket) -> None:
    ours = ServiceManager()
    await ours.waiting("waits")
    assert await told(manager) == {"STATUS": "waits"}
    await ours.ready()
    assert (await told(manager))["READY"] == "1"
    before = time.monotonic_ns() // 1000
    await ours.reloading()
    reloading = await told(manager)
    assert reloading["RELOADING"] == "1"
    assert before <= int(reloading["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
    await ours.stopping()
    assert (await told(manager))["STOPPING"] == "1"
    assert VARIABLE in os.environ  # for the next version


async def test_a_socket_may_have_an_abstract_name() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("")
        name = sock.getsockname().decode().replace("\0", "@", 1)
        await ServiceManager(name).ready()
        assert (await told(sock))["READY"] == "1"


async def test_without_a_service_manager_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with capture_logs() as logs:
        await ServiceManager().ready()
    assert logs == []


async def test_one_that_is_away_is_a_line_in_the_log(tmp_path: Path) -> None:
    with capture_logs() as logs:
        await ServiceManager(str(tmp_path / "nobody")).ready()
    (line,) = logs
    assert (line["event"], line["state"]) == ("service manager not told", "READY=1")
    assert "No such file" in line["reason"]


async def test_one_that_takes_nothing_does_not_hold_the_agent_up(
    manager: socket.socket, autojump_clock: trio.testing.MockClock
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as full:
        full.setblocking(False)
        full.connect(manager.getsockname())
        with pytest.raises(BlockingIOError):
            while True:
                full.send(b"x")
        with capture_logs() as logs:
            await ServiceManager().ready()
    assert logs[0]["reason"] == "it takes nothing for 5 s"
