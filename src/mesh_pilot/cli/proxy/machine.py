"""Settings that the machine itself tells: its address, its name, the folders of this user."""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path

from mesh_pilot.identity.trust.private_files import why_not_ours
from mesh_pilot.net.rpc.net import has_ipv6, machine_addresses

NAME = "mesh-pilot-proxy"
"""The name of the folders, and of systemd's unit."""


_SOMEWHERE = {4: (socket.AF_INET, "192.0.2.1"), 6: (socket.AF_INET6, "2001:db8::1")}
"""An address of a range for documentation, by IP version."""


def default_address() -> str:
    """The source address of the default route; empty without one."""
    return _by_default_route(4) or _by_default_route(6)


def other_address(ip: str) -> str:
    """An address of this machine of the other IP version than ``ip``; empty if it has none.

    The counterpart of a loopback address is one, too: listeners that only this machine reaches stay so.
    """
    given = ipaddress.ip_address(ip)
    other = 6 if given.version == 4 else 4
    if given.is_loopback:
        return "127.0.0.1" if other == 4 else "::1" if has_ipv6() else ""
    candidates = (_by_default_route(other), *machine_addresses())
    return next((each for each in candidates if each and ipaddress.ip_address(each).version == other), "")


def _by_default_route(version: int) -> str:
    """Nothing is sent: connecting a UDP socket only chooses the route."""
    family, somewhere = _SOMEWHERE[version]
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((somewhere, 9))
            return str(sock.getsockname()[0])
    except OSError:
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


LONGEST_SOCKET = 107
"""Bytes of the path of a Unix socket (Linux)."""


def why_unusable(folder: Path, *, make: bool = True) -> str:
    """A reason why a folder cannot be ours; empty if it can. ``make``: make it if it is not there.

    It must belong to our user, who must be able to write there; no other user may.
    """
    try:
        if make:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif not folder.exists():
            above = next(place for place in folder.parents if place.exists())
            return "" if _is_writable(above) else f"it cannot be made, because {above} cannot be written"
        found = folder.stat()
    except OSError as error:
        return error.strerror or str(error)
    if not stat.S_ISDIR(found.st_mode):
        return "it is not a folder"
    if reason := why_not_ours(folder, found):
        return reason
    return "" if _is_writable(folder) else "it cannot be written"


def _is_writable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def why_unreadable(file: Path) -> str:
    """A reason why a file cannot be read; empty if it can."""
    try:
        with file.open("rb") as opened:
            opened.read(1)
    except OSError as error:
        return error.strerror or str(error)
    return ""
