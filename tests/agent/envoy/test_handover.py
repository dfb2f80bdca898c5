"""An agent that executes its next version keeps its process, its Envoy and its ports."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from mesh_pilot.agent.base.handover import VARIABLE, Handover, self_test
from tests.agent.envoy.conftest import answering
from tests.agent.envoy.load import load_on
from tests.agent.envoy.small_agent import GENERATION
from tests.agent.envoy.test_runner import envoys_of, is_alive
from tests.support.envoy import eventually

process = pytest.mark.process
envoy = pytest.mark.envoy


@contextmanager
def small_agent(folder: Path, binary: Path, port: int, output: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.agent.envoy.small_agent", str(folder), str(binary), str(port)]
    agent = subprocess.Popen(command, stdout=output)
    try:
        yield agent
    finally:
        agent.kill()
        agent.wait()


ACCESS_LOG = {
    "name": "envoy.access_loggers.file",
    "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
        "path": "/dev/stdout",
        "log_format": {"text_format_source": {"inline_string": "one request\n"}},
    },
}


@process
@envoy
async def test_access_logs_reach_a_standard_output_that_is_a_socket_also_after_an_upgrade(
    envoy_binary: Path, tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    """As systemd gives it; Envoy cannot open a socket as /dev/stdout."""
    port, admin, own = free_ports(3)
    bootstrap = answering(port, admin)
    (chain,) = bootstrap["static_resources"]["listeners"][0]["filter_chains"]
    chain["filters"][0]["typed_config"]["access_log"] = [ACCESS_LOG]
    (tmp_path / "bootstrap.json").write_text(json.dumps(bootstrap))
    ours, theirs = socket.socketpair()
    with ours, small_agent(tmp_path, envoy_binary, own, theirs.fileno()) as agent:
        theirs.close()
        reader = trio.socket.from_stdlib_socket(ours)
        for count in (1, 2):
            await eventually(lambda count=count: len(generations(tmp_path)) == count, what="an agent")
            async with load_on(port) as load:
                await eventually(lambda: load.count > 5, what="load")
            with trio.fail_after(30):
                while b"one request" not in await reader.recv(65536):
                    pass
            agent.send_signal(signal.SIGHUP)


def generations(folder: Path) -> list[int]:
    """Envoy's process id in each image of the agent so far."""
    file = folder / GENERATION
    return [int(line) for line in file.read_text().split()] if file.exists() else []


@process
@envoy
async def test_the_next_version_takes_over_envoy_and_ports_without_a_failed_request(
    envoy_binary: Path, tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    port, admin, own = free_ports(3)
    bootstrap = tmp_path / "bootstrap.json"
    bootstrap.write_text(json.dumps(answering(port, admin)))
    with small_agent(tmp_path, envoy_binary, own) as agent:
        await eventually(lambda: len(generations(tmp_path)) == 1, what="the first")
        async with load_on(port) as load, load_on(own) as own_load:
            for count in (2, 3):
                agent.send_signal(signal.SIGHUP)
                await eventually(lambda count=count: len(generations(tmp_path)) == count, what="the next")
            so_far = load.count, own_load.count
            await eventually(lambda: load.count > so_far[0] + 50 and own_load.count > so_far[1] + 50, what="load")
        assert load.failures == []
        assert own_load.failures == []
        assert len(set(generations(tmp_path))) == 1, "the same Envoy"

        (tmp_path / "broken").touch()
        agent.send_signal(signal.SIGHUP)  # the next cannot be executed: this one continues
        await eventually(lambda: len(generations(tmp_path)) == 4, what="the same one again")
        assert len(set(generations(tmp_path))) == 1
        (tmp_path / "broken").unlink()

        bootstrap.write_text(json.dumps(answering(port, admin, "after")))
        async with load_on(port) as load:
            agent.send_signal(signal.SIGHUP)  # with another bootstrap: a hot restart follows
            await eventually(lambda: load.answers.get("after", 0) > 50, what="the new bootstrap")
            await eventually(lambda: len(envoys_of(tmp_path)) == 1, what="the end of the old Envoy")
        assert load.failures == []
        (last,) = envoys_of(tmp_path)
        assert last != generations(tmp_path)[0]
        agent.kill()  # Envoy still ends with the process, whatever image that has
        agent.wait()
        await eventually(lambda: not is_alive(last), what="the end of Envoy")


def test_a_process_that_was_started_anew_receives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"{os.getppid()}:3")
    handover = Handover.received()
    assert handover.envoys == []
    assert VARIABLE not in os.environ


async def test_sockets_are_kept_open_by_name_and_address() -> None:
    handover = Handover()
    (first,) = await handover.listeners("status", "127.0.0.1:0")
    address = first.socket.getsockname()
    await first.aclose()
    with socket.create_connection(address):  # waits until somebody accepts
        (again,) = await handover.listeners("status", "127.0.0.1:0")
        assert again.socket.getsockname() == address
        await (await again.accept()).aclose()
    await again.aclose()
    (other,) = await handover.listeners("status", "localhost:0")
    assert other.socket.getsockname() != address
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    await other.aclose()

    def bind() -> list[socket.socket]:
        sock = socket.socket(type=socket.SOCK_DGRAM)
        sock.bind(("127.0.0.1", 0))
        return [sock]

    (udp,) = handover.sockets("dns", "any text", bind)
    bound = udp.getsockname()
    udp.close()
    (udp,) = handover.sockets("dns", "any text", bind)
    assert udp.getsockname() == bound
    udp.close()
    handover.close()


@pytest.mark.process
async def test_an_agent_that_would_not_start_is_found_before_it_is_executed() -> None:
    assert await self_test([sys.executable, "-c", "pass"]) == ""
    assert "No module named 'no_such_module'" in await self_test([sys.executable, "-c", "import no_such_module"])
    assert "No such file" in await self_test(["/no/such/python"])
