"""The files in a user's folder of settings."""

from __future__ import annotations

import os
from pathlib import Path


def contexts_file() -> Path:
    """``MESH_PILOT_CONTEXTS``, else ``mesh-pilot/contexts.yaml`` in the user's folder of settings."""
    if named := os.environ.get("MESH_PILOT_CONTEXTS"):
        return Path(named)
    folder = os.environ.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path.home() / ".config") / "mesh-pilot" / "contexts.yaml"


def logins_file() -> Path:
    """``logins.json`` next to the contexts file."""
    return contexts_file().with_name("logins.json")
