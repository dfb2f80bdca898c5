"""Pages that tell what to type, walked command by command in a shell: what they say is what happens.

page = in_own_ports(folder, page, ports=("9080",), free_ports=free_ports)
async with terminal(folder, environment(tmp_path / "bin")) as shell:
    await shell.walk(steps(page))
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import attrs
import trio

from tests.support.binaries import require_binary
from tests.support.envoy import eventually

END = "---end-of-output---"


@attrs.frozen
class Step:
    """What is typed, and what is seen."""

    command: str
    output: tuple[str, ...] = ()


def steps(text: str) -> Iterator[Step]:
    """The commands of a page, whose lines begin with ``$``, and the lines below each."""
    command, output = "", list[str]()
    for line in re.findall(r"^    (.*)$", text, re.MULTILINE):
        if line.startswith("$ "):
            if command:
                yield Step(command, tuple(output))
            command, output = line[2:], []
        else:
            output.append(line)
    yield Step(command, tuple(output))


def same(seen: str, expected: Sequence[str]) -> bool:
    """True if it is as it says, but for how often each answer came."""

    def plain(lines: Iterable[str]) -> list[str]:
        return [re.sub(r"^ *\d+ ", "", line) for line in lines if line.strip()]

    return plain(seen.splitlines()) == plain(expected)


def in_own_ports(folder: Path, page: str, ports: Sequence[str], free_ports: Callable[[int], list[int]]) -> str:
    """The page, and every file below the folder, with free ports for those named and for all that have defaults."""
    own = dict(zip(ports, map(str, free_ports(len(ports))), strict=True))
    grpc, http, monitoring, admin, *of_proxy = free_ports(7)
    http = int(own.get("8080", http))

    def replaced(text: str) -> str:
        return re.sub(r"\b\d{4,5}\b", lambda found: own.get(found[0], found[0]), text)

    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink():
            file.write_text(replaced(file.read_text()))
    listening = f"--grpc-addr 127.0.0.1:{grpc} --http-addr 127.0.0.1:{http} --monitoring-addr 127.0.0.1:{monitoring}"
    listening += " --secure-grpc-addr 127.0.0.1:0"
    page = replaced(page).replace("discovery ", f"discovery {listening} ")
    page = re.sub(r"(proxy (?:sidecar|router) .*)127.0.0.1:15010", rf"\g<1>127.0.0.1:{grpc}", page)
    names = ("status", "readiness", "prometheus")
    own_ports = " ".join(f"--{name}-port {port}" for name, port in zip(names, of_proxy, strict=True))
    folders = f"--state-dir {folder / 'proxy'} --run-dir {folder / 'run'}"
    page = re.sub(r"proxy (sidecar|router) ", rf"proxy \g<1> --admin-port {admin} {own_ports} {folders} ", page)
    page = re.sub(r"mesh-pilot proxy-status", f"mesh-pilot proxy-status --pilot 127.0.0.1:{http}", page)

    def bootstrap(command: re.Match[str]) -> str:
        own_admin = "" if "--admin" in command[0] else f"--admin 127.0.0.1:{admin} "
        return command[0].replace("envoy-bootstrap ", f"envoy-bootstrap --pilot 127.0.0.1:{grpc} {own_admin}")

    return re.sub(r"envoy-bootstrap .*", bootstrap, page)


# Other tests run Envoys on this machine: without hot restart they do not meet in shared memory.
_ENVOY = """\
case "$*" in *--disable-hot-restart*) ;; *) set -- "$@" --disable-hot-restart ;; esac
exec {binary} --concurrency 1 "$@"\
"""


def put_tools(folder: Path, **more: Path) -> None:
    """A folder with ``mesh-pilot``, ``envoy`` and ``python3`` (those of the tests), to be on PATH."""
    folder.mkdir(parents=True)
    python = shlex.quote(sys.executable)
    scripts = {
        "mesh-pilot": f'exec {python} -m mesh_pilot.cli "$@"',
        "envoy": _ENVOY.format(binary=shlex.quote(str(require_binary("envoy")))),
        "python3": f'exec {python} "$@"',
    }
    for name, text in scripts.items():
        script = folder / name
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
    for name, binary in more.items():
        (folder / name).symlink_to(binary)


def environment(tools: Path, **more: str) -> dict[str, str]:
    """That of a shell that finds the tools."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("CONSUL")}
    return {**inherited, "PATH": f"{tools}:{os.environ['PATH']}", **more}


class Terminal:
    """A shell that stays. State: its process."""

    def __init__(self, process: trio.Process, folder: Path) -> None:
        self._process = process
        self._folder = folder

    async def type(self, command: str) -> str:
        """What a command prints; errors too."""
        assert self._process.stdin is not None and self._process.stdout is not None
        await self._process.stdin.send_all(f"{command}\necho; echo {END}\n".encode())
        seen = ""
        with trio.fail_after(60):
            while END not in seen:
                seen += (await self._process.stdout.receive_some()).decode()
        return seen[: seen.index(END)].strip("\n")

    async def walk(self, walked: Iterable[Step]) -> None:
        """Type every command; where it says what is seen, that must be so, if need be after a while."""
        for step in walked:

            async def is_so(step: Step = step) -> bool:
                nonlocal seen
                seen = await self.type(step.command)
                return same(seen, step.output)

            seen = ""
            if not step.output:
                await self.type(step.command)
                continue
            try:
                await eventually(is_so, what=step.command)
            except Exception:
                logs = "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in self._folder.glob("*.log"))
                raise AssertionError(f"$ {step.command}\n{seen}\n\n{logs}") from None


@asynccontextmanager
async def terminal(folder: Path, environment: Mapping[str, str]) -> AsyncIterator[Terminal]:
    """A shell in a folder; whatever it has started is gone after the block."""
    process = await trio.lowlevel.open_process(
        ["bash"], cwd=folder, env=environment, stdin=-1, stdout=-1, stderr=-2, start_new_session=True
    )
    try:
        yield Terminal(process, folder)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        with trio.CancelScope(shield=True):
            await process.wait()
