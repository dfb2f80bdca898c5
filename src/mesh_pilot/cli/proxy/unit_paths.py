"""Paths that the units of ``proxy install`` need on this machine, and reasons why they could not start.

A unit hides folders from its service (``ProtectHome``, ``PrivateTmp``), and the service's user may read less than
root, who installs it. So what works on root's command line may not be there for the service: the command, the
interpreter that its first line names, the package, Envoy, and files that the settings name.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import shlex
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs

HIDDEN: Mapping[str, str] = {
    "/home": "ProtectHome=yes",
    "/root": "ProtectHome=yes",
    "/run/user": "ProtectHome=yes",
    "/tmp": "PrivateTmp=yes",
    "/var/tmp": "PrivateTmp=yes",
}
"""Folders that the units do not show to their services, by the setting that hides them."""

SETTINGS = Path("/etc/mesh-pilot/proxy.yaml")
_PATIENCE_SECONDS = 30.0
_ASK = """\
import json, os, sys
import mesh_pilot
from mesh_pilot.agent.envoy.binary import EnvoyError, find_envoy
os.environ.pop("ENVOY", None)
try:
    envoy = str(find_envoy())
except EnvoyError as error:
    envoy = ""
print(json.dumps({"package": os.path.dirname(mesh_pilot.__file__), "envoy": envoy}))
"""
"""Asked of the interpreter of the command: where its parts are."""


@attrs.frozen
class User:
    """A user of this machine, and its groups; one that does not exist yet has the rights of all others."""

    name: str
    uid: int = -1
    gids: frozenset[int] = frozenset()

    @classmethod
    def named(cls, name: str) -> User:
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            return cls(name)
        return cls(name, found.pw_uid, frozenset(os.getgrouplist(name, found.pw_gid)))

    def may(self, status: os.stat_result, wanted: int) -> bool:
        """True if mode bits allow it; ``wanted``: of 4 (read), 2 (write), 1 (execute, or pass through a folder)."""
        if self.uid == 0:
            return True
        shift = 6 if status.st_uid == self.uid else 3 if status.st_gid in self.gids else 0
        return stat.S_IMODE(status.st_mode) >> shift & wanted == wanted


def hidden_by(path: str) -> str:
    """The folder that hides a path from the services, and the setting; empty if none does."""
    for folder, setting in HIDDEN.items():
        if path == folder or path.startswith(f"{folder}/"):
            return f"{setting} hides {folder} from it"
    return ""


def why_not_there(what: str, path: Path, user: User, wanted: int = 5) -> str:
    """The reason why the service cannot use a file or folder, with all links that lead there; empty if it can."""
    for each in _steps(path):
        if why := hidden_by(str(each)):
            return f"{what} {_shown(path, each)}: {why}"
        try:
            status = each.stat()
        except OSError as error:
            return f"{what} {_shown(path, each)}: {error.strerror}"
        if not user.may(status, wanted if each == path.resolve() else 1):
            mode = stat.filemode(status.st_mode)
            return f"{what} {_shown(path, each)}: the user {user.name} may not read it (mode {mode})"
    return ""


def _shown(path: Path, at: Path) -> str:
    return str(path) if path == at else f"{path} ({at})"


def _steps(path: Path) -> Iterator[Path]:
    """All that is passed on the way to a path: folders, targets of links, and at last the thing itself."""
    at, rest = Path("/"), list(path.absolute().parts[1:])
    for _ in range(200):
        if not rest:
            return
        at = at / rest.pop(0)
        if at.is_symlink():
            target = Path(os.path.normpath(at.parent / at.readlink()))
            at, rest = Path("/"), [*target.parts[1:], *rest]
            continue
        yield at


def why_not_startable(program: str, user_name: str, *, redirects: bool) -> list[str]:
    """Reasons why the units with this command cannot start on this machine."""
    user, root = User.named(user_name), User("root", 0)
    found = []
    if user.uid >= 0 and not _has_group(user_name):
        found.append(f"the user {user_name} exists, but no group of that name: run groupadd --system {user_name}")
    parts = _parts(Path(program))
    for what, path in parts:
        if why := why_not_there(what, path, user) or why_not_there(what, path, root):
            found.append(why)
    if redirects:
        folders = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
        if not any(shutil.which(tool, path=folders) for tool in ("nft", "iptables-restore")):
            found.append("neither nft nor iptables-restore is on this machine: install the package nftables")
    return list(dict.fromkeys(found))


def why_settings_unusable(user_name: str, settings: Path = SETTINGS) -> list[str]:
    """Reasons why the service cannot read its settings, or files that they name; empty without the file."""
    from mesh_pilot.cli.lib.settings_file import SettingsFileError, read_file

    if not settings.exists():
        return []
    user = User.named(user_name)
    found = [why_not_there("settings", settings, user, 4)]
    try:
        entries = read_file(settings)
    except SettingsFileError as error:
        return [str(error)]
    for key, entry in entries.items():
        if isinstance(entry.value, str) and entry.value.startswith("/") and not key.endswith("-dir"):
            found.append(why_not_there(f"{entry.place}: {key}", Path(entry.value), user, 4))
    return [why for why in found if why]


def _has_group(name: str) -> bool:
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


def _parts(program: Path) -> list[tuple[str, Path]]:
    """The command and what its process needs, as far as that can be found out."""
    parts = [("command", program)]
    interpreter = interpreter_of(program)
    if interpreter is None:
        return parts
    parts.append(("interpreter", interpreter))
    asked = _asked(interpreter)
    parts += [(what, Path(asked[key])) for key, what in (("package", "package"), ("envoy", "Envoy")) if asked.get(key)]
    return parts


def interpreter_of(program: Path) -> Path | None:
    """The interpreter of a script; None of anything else. pip writes long paths into a second line for ``sh``."""
    try:
        with program.open("rb") as file:
            first, second = file.readline(4096), file.readline(4096)
    except OSError:
        return None
    if not first.startswith(b"#!"):
        return None
    line = second if first.strip() == b"#!/bin/sh" and second.startswith(b"'''exec'") else first[2:]
    words: Sequence[str] = shlex.split(line.decode("utf-8", "replace").replace("'''exec'", "exec"))
    words = [word for word in words if word != "exec"]
    return Path(words[0]) if words else None


def _asked(interpreter: Path) -> Mapping[str, str]:
    try:
        done = subprocess.run(
            [interpreter, "-I", "-c", _ASK], capture_output=True, text=True, check=False, timeout=_PATIENCE_SECONDS
        )
        found: Mapping[str, str] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}
    return found
