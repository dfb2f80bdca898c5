"""Files that outlive a crash: written whole under another name, synced, then renamed; with their modes all along."""

from __future__ import annotations

import os
import secrets
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


def sync_folder(folder: Path) -> None:
    """Make the names in a folder outlive a crash."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
