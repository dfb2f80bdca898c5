"""SQLite files that are a memory, never worth more than the service: which errors are the file's, and where it lies.

The state of a control plane and the kept answers of an agent are such files. A garbled one makes way for a new one.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

FAULTS = (OSError, sqlite3.Error, UnicodeDecodeError)
"""Errors of files and databases; the last is what Python makes of garbled text."""

_GARBLED = frozenset(
    (
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_SCHEMA,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_FORMAT,
        sqlite3.SQLITE_NOTADB,
    )
)
"""SQLite's codes for what another try will not fix."""


_MAGIC = b"SQLite format 3\0"


def is_garbled(error: Exception) -> bool:
    """True for an error that another try will not fix."""
    code = getattr(error, "sqlite_errorcode", None)
    is_of_database = isinstance(error, sqlite3.Error) and (code is None or code & 0xFF in _GARBLED)
    return is_of_database or isinstance(error, UnicodeDecodeError)


def check_header(path: Path) -> None:
    """Raise sqlite3.DatabaseError for a file that SQLite would open, and then not write.

    It takes an unknown version of the file format for a newer one, and a file of that for read-only.
    """
    with path.open("rb") as file:
        header = file.read(20)
    if header.startswith(_MAGIC) and any(version not in (1, 2) for version in header[18:]):
        raise sqlite3.DatabaseError("the header is damaged")


def files_of(path: Path) -> list[Path]:
    """The file, and those that SQLite keeps next to it."""
    return [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))]


def identity_of(path: Path) -> tuple[int, int]:
    """The file that a name stands for, which another one in its place differs in. Raises OSError."""
    found = path.lstat()
    return found.st_dev, found.st_ino
