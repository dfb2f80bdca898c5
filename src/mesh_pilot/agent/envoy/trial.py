"""Has Envoy judge a bootstrap without running on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mesh_pilot.agent.envoy import command
from mesh_pilot.agent.envoy.binary import EnvoyError, ask_binary, find_envoy
from mesh_pilot.agent.envoy.child import validate
from mesh_pilot.agent.envoy.files import EnvoyFiles, remove
from mesh_pilot.agent.settings import EnvoySettings

_TRIAL = "envoy-bootstrap.trial.json"


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
