"""Files that outlive a crash: written whole under another name, synced, then renamed; with their modes all along."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path


def write_new(path: Path, content: bytes, mode: int = 0o600, *, own: Callable[[int], None] = lambda _: None) -> None:
    """Write a file that is not there yet, through no symbolic link; ``own`` may give its descriptor another owner.

    Raises OSError, as all functions here.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, mode), "wb") as file:
        own(file.fileno())
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, content: bytes, mode: int = 0o600, *, own: Callable[[int], None] = lambda _: None) -> None:
    """Write a file, in place of the one that may be there."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        write_new(temporary, content, mode, own=own)
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def own_folder(folder: Path, *, make: bool = True, parents: bool = True) -> None:
    """Make a folder of ours unless it exists. Raises OSError, also if it belongs to other users or they may write.

    ``parents``: those that are missing are made, and the folder may be reached by a symbolic link; off for a folder
    in a place where everybody may write.
    """
    if make and not folder.is_dir():
        folder.mkdir(mode=0o700, parents=parents, exist_ok=True)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if parents else os.O_NOFOLLOW)
    descriptor = os.open(folder, flags)
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if reason := why_not_ours(folder, found):
        raise PermissionError(errno.EPERM, reason, str(folder))


def why_not_ours(folder: Path, found: os.stat_result) -> str:
    """Why others could put their files in the place of ours in a folder with these facts; empty if they could not."""
    if found.st_uid != os.geteuid():
        owner, ours = _user(found.st_uid), _user(os.geteuid())
        return f"it belongs to user {owner}, and this runs as {ours}"
    if others := found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        letters = "".join(letter for letter, bit in (("g", stat.S_IWGRP), ("o", stat.S_IWOTH)) if others & bit)
        return f"others may write there, and it is for private keys: chmod {letters}-w {folder}"
    return ""


def _user(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder outlive a crash."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
