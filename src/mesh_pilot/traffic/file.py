"""The memory of traffic on disk: spans in a separate SQLite file, next to that of the state.

A garbled file is moved aside, and a new one takes its place; what a full disk does not take is lost with a restart. The
process that has the file open keeps others out. All calls block, and belong in a thread, one at a time.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import structlog

from mesh_pilot.base.sqlite_file import FAULTS, check_header, files_of, identity_of, is_garbled
from mesh_pilot.identity.trust.private_files import own_folder
from mesh_pilot.traffic.spans import TrafficSpan

NAME = "traffic.db"
FORMAT = 1
APPLICATION = 0x6D657472
"""The number by which we know the file as ours: ``metr``."""

_TABLE = (
    "CREATE TABLE spans (seconds INTEGER NOT NULL, begin INTEGER NOT NULL, slots INTEGER NOT NULL, has_gap INTEGER NOT"
    " NULL, left_out INTEGER NOT NULL, data BLOB NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (seconds, begin))"
)

T = TypeVar("T")

log = structlog.get_logger(scope="traffic")


class TrafficFile:
    """The file, opened when it is first needed. Calls raise those of `FAULTS` where the disk does not take more."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._connection: sqlite3.Connection | None = None
        self._identity = (0, 0)
        """The device and inode of the open file."""

    def __repr__(self) -> str:
        return f"<TrafficFile {self._path}, {'closed' if self._connection is None else 'open'}>"

    def load(self) -> list[TrafficSpan]:
        """All spans; garbled ones are left out."""
        found = self._do(lambda connection: connection.execute("SELECT * FROM spans").fetchall())
        spans = []
        for seconds, begin, *rest, data, kept in found:
            span = _span(seconds, begin, *rest, data)
            if span is not None and _checksum(span) == kept:
                spans.append(span)
        if len(spans) < len(found):
            count = len(found) - len(spans)
            log.error("some of the traffic that was remembered is garbled, and not used", spans=count)
        return spans

    def write(self, changes: Mapping[tuple[int, int], TrafficSpan | None], every: Iterable[TrafficSpan] = ()) -> None:
        """Write spans, and delete those mapped to None, in one transaction. ``every``: all spans that there are, for a
        file that is opened now and may be another one than before."""
        before, whole = self._connection, {each.key: each for each in every} | {**changes}

        def act(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            try:
                for key, span in (changes if connection is before else whole).items():
                    if span is None:
                        connection.execute("DELETE FROM spans WHERE seconds = ? AND begin = ?", key)
                    else:
                        row = (*key, span.slots, span.has_gap, span.left_out, span.data, _checksum(span))
                        connection.execute("INSERT OR REPLACE INTO spans VALUES (?, ?, ?, ?, ?, ?, ?)", row)
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
            connection.execute("PRAGMA incremental_vacuum").fetchall()

        self._do(act)

    def close(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _do(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """Act on the open file. A garbled one is moved aside first, and it is done on the one begun in its place."""
        try:
            return act(self._opened())
        except FAULTS as error:
            self.close()
            if not is_garbled(error):
                raise
            self._set_aside(str(error))
        return act(self._opened())

    def _is_there(self) -> bool:
        try:
            return identity_of(self._path) == self._identity
        except OSError:
            return False

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None or not self._is_there():
            self.close()
            self._connection = self._connected()
            self._identity = identity_of(self._path)
        assert self._connection is not None
        return self._connection

    def _connected(self) -> sqlite3.Connection:
        own_folder(self._path.parent)
        if not self._path.exists():
            for beside in files_of(self._path)[1:]:
                beside.unlink(missing_ok=True)  # the log of a file that is gone
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        check_header(self._path)
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=1.0)
        try:
            _set_up(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_aside(self, reason: str) -> None:
        aside = self._path.with_name(f"{NAME}.unusable")
        for file in files_of(self._path)[1:]:
            file.unlink(missing_ok=True)
        self._path.replace(aside)
        log.error("file of traffic is unusable and was moved aside", file=str(self._path), reason=reason, to=str(aside))


def _set_up(connection: sqlite3.Connection) -> None:
    run = connection.execute
    run("PRAGMA locking_mode = EXCLUSIVE")
    run("PRAGMA trusted_schema = OFF")
    run("PRAGMA cell_size_check = ON")
    run("PRAGMA cache_size = -512")
    (tables,) = run("SELECT count(*) FROM sqlite_master").fetchone()
    if tables:
        (application,) = run("PRAGMA application_id").fetchone()
        (version,) = run("PRAGMA user_version").fetchone()
        if (application, version) != (APPLICATION, FORMAT):
            raise sqlite3.DatabaseError(f"it is not of format {FORMAT} of mesh-pilot's traffic")
        (verdict,) = run("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(f"it is garbled: {verdict}")
    else:
        run("PRAGMA auto_vacuum = INCREMENTAL")
    run("PRAGMA journal_mode = WAL")
    run("PRAGMA synchronous = NORMAL")
    run("PRAGMA journal_size_limit = 1048576")
    if not tables:
        run("BEGIN IMMEDIATE")
        run(_TABLE)
        run(f"PRAGMA application_id = {APPLICATION}")
        run(f"PRAGMA user_version = {FORMAT}")
        run("COMMIT")


def _span(*columns: object) -> TrafficSpan | None:
    """A row as a span; None if a column has a value of another type than it was written with."""
    match columns:
        case (int(seconds), int(begin), int(slots), int(has_gap), int(left_out), bytes(data)):
            return TrafficSpan(begin, seconds, slots, bool(has_gap), left_out, data)
    return None


def _checksum(span: TrafficSpan) -> int:
    head = f"{span.seconds} {span.begin} {span.slots} {span.has_gap:d} {span.left_out}"
    return zlib.crc32(span.data, zlib.crc32(head.encode()))
