"""The history, read from the file of the state: by any process, while a plane writes or none runs, and never written.

with HistoryReader.open(folder) as history:
    for revision in history.revisions(limit=20): ...
    history.items_at(417)        # the pictures of all sources at a revision
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import msgspec

from mesh_pilot.model.events import Item
from mesh_pilot.model.history import RevisionNack, RevisionTraffic
from mesh_pilot.model.json import called
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.safety.state.codec import FORMAT, CodecError, decode, decode_key
from mesh_pilot.safety.state.database import APPLICATION, LOCK, NAME
from mesh_pilot.safety.state.history_tables import NOT_KEPT, checksum
from mesh_pilot.safety.state.proxy_rows import proxy_of_row

Key = tuple[str, ...]

_COLUMNS = "number, at, causes, objects, proxies, waiting, bytes, acked, nacked, over, {}"
"""The columns of a `RevisionRecord`."""

_OTHERS = "EXISTS (SELECT 1 FROM changes WHERE revision = revisions.number AND source {} 'quarantine')"
_IS_TRIAL = f"({_OTHERS.format('=')} AND NOT {_OTHERS.format('!=')})"
"""True for a revision in which only quarantine changed something."""


class HistoryError(Exception):
    """History that cannot be read: the file, the reason, and what to do, in one line."""


@attrs.frozen
class RevisionRecord:
    """A revision, and what it came to."""

    number: int = attrs.field(metadata=called("revision"))
    at: datetime
    causes: tuple[str, ...]
    """The first of them."""
    more_causes: int
    objects: int
    """Objects that changed."""
    proxies: int
    """Streams that were sent something because of it."""
    waiting: int
    """Streams that had not answered everything yet."""
    bytes: int
    acked_seconds: float | None
    """From its publication until the last of the streams had answered; None: none has."""
    nacked: int = attrs.field(metadata=called("nacks"))
    is_over: bool
    traffic: RevisionTraffic | None = None
    """The outcome in traffic; None while it is not known, and where traffic is not counted."""


@attrs.frozen
class ChangeRecord:
    """An object of a source that a revision changed."""

    source: str
    key: Key
    action: str
    """``add``, ``update`` or ``delete``."""
    cause: str
    """File and line, Consul index, ..."""


@attrs.frozen
class ProxyPosition:
    """A proxy and the revision that it is at."""

    proxy: Proxy
    seen: datetime
    """When it was last seen to move, or to leave."""
    is_connected: bool
    revision: int
    """The last revision of which it has, and has accepted, everything; 0: none."""
    is_refusing: bool


@attrs.frozen
class PastPictures:
    """The items of all sources at a revision, in the sources' order of precedence."""

    revision: int
    items: Mapping[str, Mapping[Key, Item]]
    settings: Mapping[str, str]
    """The settings of the plane that decide how objects are read."""
    unknown: tuple[Key, ...] = ()
    """Items that there were, and that are not kept."""


class HistoryReader:
    """A file of state, opened for reading."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        has_outcomes = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'outcomes'").fetchone()[0]
        traffic = "(SELECT traffic FROM outcomes WHERE revision = number)" if has_outcomes else "NULL"
        self._columns = _COLUMNS.format(traffic)

    @classmethod
    @contextmanager
    def open(cls, folder: Path) -> Iterator[HistoryReader]:
        """The history in a state folder, as of one time. Raises HistoryError, also within the block."""
        path = folder / NAME
        try:
            if not path.exists():
                raise HistoryError(f"{path}: there is no state; name the --state-dir of a control plane that keeps one")
            connection = _connected(path)
            try:
                connection.execute("BEGIN")
                (application,) = connection.execute("PRAGMA application_id").fetchone()
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                if application != APPLICATION:
                    raise HistoryError(f"{path}: not a file of mesh-pilot's state")
                if version != FORMAT:
                    raise HistoryError(
                        f"{path}: it has format {version}, this version of mesh-pilot reads {FORMAT}; use that of"
                        " the control plane"
                    )
                yield cls(connection, path)
            finally:
                connection.close()
        except BrokenPipeError:  # the reader's output, not the file
            raise
        except (sqlite3.Error, OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise HistoryError(f"{path}: cannot be read: {error}") from error

    @property
    def latest(self) -> int:
        """The number of the latest revision; 0: there is none."""
        (number,) = self._connection.execute("SELECT max(number) FROM revisions").fetchone()
        return number or 0

    @property
    def is_running(self) -> bool:
        """True while a control plane has the folder open."""
        try:
            descriptor = os.open(self._path.with_name(LOCK), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def kept(self) -> tuple[int, int] | None:
        """The oldest and the latest revision; None if there is none."""
        oldest, latest = self._connection.execute("SELECT min(number), max(number) FROM revisions").fetchone()
        return (oldest, latest) if latest is not None else None

    def revisions(
        self,
        *,
        limit: int = -1,
        since: datetime | None = None,
        proxy: str = "",
        object_name: str = "",
        is_seen: Callable[[str], bool] = lambda _: True,
        before: int | None = None,
    ) -> list[RevisionRecord]:
        """The revisions, newest first.

        `since`: published after that; `before`: with a smaller number; `proxy`: that this proxy refused something of;
        `object_name`: that changed such an object, by a part of its name as `show` writes it, or ``NAME.NAMESPACE``;
        `is_seen`: of those with such a name.
        """
        found = self._revisions(limit, since, proxy, _wanted(object_name, is_seen), before, is_folded=False)
        return [record for record, _ in found]

    def folded(
        self,
        *,
        limit: int = -1,
        since: datetime | None = None,
        proxy: str = "",
        object_name: str = "",
        is_seen: Callable[[str], bool] = lambda _: True,
        before: int | None = None,
    ) -> list[tuple[RevisionRecord, int]]:
        """The same without those in which only quarantine changed something: each with the number of these that
        followed it."""
        return self._revisions(limit, since, proxy, _wanted(object_name, is_seen), before, is_folded=True)

    def _revisions(
        self,
        limit: int,
        since: datetime | None,
        proxy: str,
        is_wanted: Callable[[str], bool] | None,
        before: int | None,
        *,
        is_folded: bool,
    ) -> list[tuple[RevisionRecord, int]]:
        wanted = ["at >= ?"]
        values: list[object] = [since.timestamp() if since else 0.0]
        if before is not None:
            wanted.append("number < ?")
            values.append(before)
        if proxy:
            wanted.append(
                "number IN (SELECT revision FROM nacks WHERE ? IN (proxy, substr(proxy, 1, instr(proxy, '.') - 1)))"
            )
            values.append(proxy)
        rows = self._connection.execute(
            f"SELECT {self._columns}, {_IS_TRIAL} FROM revisions WHERE {' AND '.join(wanted)} ORDER BY number DESC",
            values,
        )
        found: list[tuple[RevisionRecord, int]] = []
        trials = 0
        for *row, is_trial in rows:
            if len(found) == limit:
                break
            if is_folded and is_trial:
                trials += 1
            elif is_wanted is None or any(is_wanted(name_of(each.key)) for each in self.changes(row[0])):
                found.append((_record(row), trials))
                trials = 0
        return found

    def revision(self, number: int) -> RevisionRecord:
        """A revision. Raises HistoryError for one that is not kept."""
        row = self._connection.execute(f"SELECT {self._columns} FROM revisions WHERE number = ?", (number,)).fetchone()
        if row is None:
            raise HistoryError(f"revision {number} is not kept; {self._kept()}")
        return _record(row)

    def changes(self, number: int) -> list[ChangeRecord]:
        """The objects that a revision changed, by key."""
        rows = self._connection.execute(
            "SELECT source, key, action, cause FROM changes WHERE revision = ? ORDER BY key, source", (number,)
        )
        return [ChangeRecord(source, decode_key(key), action, cause) for source, key, action, cause in rows]

    def nacks(self, number: int) -> list[RevisionNack]:
        """The first refusals of what followed from a revision."""
        rows = self._connection.execute(
            "SELECT at, proxy, type, names, configs, reason FROM nacks WHERE revision = ? ORDER BY number", (number,)
        )
        return [
            RevisionNack(_time(at), proxy, kind, tuple(json.loads(names)), tuple(json.loads(configs)), reason)
            for at, proxy, kind, names, configs, reason in rows
        ]

    def proxies(self) -> list[ProxyPosition]:
        """The proxies that are connected, or were lately, by name."""
        latest = self.latest
        is_running = self.is_running
        found = []
        for node_id, node, seen, connected, revision, refusing in self._connection.execute(
            "SELECT id, node, seen, connected, revision, refusing FROM proxies ORDER BY name, id"
        ):
            at = latest if revision is None else revision
            position = ProxyPosition(
                proxy_of_row(node_id, json.loads(node)), _time(seen), bool(connected) and is_running, at, bool(refusing)
            )
            found.append(position)
        return found

    def items_at(self, number: int) -> PastPictures:
        """The items of all sources as they were at a revision. Raises HistoryError if that is not known any more."""
        self.revision(number)
        broken = self._connection.execute(
            "SELECT max(number) FROM revisions WHERE number > ? AND NOT complete", (number,)
        ).fetchone()[0]
        if broken is not None:
            raise HistoryError(
                f"the objects at revision {number} are not known any more, those since {broken} are: what there was"
                " before was not taken over by the next run, or could not be recorded (docs/history.md)"
            )
        settings, places = self._connection.execute(
            "SELECT settings, places FROM runs ORDER BY id DESC LIMIT 1"
        ).fetchone()
        rows = {source: self._rows_of(source, place) for source, place in json.loads(places).items()}
        self._walk_back(rows, number)
        unknown = tuple(decode_key(key) for of in rows.values() for key, value in of.items() if value is None)
        items = {
            source: dict(self._decoded(key, value) for key, value in of.items() if value is not None)
            for source, of in rows.items()
        }
        return PastPictures(number, items, json.loads(settings), unknown)

    def _rows_of(self, source: str, place: str) -> dict[str, bytes | None]:
        """The present picture of a source, encoded; None for what is encrypted."""
        found: dict[str, bytes | None] = {}
        for key, value, kept, is_sealed in self._connection.execute(
            "SELECT key, value, checksum, sealed FROM items WHERE picture ="
            " (SELECT id FROM pictures WHERE source = ? AND place = ?)",
            (source, place),
        ):
            self._check(key, value, kept)
            found[key] = None if is_sealed else value
        return found

    def _walk_back(self, rows: dict[str, dict[str, bytes | None]], number: int) -> None:
        """Undo the changes after a revision. An item that is not kept becomes None."""
        for source, key, action, before, kept in self._connection.execute(
            "SELECT source, key, action, before, checksum FROM changes WHERE revision > ? ORDER BY revision DESC",
            (number,),
        ):
            of = rows.get(source)
            if of is None:
                continue
            if action == "add":
                of.pop(key, None)
            elif kept == NOT_KEPT:
                of[key] = None
            else:
                self._check(key, before, kept)
                of[key] = before

    def _check(self, key: str, value: bytes, kept: int) -> None:
        if checksum(key, value) != kept:
            raise HistoryError(f"{self._path}: {key} in it is garbled")

    def _decoded(self, key: str, value: bytes) -> tuple[Key, Item]:
        try:
            return decode_key(key), decode(value)
        except CodecError as error:
            raise HistoryError(f"{self._path}: {key} in it {error}") from None

    def _kept(self) -> str:
        kept = self.kept()
        return f"kept are {kept[0]} to {kept[1]}" if kept else "none is"


def name_of(key: Key) -> str:
    """An object as people name it: ``VirtualService/shop/reviews``, ``endpoints/web.shop/shop``."""
    parts = key[1:] if key[0] == "config" else key
    return "/".join(part for part in parts if part)


def is_called(name: str, asked: str) -> bool:
    """True for an object's name, as `name_of` writes it, that has the text in it, or whose ``NAME.NAMESPACE`` that is.

    The latter may have the kind before it.
    """
    kind, slash, dotted = asked.rpartition("/")
    own, _, namespace = dotted.rpartition(".")
    return asked in name or (bool(own) and f"/{name}".endswith(f"{kind if slash else ''}/{namespace}/{own}"))


def _wanted(asked: str, is_seen: Callable[[str], bool]) -> Callable[[str], bool] | None:
    return (lambda name: is_called(name, asked) and is_seen(name)) if asked else None


def _connected(path: Path) -> sqlite3.Connection:
    """A connection that cannot write. A file that cannot have others next to it is read as it is."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=5.0)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        if path.with_name(f"{path.name}-wal").exists():
            raise
        connection = sqlite3.connect(f"{uri}&immutable=1", uri=True, isolation_level=None)
    return connection


def _record(row: Sequence[Any]) -> RevisionRecord:
    number, at, causes, objects, proxies, waiting, sent, acked, nacked, over, traffic = row
    named = json.loads(causes)
    more = named.pop() if named and isinstance(named[-1], int) else 0
    return RevisionRecord(
        number,
        _time(at),
        tuple(named),
        more,
        objects,
        proxies,
        waiting,
        sent,
        acked,
        nacked,
        bool(over),
        _traffic(traffic),
    )


def _traffic(text: str | None) -> RevisionTraffic | None:
    """None also for a value that is garbled, or of a version that knows another one."""
    try:
        return msgspec.json.decode(text, type=RevisionTraffic) if text is not None else None
    except (msgspec.MsgspecError, TypeError):
        return None


def _time(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
