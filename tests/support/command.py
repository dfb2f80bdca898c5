"""Running ``mesh-pilot`` as its users do: a process, its output and its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

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
    *arguments: str, env: Mapping[str, str] | None = None, stdin: str = "", timeout_seconds: float = 60
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
