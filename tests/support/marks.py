"""Marks that cannot be forgotten: whatever a test starts, its marks name.

``envoy`` is a real Envoy, ``process`` any other program, ``plane`` a whole control plane in the test's own process. A
mark covers those after it: a test that starts an Envoy has the one mark ``envoy``. A test that starts more than its
mark covers fails with the name of the mark that it needs. Marks decide in which environment a test runs and whether it
has a second try; ``tests/README.md`` has the table. Tests marked ``slow`` may start anything; the programs of
`BUILT_FOR_SLOW` are in their environment alone.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from mesh_pilot.agent.envoy.binary import EnvoyError, find_envoy

MARKS = ("slow", "envoy", "process", "plane")
"""Each covers those after it."""

BUILT_FOR_SLOW = {"etcd", "kube-apiserver"}
"""Programs that ``tox.ini`` builds for no other environment."""

FORKS = {"os.fork", "os.forkpty", "os.posix_spawn", "os.system"}


class Guard:
    """What the running test has started. Python's audit events tell: no way of starting a program is without one."""

    def __init__(self) -> None:
        self._covered: tuple[str, ...] | None = None
        self._missing: set[str] = set()
        self._watches_planes = False
        self._envoy = _real_envoy()

    def install(self) -> None:
        """Watch this process from now on. An audit hook cannot be removed."""
        sys.addaudithook(self._audit)

    def begin(self, marks: Iterable[str]) -> None:
        """A test with these marks begins."""
        # Not imported here, which would make the start of a small run twice as long.
        serving = sys.modules.get("mesh_pilot.app.serving")
        if serving is not None and not self._watches_planes:
            serving.ControlPlane.__init__ = _telling(serving.ControlPlane.__init__, lambda: self._started("plane"))
            self._watches_planes = True
        named = {*marks}
        strongest = min((MARKS.index(mark) for mark in named & {*MARKS}), default=len(MARKS))
        self._covered = MARKS[strongest:]
        self._missing = set()

    def end(self) -> str | None:
        """The mark that the test lacks."""
        self._covered = None
        return min(self._missing, key=MARKS.index, default=None)

    def _started(self, mark: str) -> None:
        if self._covered is not None and mark not in self._covered:
            self._missing.add(mark)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if self._covered is None:
            return
        if event == "subprocess.Popen":
            program = _program(args[0])
            if program and program.name in BUILT_FOR_SLOW:
                self._started("slow")
            self._started("envoy" if program == self._envoy else "process")
        elif event in FORKS:
            self._started("process")


def _telling(original: Callable[..., None], tell: Callable[[], None]) -> Callable[..., None]:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        tell()
        original(self, *args, **kwargs)

    return init


def _real_envoy() -> Path | None:
    try:
        return find_envoy().resolve()
    except EnvoyError:
        return None


def _program(named: Any) -> Path | None:
    found = shutil.which(os.fsdecode(named))
    return Path(found).resolve() if found else None
