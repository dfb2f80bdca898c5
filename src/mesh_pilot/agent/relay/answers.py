"""The answers of control planes that Envoy has accepted, on disk: what it starts with while none can be reached.

One SQLite file of the agent's own (mode 0600, write-ahead log). Its rows are resources, still encoded, each with a
checksum. They hold for one proxy only; those of another are dropped. Secrets are not kept, because
they are private keys: a gateway that starts without a control plane lacks the certificates that it is sent over xDS.

The functions block: call them in a worker thread, one at a time.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import attrs
import structlog

from mesh_pilot.agent.relay.messages import KeptResource, ResponseParts, XdsProtocol
from mesh_pilot.base.sqlite_file import FAULTS, check_header, files_of, identity_of, is_garbled
from mesh_pilot.identity.trust.private_files import own_folder
from mesh_pilot.model.resource import SECRET

T = TypeVar("T")

log = structlog.get_logger(scope="agent.relay")

FORMAT = 1

_TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE types (type TEXT PRIMARY KEY, version TEXT NOT NULL);
CREATE TABLE answers (
    type TEXT NOT NULL, name TEXT NOT NULL, version TEXT NOT NULL, body BLOB NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (type, name)
);
CREATE TABLE aliases (
    type TEXT NOT NULL, alias TEXT NOT NULL, name TEXT NOT NULL, PRIMARY KEY (type, alias, name)
);
"""

_NAMES_A_QUERY = 500


@attrs.frozen
class AcceptedResponse:
    """A response that Envoy accepted."""

    protocol: XdsProtocol
    response: ResponseParts
    is_full: bool
    """True if what is not in it is gone."""


@attrs.frozen
class AnswersStatistics:
    resources: int
    """Resources on disk."""
    confirmed_at: float
    """When a control plane last stood by them, in Unix time; 0 if there are none."""


class Answers:
    """The file, opened when it is first needed. Raises sqlite3.Error and OSError where the disk does not take more.

    A damaged file is moved aside, with one line in the log.
    """

    def __init__(self, path: Path, proxy: str) -> None:
        """``proxy``: for whom the answers are; others are dropped."""
        self._path = path
        self._proxy = proxy
        self._database: sqlite3.Connection | None = None
        self._identity = (0, 0)
        """The device and inode of the open file."""

    def __repr__(self) -> str:
        return f"<Answers in {self._path}, {'closed' if self._database is None else 'open'}>"

    # -- the file

    def _do(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """Act on the open file. A damaged one is moved aside first, and it is done on the one begun in its place."""
        try:
            return act(self._open())
        except OSError:  # of the folder: what is open may be all that is left of the file
            raise
        except FAULTS as error:
            self.close()
            if not is_garbled(error):
                raise
            self._set_aside(str(error))
        return act(self._open())

    def _read(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """The same; on a disk that takes nothing, on one that is opened for reading only."""
        try:
            return self._do(act)
        except (sqlite3.OperationalError, OSError):
            if not self._path.exists():
                raise
        with closing(self._connect_to_read()) as reading:
            return act(reading)

    def _open(self) -> sqlite3.Connection:
        """The open file, which is made again where it is gone, with what was in it."""
        before = self._database
        if before is not None and not self._is_there():
            self._database = self._connect(before)
            before.close()
        elif before is None:
            self._database = self._connect()
        assert self._database is not None
        return self._database

    def _is_there(self) -> bool:
        try:
            return identity_of(self._path) == self._identity
        except FileNotFoundError:
            return False

    def _connect(self, removed: sqlite3.Connection | None = None) -> sqlite3.Connection:
        """Open the file. Where it is missing, it begins with the content of the one that was ``removed``."""
        own_folder(self._path.parent)
        is_new = not self._path.exists()
        if is_new:
            for beside in files_of(self._path)[1:]:
                beside.unlink(missing_ok=True)  # the log of a file that is gone
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        check_header(self._path)
        database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=5)
        try:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=NORMAL")
            database.execute("PRAGMA cache_size=-512")
            database.execute("PRAGMA cell_size_check=ON")
            database.execute("PRAGMA trusted_schema=OFF")
            if is_new and removed is not None:
                log.warning("stored answers were removed from the disk; writing them again", file=str(self._path))
                with suppress(sqlite3.Error):
                    removed.backup(database)
            self._prepare(database)
            self._identity = identity_of(self._path)
        except BaseException:
            database.close()
            raise
        return database

    def _prepare(self, database: sqlite3.Connection) -> None:
        if not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            with _transaction(database):
                for statement in _TABLES.split(";"):
                    database.execute(statement)
                _set_fact(database, "format", str(FORMAT))
                _set_fact(database, "proxy", self._proxy)
            return
        found = database.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise sqlite3.DatabaseError(f"it is damaged: {found}")
        if (kept := _fact(database, "format")) != str(FORMAT):
            raise sqlite3.DatabaseError(f"the format is {kept}, this version's is {FORMAT}")
        if (proxy := _fact(database, "proxy")) != self._proxy:
            log.warning("kept answers are of another proxy and are dropped", of=proxy, this=self._proxy)
            with _transaction(database):
                for table in ("types", "answers", "aliases", "facts"):
                    database.execute(f"DELETE FROM {table}")
                _set_fact(database, "format", str(FORMAT))
                _set_fact(database, "proxy", self._proxy)

    def _connect_to_read(self) -> sqlite3.Connection:
        """Read-only, and without the files next to it that SQLite would make."""
        wal = self._path.with_name(f"{self._path.name}-wal")
        unread = wal.exists() and wal.stat().st_size > 0
        uri = f"{self._path.absolute().as_uri()}?mode=ro{'' if unread else '&immutable=1'}"
        database = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        try:
            if (_fact(database, "format"), _fact(database, "proxy")) != (str(FORMAT), self._proxy):
                raise sqlite3.OperationalError("written by another version or proxy, and cannot be recreated")
        except BaseException:
            database.close()
            raise
        return database

    def _set_aside(self, reason: str) -> None:
        aside = self._path.with_name(f"{self._path.name}.damaged")
        for file in files_of(self._path)[1:]:
            file.unlink(missing_ok=True)
        self._path.replace(aside)
        log.error(
            "kept answers cannot be read; new ones are kept", file=str(self._path), aside=str(aside), reason=reason
        )

    def close(self) -> None:
        if self._database is not None:
            database, self._database = self._database, None
            database.close()

    # -- writing

    def keep(self, accepted: Iterable[AcceptedResponse], *, now: float) -> None:
        """Write what was accepted, in this order, in one transaction. ``now``: in Unix time.

        ``accepted`` is gone through a second time if the file turns out to be damaged.
        """

        def write(database: sqlite3.Connection) -> None:
            with _transaction(database):
                for each in accepted:
                    if each.response.type_url != SECRET:
                        _keep_response(database, each)
                _set_fact(database, "confirmed", str(now))

        self._do(write)

    def forget(self, type_url: str, names: Collection[str]) -> int:
        """Drop the resources of a type that have none of ``names``, as alias neither; returns how many."""

        def drop(database: sqlite3.Connection) -> int:
            with _transaction(database):
                kept = {str(row[0]) for row in database.execute("SELECT name FROM answers WHERE type = ?", (type_url,))}
                aliases = database.execute("SELECT alias, name FROM aliases WHERE type = ?", (type_url,))
                used = {str(name) for alias, name in aliases if alias in names}
                dropped = kept.difference(names, used)
                _remove(database, type_url, dropped)
            return len(dropped)

        return self._do(drop)

    # -- reading

    def find(self, type_url: str, names: Collection[str] | None) -> tuple[str, list[KeptResource]] | None:
        """The version of a type and its resources, all or by name and alias; None where none was ever accepted."""

        def search(database: sqlite3.Connection) -> tuple[str, list[KeptResource]] | None:
            row = database.execute("SELECT version FROM types WHERE type = ?", (type_url,)).fetchone()
            return None if row is None else (str(row[0]), _find(database, type_url, names))

        return self._read(search)

    def statistics(self) -> AnswersStatistics:
        def count(database: sqlite3.Connection) -> AnswersStatistics:
            number = database.execute("SELECT count(*) FROM answers").fetchone()[0]
            return AnswersStatistics(int(number), _time(_fact(database, "confirmed")))

        return self._read(count)


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All that is done in the block, or nothing."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


def _fact(database: sqlite3.Connection, name: str) -> str | None:
    row = database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def _time(value: str | None) -> float:
    """A time that is kept; 0 for none, or a damaged one."""
    try:
        found = float(value or 0)
    except ValueError:
        return 0.0
    return found if 0 <= found < 2**40 else 0.0


def _set_fact(database: sqlite3.Connection, name: str, value: str) -> None:
    database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))


def _keep_response(database: sqlite3.Connection, accepted: AcceptedResponse) -> None:
    response, type_url = accepted.response, accepted.response.type_url
    version = response.version if accepted.protocol is XdsProtocol.SOTW else ""
    database.execute("INSERT OR REPLACE INTO types VALUES (?, ?)", (type_url, version))
    if accepted.is_full:
        names = {answer.name for answer in response.answers}
        rows = database.execute("SELECT name, version, body, checksum FROM answers WHERE type = ?", (type_url,))
        kept = {str(name): row for name, *row in rows}
        _remove(database, type_url, [name for name in kept if name not in names])
    else:
        kept = {}
        _remove(database, type_url, response.removed)
    for answer in response.answers:
        checksum = _checksum(answer.name, answer.body)
        if kept.get(answer.name) == [answer.version, answer.body, checksum]:
            continue
        row = (type_url, answer.name, answer.version, answer.body, checksum)
        database.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?)", row)
        database.execute("DELETE FROM aliases WHERE type = ? AND name = ?", (type_url, answer.name))
        aliases = [(type_url, alias, answer.name) for alias in answer.aliases]
        database.executemany("INSERT OR REPLACE INTO aliases VALUES (?, ?, ?)", aliases)


def _remove(database: sqlite3.Connection, type_url: str, names: Iterable[str]) -> None:
    rows = [(type_url, name) for name in names]
    database.executemany("DELETE FROM answers WHERE type = ? AND name = ?", rows)
    database.executemany("DELETE FROM aliases WHERE type = ? AND name = ?", rows)


def _find(database: sqlite3.Connection, type_url: str, names: Collection[str] | None) -> list[KeptResource]:
    columns = "SELECT name, version, body, checksum FROM answers WHERE type = ?"
    rows: list[tuple[str, str, bytes, int]] = []
    if names is None:
        rows = database.execute(f"{columns} ORDER BY name", (type_url,)).fetchall()
    else:
        wanted = list(dict.fromkeys(names))
        for start in range(0, len(wanted), _NAMES_A_QUERY):
            some = wanted[start : start + _NAMES_A_QUERY]
            marks = ", ".join("?" * len(some))
            aliased = f"SELECT name FROM aliases WHERE type = ? AND alias IN ({marks})"
            query = f"{columns} AND (name IN ({marks}) OR name IN ({aliased}))"
            rows += database.execute(query, (type_url, *some, type_url, *some))
    aliases: dict[str, list[str]] = {}
    for alias, name in database.execute("SELECT alias, name FROM aliases WHERE type = ?", (type_url,)):
        aliases.setdefault(name, []).append(alias)
    found = {}
    for name, version, body, checksum in rows:
        if not isinstance(body, bytes) or checksum != _checksum(name, body):
            log.error("a kept answer is damaged and left out", type=type_url, name=name)
            continue
        found[name] = KeptResource(name, version, body, tuple(aliases.get(name, ())))
    return list(found.values())


def _checksum(name: str, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(name.encode()))
