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
    """The flags that do not depend on the run."""
    found = ["--drain-time-s", str(round(settings.drain_seconds)), "--drain-strategy", "immediate"]
    found += ["--parent-shutdown-time-s", str(round(settings.parent_shutdown_seconds))]
    found += ["--local-address-ip-version", settings.ip_version, "--file-flush-interval-msec", "1000"]
    found += ["--allow-unknown-static-fields", "--skip-deprecated-logs", "--log-level", settings.log_level]
    if settings.component_log_level:
        found += ["--component-log-level", settings.component_log_level]
    if settings.concurrency:
        found += ["--concurrency", str(settings.concurrency)]
    return [*found, *settings.extra_flags]


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
