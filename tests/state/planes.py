"""``mesh-pilot discovery`` with a state folder, in a separate process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.pilot import Pilot
from tests.support.plane_process import ANY_SECURE

SERVICES = 20


@contextmanager
def plane(folder: Path, *options: str, port: int | None, state: Path | None = None, **more: Any) -> Iterator[Pilot]:
    """A ready control plane on ``folder/config``, with its state in ``folder/state``; no traceback may be in its log.

    ``port``: of the services that are put into the folder; None: it is left as it is, and may be away. ``more`` is what
    Popen takes.
    """
    config = folder / "config"
    if port is not None:
        config.mkdir(exist_ok=True)
    flags = (f"--state-dir={state or folder / 'state'}", "=".join(ANY_SECURE), *options)
    pilot = Pilot(config, *flags, services=SERVICES, port=port, **more)
    try:
        pilot.wait_ready()
        yield pilot
        assert "Traceback" not in pilot.log(), pilot.log()[-5000:]
    finally:
        pilot.stop()


def complaints(pilot: Pilot) -> list[str]:
    """The lines of the log about the state that are more than information."""
    lines = pilot.log().splitlines()
    return [line for line in lines if "scope=state" in line and "level=info" not in line]
