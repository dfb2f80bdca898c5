"""Running ``mesh-pilot`` as its users do: a process, its output and its exit code."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from contextlib import closing

import attrs

COMMAND = [sys.executable, "-W", "error", "-m", "mesh_pilot.cli"]
"""``mesh-pilot`` on this Python; warnings are errors as in the tests."""


@attrs.frozen
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str


def mesh_pilot(
    *arguments: str, env: Mapping[str, str] | None = None, stdin: str = "", timeout_seconds: float = 110
) -> Done:
    """Run a command to its end; ``env`` is added to the environment, ``stdin`` is its standard input."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        env={**os.environ, **(env or {})},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


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
