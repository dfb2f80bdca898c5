"""The file of the state: an SQLite database in a folder of its owner, which one process has open.

A file that cannot be used (garbled, of another format, not a database) is moved aside, and a new one begun: what is in
it is a memory, never worth more than the service.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog

from mesh_pilot.base.sqlite_file import FAULTS, check_header, files_of, identity_of, is_garbled
from mesh_pilot.safety.state.codec import FORMAT
from mesh_pilot.safety.state.history_tables import ADDED
from mesh_pilot.safety.state.history_tables import SCHEMA as HISTORY_SCHEMA

NAME = "state.db"
LOCK = "state.lock"
ASIDE = ".unusable-"
"""Between the name of a file that was moved aside and the time."""

KEPT_ASIDE = 3
"""Files that were moved aside and are kept; older ones are removed."""

APPLICATION = 0x6D657370
"""The number by which `file` and we know an SQLite file as one of ours: ``mesp``."""

WAL_BYTES = 16 * 1024 * 1024
"""The size that the log next to the file is cut to once all in it is in the file."""

MEMORY = Path("/dev/shm")
"""A place for files that have none on the disk, on Linux."""

FREE_PAGES = 1024
"""So many unused pages are left in the file, for what comes next."""

SCHEMA = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value)",
    "CREATE TABLE pictures (id INTEGER PRIMARY KEY AUTOINCREMENT, source TEXT NOT NULL, place TEXT NOT NULL,"
    " confirmed_at REAL NOT NULL, items INTEGER NOT NULL, items_checksum INTEGER NOT NULL, checksum INTEGER NOT NULL,"
    " used_at REAL NOT NULL, UNIQUE (source, place))",
    "CREATE TABLE items (picture INTEGER NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, sealed INTEGER NOT NULL,"
    " checksum INTEGER NOT NULL, UNIQUE (picture, key))",
    *HISTORY_SCHEMA,
)
"""The tables of a new file."""

log = structlog.get_logger(scope="state")


class StateError(Exception):
    """State that cannot be used: the file, the reason, what continues without it, and what to do, in one line."""


class StateFault(StateError):
    """A fault of the disk: the file may be whole, and readable as a copy."""


class _Unusable(Exception):
    """A file that has to make way: the reason."""


class Database:
    """An open file."""

    def __init__(self, folder: Path) -> None:
        """Open the file in a folder, or make both. Raises StateError."""
        self.path = folder / NAME
        self._process = os.getpid()
        self._lock = -1
        try:
            _prepare(folder)
            self._lock = _locked(folder / LOCK)
            try:
                self._connection = _connected(self.path)
            except _Unusable as reason:
                _move_aside(self.path, str(reason))
                self._connection = _connected(self.path)
            self._identity = identity_of(self.path)
        except _Unusable as error:
            self._unlock()
            raise StateError(f"{self.path}: {error}") from error
        except FAULTS as error:
            self._unlock()
            raise _fault(self.path, error) from error
        except BaseException:
            self._unlock()
            raise

    def __repr__(self) -> str:
        return f"<Database {self.path}>"

    @property
    def is_there(self) -> bool:
        """False once another file, or none, is in its place."""
        try:
            return self._lock >= 0 and identity_of(self.path) == self._identity
        except OSError:
            return False

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all that is written within the block is kept, or nothing. Raises StateError.

        After an error that another try will not fix, the file has been moved aside.
        """
        if os.getpid() != self._process:
            raise StateError(f"{self.path} belongs to process {self._process}")
        try:
            if not self.is_there:
                raise OSError("it was moved or deleted")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise
        except FAULTS as error:
            if is_garbled(error):
                self.set_aside(str(error))
            raise _fault(self.path, error) from error

    def tidy(self) -> None:
        """Give unused pages back to the disk. Raises StateError."""
        try:
            (free,) = self._connection.execute("PRAGMA freelist_count").fetchone()
            if free > FREE_PAGES:
                self._connection.execute(f"PRAGMA incremental_vacuum({free - FREE_PAGES})").fetchall()
        except sqlite3.Error as error:
            raise _fault(self.path, error) from error

    @property
    def size(self) -> int:
        """The bytes on the disk, with those of the log next to the file."""
        found = 0
        for path in files_of(self.path):
            with suppress(OSError):
                found += path.stat().st_size
        return found

    def set_aside(self, reason: str) -> None:
        """Close the file and move it aside. Raises StateError."""
        with suppress(sqlite3.Error):
            self._connection.close()
        try:
            _move_aside(self.path, reason)
        except OSError as error:
            raise _fault(self.path, error) from error
        finally:
            self._unlock()

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._connection.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


@contextmanager
def copied(folder: Path) -> Iterator[Database]:
    """A copy of the file, to read from where the disk is full or read-only; gone after the block. Raises StateError."""
    original = folder / NAME
    try:
        with TemporaryDirectory(prefix="mesh-pilot-", dir=MEMORY if MEMORY.is_dir() else None) as scratch:
            for file in files_of(original)[:2]:
                if file is original or file.exists():
                    shutil.copyfile(file, Path(scratch) / file.name, follow_symlinks=False)
            database = Database(Path(scratch))
            try:
                yield database
            finally:
                database.close()
    except FAULTS as error:
        raise _fault(original, error) from error


def _fault(path: Path, error: Exception) -> StateFault:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if isinstance(error, OSError) and error.filename is not None and Path(os.fsdecode(error.filename)) != path:
        reason = f"{os.fsdecode(error.filename)}: {reason}"
    return StateFault(f"{path}: {reason}")


def _prepare(folder: Path) -> None:
    """Make the folder if it is missing; raise _Unusable if others may write there."""
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid not in (os.geteuid(), 0):
        raise _Unusable(f"the folder belongs to user {found.st_uid}; it must be ours, user {os.geteuid()}")
    if found.st_mode & 0o022:
        mode = stat.S_IMODE(found.st_mode)
        raise _Unusable(f"others may write into the folder (mode {mode:04o}); run chmod 700 {folder}")


def _locked(path: Path) -> int:
    """The descriptor of the lock file, locked by us for as long as it is open."""
    flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    except BlockingIOError:
        holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise _Unusable(
            f"another mesh-pilot uses this folder (process {holder}); give each its own --state-dir"
        ) from None
    except OSError:  # a full disk: the lock holds without the number in it
        pass
    return descriptor


def _connected(path: Path) -> sqlite3.Connection:
    """A connection to the file, which is made if there is none. Raises _Unusable, OSError and sqlite3.Error."""
    for file in files_of(path):
        with suppress(FileNotFoundError):
            found = file.lstat()
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_uid != os.geteuid():
                raise _Unusable(f"{file.name} is not a file of its owner's alone")
    try:
        # SQLite gives the files next to it the mode that this one has.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        path.chmod(0o600)
    else:
        for beside in files_of(path)[1:]:
            beside.unlink(missing_ok=True)  # the log of a file that is gone
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=2.0)
    try:
        check_header(path)
        _set_up(connection)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        connection.close()
        if is_garbled(error):
            raise _Unusable(str(error)) from error
        raise
    except BaseException:
        connection.close()
        raise
    return connection


def _set_up(connection: sqlite3.Connection) -> None:
    run = connection.execute
    run("PRAGMA trusted_schema = OFF")
    run("PRAGMA cell_size_check = ON")
    (tables,) = run("SELECT count(*) FROM sqlite_master").fetchone()
    (application,) = run("PRAGMA application_id").fetchone()
    (version,) = run("PRAGMA user_version").fetchone()
    if tables or application or version:
        if application != APPLICATION:
            raise _Unusable("it is a database of something else")
        if version != FORMAT:
            raise _Unusable(f"it has format {version}; this version of mesh-pilot reads format {FORMAT}")
        (verdict,) = run("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise _Unusable(f"it is garbled: {verdict}")
    else:
        run("PRAGMA auto_vacuum = INCREMENTAL")
    run("PRAGMA journal_mode = WAL")
    run("PRAGMA synchronous = NORMAL")
    run(f"PRAGMA journal_size_limit = {WAL_BYTES}")
    run("BEGIN IMMEDIATE")
    if not tables:
        for statement in SCHEMA:
            run(statement)
        run(f"PRAGMA application_id = {APPLICATION}")
        run(f"PRAGMA user_version = {FORMAT}")
    for statement in ADDED:
        run(statement)
    run("COMMIT")


def _move_aside(path: Path, reason: str) -> None:
    time = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    moved = f"{path.name}{ASIDE}{time}"
    for file in files_of(path):
        with suppress(FileNotFoundError):
            file.rename(file.with_name(moved + file.name.removeprefix(path.name)))
    log.error("state file is unusable and was moved aside", file=str(path), reason=reason, to=moved)
    older = sorted({found.name.removesuffix("-wal").removesuffix("-shm") for found in path.parent.glob(f"*{ASIDE}*")})
    for name in older[:-KEPT_ASIDE]:
        for file in files_of(path.with_name(name)):
            with suppress(OSError):
                file.unlink(missing_ok=True)
