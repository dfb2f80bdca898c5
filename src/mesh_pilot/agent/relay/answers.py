"""The answers of control planes that Envoy has accepted, on disk: what it starts with while none can be reached.

One SQLite file of the agent's own (mode 0600, write-ahead log). Its rows are resources, still encoded, each with a
checksum. They hold for one proxy only; those of another are dropped. Secrets are not kept, because
they are private keys: a gateway that starts without a control plane lacks the certificates that it is sent over xDS.

The functions block: call them in a worker thread, one at a time.
"""

from __future__ import annotations

import os
import sqlite3
import time
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import attrs
import structlog

from mesh_pilot.agent.relay.messages import SECRET, KeptResource, ResponseParts, XdsProtocol

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
    """Whether what is not in it is gone."""


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

    def __repr__(self) -> str:
        return f"<Answers in {self._path}, {'closed' if self._database is None else 'open'}>"

    # -- the file

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            try:
                self._database = self._connect()
            except sqlite3.OperationalError:
                raise  # the disk, not the file
            except (sqlite3.DatabaseError, _UnusableFile) as error:
                self._set_aside(str(error))
                self._database = self._connect()
        return self._database

    def _connect(self) -> sqlite3.Connection:
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=5)
        try:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=NORMAL")
            database.execute("PRAGMA cache_size=-512")
            self._prepare(database)
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
        found = database.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise _UnusableFile(f"it is damaged: {found}")
        if (kept := _fact(database, "format")) != str(FORMAT):
            raise _UnusableFile(f"its format is {kept}, this version's is {FORMAT}")
        if (proxy := _fact(database, "proxy")) != self._proxy:
            log.warning("kept answers are of another proxy and are dropped", of=proxy, this=self._proxy)
            with _transaction(database):
                for table in ("types", "answers", "aliases", "facts"):
                    database.execute(f"DELETE FROM {table}")
                _set_fact(database, "format", str(FORMAT))
                _set_fact(database, "proxy", self._proxy)

    @contextmanager
    def _to_read(self) -> Iterator[sqlite3.Connection]:
        """The open file; on a disk that takes nothing, one that is opened for reading only."""
        try:
            database = self._open()
        except (sqlite3.OperationalError, OSError):
            if not self._path.exists():
                raise
            with closing(self._connect_to_read()) as reading:
                yield reading
        else:
            yield database

    def _connect_to_read(self) -> sqlite3.Connection:
        """Read-only, and without the files beside it that SQLite would make."""
        wal = self._path.with_name(f"{self._path.name}-wal")
        unread = wal.exists() and wal.stat().st_size > 0
        uri = f"{self._path.absolute().as_uri()}?mode=ro{'' if unread else '&immutable=1'}"
        database = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        try:
            if (_fact(database, "format"), _fact(database, "proxy")) != (str(FORMAT), self._proxy):
                raise sqlite3.OperationalError("it is of another version or proxy, and cannot be begun anew")
        except BaseException:
            database.close()
            raise
        return database

    def _set_aside(self, reason: str) -> None:
        aside = self._path.with_name(f"{self._path.name}.damaged")
        for suffix in ("-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self._path.replace(aside)
        log.error(
            "kept answers cannot be read; new ones are kept", file=str(self._path), aside=str(aside), reason=reason
        )

    def close(self) -> None:
        if self._database is not None:
            database, self._database = self._database, None
            database.close()

    def _damaged(self, error: sqlite3.DatabaseError) -> None:
        """Begin anew after an error that is the file's."""
        self.close()
        self._set_aside(str(error))

    # -- writing

    def keep(self, accepted: Iterable[AcceptedResponse], *, now: float) -> None:
        """Write what was accepted, in this order, in one transaction. ``now``: in Unix time.

        ``accepted`` is gone through a second time if the file turns out to be damaged.
        """
        try:
            self._keep(accepted, now)
        except sqlite3.OperationalError:
            self.close()
            raise
        except sqlite3.DatabaseError as error:
            self._damaged(error)
            self._keep(accepted, now)

    def _keep(self, accepted: Iterable[AcceptedResponse], now: float) -> None:
        database = self._open()
        with _transaction(database):
            for each in accepted:
                if each.response.type_url != SECRET:
                    _keep_response(database, each)
            _set_fact(database, "confirmed", str(now))

    def forget(self, type_url: str, names: Collection[str]) -> int:
        """Drop the resources of a type that have none of ``names``, as alias neither; returns how many."""
        database = self._open()
        with _transaction(database):
            kept = {str(row[0]) for row in database.execute("SELECT name FROM answers WHERE type = ?", (type_url,))}
            aliases = database.execute("SELECT alias, name FROM aliases WHERE type = ?", (type_url,))
            used = {str(name) for alias, name in aliases if alias in names}
            dropped = kept.difference(names, used)
            _remove(database, type_url, dropped)
        return len(dropped)

    # -- reading

    def find(self, type_url: str, names: Collection[str] | None) -> tuple[str, list[KeptResource]] | None:
        """The version of a type and its resources, all or by name and alias; None where none was ever accepted."""
        try:
            with self._to_read() as database:
                row = database.execute("SELECT version FROM types WHERE type = ?", (type_url,)).fetchone()
                if row is None:
                    return None
                return str(row[0]), _find(database, type_url, names)
        except sqlite3.OperationalError:
            self.close()
            raise
        except sqlite3.DatabaseError as error:
            self._damaged(error)
            return None

    def statistics(self) -> AnswersStatistics:
        with self._to_read() as database:
            count = database.execute("SELECT count(*) FROM answers").fetchone()[0]
            return AnswersStatistics(int(count), float(_fact(database, "confirmed") or 0))


class _UnusableFile(Exception):
    """A file that cannot be used: the reason."""


class _transaction:
    """All that is done in the block, or nothing."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._database.execute("COMMIT")
        elif self._database.in_transaction:
            self._database.execute("ROLLBACK")


def _fact(database: sqlite3.Connection, name: str) -> str | None:
    row = database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def _set_fact(database: sqlite3.Connection, name: str, value: str) -> None:
    database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))


def _keep_response(database: sqlite3.Connection, accepted: AcceptedResponse) -> None:
    response, type_url = accepted.response, accepted.response.type_url
    version = response.version if accepted.protocol is XdsProtocol.SOTW else ""
    database.execute("INSERT OR REPLACE INTO types VALUES (?, ?)", (type_url, version))
    if accepted.is_full:
        names = {answer.name for answer in response.answers}
        rows = database.execute("SELECT name, version, checksum FROM answers WHERE type = ?", (type_url,))
        kept = {str(name): (version, checksum) for name, version, checksum in rows}
        _remove(database, type_url, [name for name in kept if name not in names])
    else:
        kept = {}
        _remove(database, type_url, response.removed)
    for answer in response.answers:
        checksum = _checksum(answer.name, answer.body)
        if kept.get(answer.name) == (answer.version, checksum):
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
        if checksum != _checksum(name, body):
            log.error("a kept answer is damaged and left out", type=type_url, name=name)
            continue
        found[name] = KeptResource(name, version, body, tuple(aliases.get(name, ())))
    return list(found.values())


def _checksum(name: str, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(name.encode()))


def unix_time() -> float:
    """The time that ages are counted from; it is kept over restarts."""
    return time.time()
