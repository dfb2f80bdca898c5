"""The tutorial in samples/consul, walked command by command: what it says is what happens."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import attrs
import pytest
import trio
from support.binaries import require_binary
from support.envoy import eventually

pytestmark = pytest.mark.envoy

SAMPLE = Path(__file__).parents[2] / "samples" / "consul"
PORTS = ("8500", "8080", "9080", "9101", "9102")
"""Those that the tutorial names; the test puts free ones in their place."""
END = "---end-of-output---"


@attrs.frozen
class Step:
    """What is typed, and what is seen."""

    command: str
    output: tuple[str, ...]


def steps(text: str) -> Iterator[Step]:
    command, output = "", list[str]()
    for line in re.findall(r"^    (.*)$", text, re.MULTILINE):
        if line.startswith("$ "):
            if command:
                yield Step(command, tuple(output))
            command, output = line[2:], []
        else:
            output.append(line)
    yield Step(command, tuple(output))


def same(seen: str, expected: tuple[str, ...]) -> bool:
    """Whether it is as it says, but for how often each answer came."""

    def plain(lines: list[str]) -> list[str]:
        return [re.sub(r"^ *\d+ ", "", line) for line in lines if line.strip()]

    return plain(seen.splitlines()) == plain(list(expected))


class Terminal:
    """A shell that stays. State: its process."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process

    async def type(self, command: str) -> str:
        """What a command prints; errors too."""
        assert self._process.stdin is not None and self._process.stdout is not None
        await self._process.stdin.send_all(f"{command}\necho; echo {END}\n".encode())
        seen = ""
        with trio.fail_after(30):
            while END not in seen:
                seen += (await self._process.stdout.receive_some()).decode()
        return seen[: seen.index(END)].strip("\n")


@asynccontextmanager
async def terminal(folder: Path, environment: dict[str, str]) -> AsyncIterator[Terminal]:
    """A shell in a folder; whatever it has started is gone after the block."""
    process = await trio.lowlevel.open_process(
        ["bash"], cwd=folder, env=environment, stdin=-1, stdout=-1, stderr=-2, start_new_session=True
    )
    try:
        yield Terminal(process)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        with trio.CancelScope(shield=True):
            await process.wait()


async def test_the_tutorial_is_as_it_says(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    consul, envoy = require_binary("consul"), require_binary("envoy")
    folder = tmp_path / "sample"
    shutil.copytree(SAMPLE, folder)
    named, (grpc, monitoring, admin, *own) = free_ports(len(PORTS)), free_ports(6)
    agent = dict(zip(("server", "serf_lan", "serf_wan"), own, strict=True)) | {"http": named[0], "dns": -1, "grpc": -1}
    (folder / "ports.json").write_text(json.dumps({"ports": agent}))
    for file in folder.glob("*"):
        text = file.read_text()
        for port, free in zip(PORTS, named, strict=True):
            text = text.replace(port, str(free))
        file.write_text(text)
    page = (folder / "README.md").read_text()
    page = page.replace("consul agent -dev", "consul agent -dev -config-file ports.json")
    page = page.replace("mesh-pilot ", f"{shlex.quote(sys.executable)} -m mesh_pilot.cli ")
    page = page.replace("envoy-bootstrap ", f"envoy-bootstrap --pilot 127.0.0.1:{grpc} --admin 127.0.0.1:{admin} ")
    page = page.replace(
        "discovery ",
        f"discovery --grpc-addr 127.0.0.1:{grpc} --http-addr 127.0.0.1:{named[1]} "
        f"--monitoring-addr 127.0.0.1:{monitoring} ",
    )
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, binary in (("consul", consul), ("envoy", envoy), ("python3", sys.executable)):
        (tools / name).symlink_to(binary)
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("CONSUL")},
        "PATH": f"{tools}:{os.environ['PATH']}",
        "CONSUL_HTTP_ADDR": f"127.0.0.1:{named[0]}",
    }
    walked = list(steps(page))
    assert len(walked) > 20
    async with terminal(folder, environment) as shell:
        for step in walked:

            async def is_so(step: Step = step) -> bool:
                nonlocal seen
                seen = await shell.type(step.command)
                return same(seen, step.output)

            seen = ""
            if not step.output:
                await shell.type(step.command)
                continue
            try:
                await eventually(is_so, seconds=25, what=step.command)
            except Exception:
                logs = "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in folder.glob("*.log"))
                raise AssertionError(f"$ {step.command}\n{seen}\n\n{logs}") from None
