"""Running ``mesh-pilot`` as its users do: arguments in, output and exit code out.

``mesh_pilot`` runs a command in the test's own process, which takes milliseconds. What is about signals, terminals,
start-up or a process's own life uses ``COMMAND`` with ``subprocess``, or ``on_terminal``.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from contextvars import ContextVar
from typing import Any, TextIO, cast
from unittest import mock

import attrs
from click.shell_completion import BashComplete

from mesh_pilot.cli import cli, main

COMMAND = [sys.executable, "-W", "error", "-m", "mesh_pilot.cli"]
"""``mesh-pilot`` on this Python; warnings are errors as in the tests."""


@attrs.frozen
class Done:
    """A command that ended."""

    code: int
    out: str
    err: str


def mesh_pilot(*arguments: str, env: Mapping[str, str] | None = None, stdin: str = "") -> Done:
    """Run a command to its end; ``env`` is added to the environment, ``stdin`` is its standard input.

    From an async test, call it in a thread: what the test's own tasks print at the same time is not the command's.
    """
    code: int | str | None = 0
    files = {name: io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for name in ("out", "err")}
    given = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")
    with mock.patch.dict(os.environ, env or {}), mock.patch.object(sys, "stdin", given), routed(files):
        try:
            main([*arguments])
        except SystemExit as end:
            code = end.code
    assert isinstance(code, int)
    return Done(code, *(cast(io.BytesIO, file.buffer).getvalue().decode() for file in files.values()))


def completions(*words: str) -> set[str]:
    """What bash is given for the last word after ``mesh-pilot``."""
    shell = BashComplete(cli, {}, "mesh-pilot", "_MESH_PILOT_COMPLETE")
    return {each.value for each in shell.get_completions([*words[:-1]], words[-1])}


_FILES: ContextVar[Mapping[str, TextIO] | None] = ContextVar("files", default=None)


class Routed:
    """Standard output or error: the file of the command in whose context it is used, else the one that there was."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr((_FILES.get() or _ROUTER.before)[self._name], attribute)


class Router:
    """Puts `Routed` in the place of standard output and error while any command runs: several do at once, in threads,
    and none may take away what another one still needs.

    Whoever keeps a `Routed`, as loggers do, and pytest, which puts it back after a test, writes to the files that there
    are then: no `Routed` leads to another one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._commands = 0
        self._routed = {name: cast(TextIO, Routed(name)) for name in ("out", "err")}
        self.before: dict[str, TextIO] = {"out": sys.stdout, "err": sys.stderr}

    def enter(self) -> None:
        with self._lock:
            now = {"out": sys.stdout, "err": sys.stderr}
            self.before |= {name: file for name, file in now.items() if not isinstance(file, Routed)}
            sys.stdout, sys.stderr = self._routed["out"], self._routed["err"]
            self._commands += 1

    def leave(self) -> None:
        with self._lock:
            self._commands -= 1
            if not self._commands:
                sys.stdout, sys.stderr = self.before["out"], self.before["err"]


_ROUTER = Router()


@contextmanager
def routed(files: Mapping[str, TextIO]) -> Iterator[None]:
    """What is printed in this context goes to ``files``, by the names ``out`` and ``err``."""
    token = _FILES.set(files)
    _ROUTER.enter()
    try:
        yield
    finally:
        _ROUTER.leave()
        _FILES.reset(token)


def on_terminal(columns: int, *arguments: str, **env: str) -> list[str]:
    """The lines that a command writes on a terminal so many columns wide."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    with closing(os.fdopen(ours, "rb", buffering=0)) as reader:
        process = subprocess.Popen([*COMMAND, *arguments], stdout=theirs, stdin=theirs, env={**environment, **env})
        os.close(theirs)
        written = b""
        while True:
            try:
                piece = reader.read(65536)
            except OSError:  # the other side is closed
                break
            if not piece:
                break
            written += piece
        process.wait(60)
    return written.decode().splitlines()
