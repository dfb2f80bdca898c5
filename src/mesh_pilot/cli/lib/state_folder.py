"""The folder of what outlives a restart, and of the CA in it, as discovery and other commands mean it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mesh_pilot.safety.state.settings import StateSettings

CA = "ca"
"""The folder of the CA in that of the state, where no other is named; join tokens are in there."""


def default_folder(environment: Mapping[str, str]) -> Path:
    """The folder of this user: that of the systemd unit, ``/var/lib/mesh-pilot`` of root, else in the home."""
    of_unit = environment.get("STATE_DIRECTORY", "").split(":")[0]
    if of_unit:
        return Path(of_unit)
    if os.geteuid() == 0:
        return Path("/var/lib/mesh-pilot")
    from platformdirs import user_state_path

    return user_state_path("mesh-pilot")


def usable(state: StateSettings | None, environment: Mapping[str, str]) -> StateSettings | None:
    """The settings, with the folder made; None, with a log line, if the default folder cannot be used."""
    if state is None:
        return None
    try:
        state.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        reason = "" if os.access(state.folder, os.W_OK | os.X_OK) else "it cannot be written"
    except OSError as error:
        reason = error.strerror or str(error)
    if not reason or state.folder != default_folder(environment).absolute():
        return state
    import structlog

    structlog.get_logger(scope="state").warning(
        "nothing is kept over a restart; name a folder with --state-dir", folder=str(state.folder), reason=reason
    )
    return None


def ca_folder(state: StateSettings | None, *, is_replica: bool = False) -> Path | None:
    """The folder of the CA, where no other is named; None if it cannot be there: the root is for this run.

    Replicas (``is_replica``) would need the same, which is worth a log line.
    """
    if is_replica:
        import structlog

        structlog.get_logger(scope="security").warning(
            "this replica has its own CA; name one for all replicas with --ca-dir, --ca-consul-key or --ca-signer"
        )
    if state is None:
        return None
    folder = state.folder / CA
    return folder if folder.is_dir() or os.access(state.folder, os.W_OK | os.X_OK) else None


def ca_folder_of_plane(state_dir: Path | None) -> Path | None:
    """The same for commands next to the control plane; None if it has no state on this machine."""
    if state_dir is None and os.environ.get("MESH_PILOT_NO_STATE"):
        return None
    folder = (state_dir or default_folder(os.environ)).absolute()
    return folder / CA if folder.is_dir() else None
