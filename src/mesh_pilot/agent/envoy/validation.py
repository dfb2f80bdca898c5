"""Has Envoy judge a bootstrap without running on it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from mesh_pilot.agent.envoy import command
from mesh_pilot.agent.envoy.binary import EnvoyBinary, EnvoyError, ask_binary, find_envoy
from mesh_pilot.agent.envoy.files import EnvoyFiles, remove
from mesh_pilot.agent.envoy.log import EnvoyLog, LogParser
from mesh_pilot.agent.settings import EnvoySettings

_TRIAL = "envoy-bootstrap.trial.json"
_SECONDS = 60.0


async def why_envoy_refuses(bootstrap: Mapping[str, Any], settings: EnvoySettings, folder: Path) -> str:
    """The reason; empty if Envoy takes the bootstrap, or cannot be asked here."""
    try:
        binary = await ask_binary(find_envoy(settings.binary))
        file = EnvoyFiles(folder).write(_TRIAL, json.dumps(bootstrap).encode())
    except (EnvoyError, OSError):
        return ""  # whoever runs Envoy says so
    try:
        return await validate(binary, file, command.flags(settings))
    finally:
        remove(file)


async def validate(binary: EnvoyBinary, bootstrap: Path, flags: Sequence[str]) -> str:
    """Why this Envoy refuses a bootstrap, without running on it; empty if it takes it."""
    parser = LogParser.new()
    arguments = [str(binary.path), "--mode", "validate", "-c", str(bootstrap), *flags, "--log-format", parser.format]
    try:
        with trio.fail_after(_SECONDS):
            done = await trio.run_process(
                arguments, stdin=subprocess.DEVNULL, capture_stdout=True, capture_stderr=True, check=False
            )
    except OSError as error:
        return f"{binary.path} cannot be run: {error.strerror}"
    except trio.TooSlowError:
        return f"Envoy did not judge it within {_SECONDS:g} s"
    if done.returncode == 0:
        return ""
    log = EnvoyLog(parser, trio.current_time, silent=True)
    log.feed(done.stderr)
    log.finish()
    return " ".join((log.last_error or log.last_line).split())[:600] or f"exit code {done.returncode}"
