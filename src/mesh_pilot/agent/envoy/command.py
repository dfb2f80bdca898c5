"""Envoy's command line, as Istio's agent has it but with hot restart, and the shared memory that this needs."""

from __future__ import annotations

import os
import random
import tempfile
from contextlib import suppress
from pathlib import Path

from mesh_pilot.agent.settings import EnvoySettings

SHARED_MEMORY = Path("/dev/shm")
_ENOUGH_BYTES = 4096


def flags(settings: EnvoySettings) -> list[str]:
    """The flags that do not depend on the run. ``extra_flags`` win, the last of them: Envoy takes each only once."""
    found: dict[str, list[str]] = {
        "--drain-time-s": [str(round(settings.drain_seconds))],
        "--drain-strategy": ["immediate"],
        "--parent-shutdown-time-s": [str(round(settings.parent_shutdown_seconds))],
        "--local-address-ip-version": [settings.ip_version],
        "--file-flush-interval-msec": ["1000"],
        "--allow-unknown-static-fields": [],
        "--skip-deprecated-logs": [],
        "--log-level": [settings.log_level],
    }
    if settings.component_log_level:
        found["--component-log-level"] = [settings.component_log_level]
    if settings.concurrency:
        found["--concurrency"] = [str(settings.concurrency)]
    repeated: list[str] = []
    name = ""
    for part in settings.extra_flags:
        if part.startswith("-"):
            name, _, value = part.partition("=")
            name = _LONG.get(name, name)
            if name in _REPEATABLE:
                repeated += [name, value] if value else [name]
            else:
                found[name] = [value] if value else []
        elif name in _REPEATABLE:
            repeated.append(part)
        else:
            found.setdefault(name, []).append(part)
    return [part for name, values in found.items() for part in (name, *values)] + repeated


_LONG = {"-l": "--log-level"}
_REPEATABLE = ("--stats-tag",)


def hot_restart_flags(base_id: int | None, epoch: int) -> list[str]:
    if base_id is None:
        return ["--disable-hot-restart"]
    return ["--base-id", str(base_id), "--restart-epoch", str(epoch)]


def new_base_id() -> int:
    """One that no other Envoy is likely to have. Envoy multiplies it by ten, and keeps that in 32 bits."""
    return random.SystemRandom().randrange(1_000, 2**32 // 10)


def why_no_shared_memory() -> str:
    """Why Envoy can have no shared memory for hot restart; empty if it can. Without, it would die with SIGBUS."""
    try:
        with tempfile.TemporaryFile(dir=SHARED_MEMORY) as file:
            os.posix_fallocate(file.fileno(), 0, _ENOUGH_BYTES)
    except OSError as error:
        return f"{SHARED_MEMORY}: {error.strerror}"
    return ""


def forget_shared_memory(base_id: int | None) -> None:
    """Remove what Envoys of a base id leave behind."""
    if base_id is not None:
        with suppress(OSError):
            (SHARED_MEMORY / f"envoy_shared_memory_{base_id * 10}").unlink()
