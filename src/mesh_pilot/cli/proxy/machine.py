"""Settings that the machine itself tells: its address, its name, the folders of this user."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

NAME = "mesh-pilot-proxy"
"""The name of the folders, and of systemd's unit."""


def default_address() -> str:
    """The address that connections by the default route come from; empty if there is no such route.

    Nothing is sent: connecting a UDP socket only chooses the route.
    """
    for family, somewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.connect((somewhere, 9))
                return str(sock.getsockname()[0])
        except OSError:
            continue
    return ""


def default_name() -> str:
    return socket.gethostname().split(".")[0].lower()


def state_folder(environ: Mapping[str, str]) -> Path:
    """The folder that systemd made, root's in ``/var/lib``, or the user's own."""
    if of_unit := environ.get("STATE_DIRECTORY", "").split(":")[0]:
        return Path(of_unit)
    if os.geteuid() == 0:
        return Path("/var/lib") / NAME
    import platformdirs

    return platformdirs.user_state_path(NAME)


def run_folder(environ: Mapping[str, str], state: Path) -> Path:
    """The same for what is lost at a reboot; below the state where the user has no such place."""
    if of_unit := environ.get("RUNTIME_DIRECTORY", "").split(":")[0]:
        return Path(of_unit)
    if os.geteuid() == 0:
        return Path("/run") / NAME
    of_user = environ.get("XDG_RUNTIME_DIR", "")
    return Path(of_user) / NAME if of_user else state / "run"
