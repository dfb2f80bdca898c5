"""The tables of the history in the file of the state, and how they are written.

A change keeps the item as it was before, so that walking back from the pictures gives them as they were at any revision
that is kept. All calls block, and belong into the transaction that writes the pictures, before they are written.
"""

from __future__ import annotations

import json
import sqlite3
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence

import attrs
import msgspec
import structlog

from mesh_pilot.model.config import Config, Origin
from mesh_pilot.model.events import Item, MeshConfigValue, MeshNetworksValue
from mesh_pilot.model.history import RevisionOutcome
from mesh_pilot.safety.state.codec import CodecError, encode, encode_key, has_private_key
from mesh_pilot.safety.state.proxy_rows import proxy_row
from mesh_pilot.safety.state.revision_log import HistoryBatch, Key, ProxyEntry, RevisionEntry
from mesh_pilot.safety.state.settings import HistoryBounds
from mesh_pilot.world.intake import ItemChange

log = structlog.get_logger(scope="state")

SCHEMA = (
    "CREATE TABLE runs (id INTEGER PRIMARY KEY, began REAL NOT NULL, version TEXT NOT NULL, settings TEXT NOT NULL,"
    " places TEXT NOT NULL)",
    "CREATE TABLE revisions (number INTEGER PRIMARY KEY, run INTEGER NOT NULL, at REAL NOT NULL, causes TEXT NOT NULL,"
    " objects INTEGER NOT NULL, complete INTEGER NOT NULL, proxies INTEGER NOT NULL DEFAULT 0,"
    " waiting INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0, acked REAL, nacked INTEGER NOT NULL DEFAULT"
    " 0, over INTEGER NOT NULL DEFAULT 0)",
    "CREATE TABLE changes (revision INTEGER NOT NULL, source TEXT NOT NULL, key TEXT NOT NULL, action TEXT NOT NULL,"
    " cause TEXT NOT NULL, before BLOB, checksum INTEGER NOT NULL, PRIMARY KEY (revision, source, key))",
    "CREATE TABLE nacks (revision INTEGER NOT NULL, number INTEGER NOT NULL, at REAL NOT NULL, proxy TEXT NOT NULL,"
    " type TEXT NOT NULL, names TEXT NOT NULL, configs TEXT NOT NULL, reason TEXT NOT NULL,"
    " PRIMARY KEY (revision, number)) WITHOUT ROWID",
    "CREATE TABLE proxies (id TEXT PRIMARY KEY, name TEXT NOT NULL, node TEXT NOT NULL, seen REAL NOT NULL,"
    " connected INTEGER NOT NULL, revision INTEGER, refusing INTEGER NOT NULL) WITHOUT ROWID",
)
"""``revision`` of a proxy is NULL for the latest. ``before`` of a change is NULL for an item that was not there, or is
not kept (``checksum`` is -1 then)."""

ADDED = ("CREATE TABLE IF NOT EXISTS outcomes (revision INTEGER PRIMARY KEY, traffic TEXT NOT NULL)",)
"""Tables that files of earlier versions lack: they are added when such a file is opened, and versions that do not know
them leave them alone. ``traffic``: a ``RevisionTraffic``, as JSON."""

NOT_KEPT = -1
"""The checksum of an item that there was but that is not kept, such as a private key."""

CAUSES = 5
"""Causes of a revision that are named; the others are counted."""


@attrs.frozen
class RunStart:
    """The beginning of a plane's writing."""

    version: str
    """The version of mesh-pilot."""
    places: Mapping[str, str]
    """The places of the sources that are kept, in order of precedence."""
    restored: frozenset[str]
    """The sources whose last pictures are in force again."""
    revision: int
    """The revision that it continues from."""


def begin_run(connection: sqlite3.Connection, start: RunStart, settings: Mapping[str, str], at: float) -> bool:
    """Note that a plane has begun to write. Returns True if it continues from all that was in force before.

    A plane that did not know where the last one ended has its own numbers: the history begins again.
    """
    (latest,) = connection.execute("SELECT coalesce(max(number), 0) FROM revisions").fetchone()
    if latest > start.revision:
        log.warning("history begins again", reason="this run began without the state of the last one", dropped=latest)
        for table in ("revisions", "changes", "nacks", "runs", "outcomes"):
            connection.execute(f"DELETE FROM {table}")
    texts = (json.dumps(settings), json.dumps(start.places))
    last = connection.execute("SELECT settings, places FROM runs ORDER BY id DESC LIMIT 1").fetchone()
    kept = {source for (source,) in connection.execute("SELECT source FROM pictures WHERE items > 0")}
    connection.execute("DELETE FROM runs WHERE id NOT IN (SELECT run FROM revisions)")
    connection.execute("INSERT INTO runs VALUES (NULL, ?, ?, ?, ?)", (at, start.version, *texts))
    connection.execute("UPDATE proxies SET connected = 0 WHERE connected")
    return last is None or (last == texts and kept <= start.restored)


def note_places(connection: sqlite3.Connection, places: Mapping[str, str]) -> None:
    """Note the places of the sources of the run that writes, some of which have come since it began."""
    connection.execute(
        "UPDATE runs SET places = ?1 WHERE id = (SELECT max(id) FROM runs) AND places != ?1", (json.dumps(places),)
    )


def forget_history(connection: sqlite3.Connection) -> None:
    """Drop all of it."""
    for table in ("revisions", "changes", "nacks", "runs", "proxies", "outcomes"):
        connection.execute(f"DELETE FROM {table}")


def write_history(
    connection: sqlite3.Connection,
    batch: HistoryBatch,
    pictures: Mapping[str, int],
    bounds: HistoryBounds,
    start: RunStart | None = None,
) -> None:
    """Write what there is new.

    `pictures`: the ids of those in the file that the changes are of; `start`: given with the first batch of a plane.
    """
    goes_on = start is None or begin_run(connection, start, batch.settings, time.time())
    (run,) = connection.execute("SELECT max(id) FROM runs").fetchone()
    seen: set[tuple[str, Key]] = set()
    for entry in batch.revisions:
        if not entry.is_complete:  # the file has what was before this, not what later changes found
            pictures = {}
        causes = [*map(cause_of, entry.changes)]
        _write_changes(connection, entry, causes, pictures, seen)
        if entry.is_published:
            named, objects = json.dumps(_first(causes or [entry.cause])), len(objects_of(entry.changed))
            connection.execute(
                "INSERT OR IGNORE INTO revisions (number, run, at, causes, objects, complete)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (entry.number, run, entry.at.timestamp(), named, objects, entry.is_complete and goes_on),
            )
            goes_on = True
    for outcome in batch.outcomes:
        _write_outcome(connection, outcome)
    connection.executemany(
        "INSERT OR REPLACE INTO outcomes SELECT number, ? FROM revisions WHERE number = ?",
        ((msgspec.json.encode(each).decode(), each.revision) for each in batch.traffic),
    )
    connection.executemany(
        "INSERT OR REPLACE INTO proxies VALUES (?, ?, ?, ?, ?, ?, ?)", map(_proxy_row, batch.proxies)
    )
    if batch.revisions or batch.proxies:
        _prune(connection, bounds)


def objects_of(keys: Iterable[Key]) -> set[Key]:
    """The objects that item keys are of: a service and its endpoints are one."""
    return {("service", *key[1:]) if key[0] == "endpoints" else key for key in keys}


def _write_changes(
    connection: sqlite3.Connection,
    entry: RevisionEntry,
    causes: Sequence[str],
    pictures: Mapping[str, int],
    seen: set[tuple[str, Key]],
) -> None:
    """The changes of a revision. The item before is copied in the file, where it still is."""
    copied: list[tuple[object, ...]] = []
    others: list[tuple[object, ...]] = []
    for change, cause in zip(entry.changes, causes, strict=True):
        name = (change.source, change.key)
        head = (entry.number, change.source, encode_key(change.key), _action(change), cause)
        if change.before is None:
            others.append((*head, None, 0))
        elif name in seen or change.source not in pictures:
            others.append((*head, *_kept(change.before, head[2])))
        else:
            copied.append((*head, pictures[change.source], head[2]))
        seen.add(name)
    connection.executemany("INSERT OR IGNORE INTO changes VALUES (?, ?, ?, ?, ?, ?, ?)", others)
    if not copied:
        return
    done = connection.executemany(
        "INSERT OR IGNORE INTO changes SELECT ?, ?, ?, ?, ?, value, checksum FROM items"
        " WHERE picture = ? AND key = ? AND NOT sealed",
        copied,
    ).rowcount
    if done < len(copied):
        # What the file does not have: private keys, and what changed already since this revision, which stays.
        missing = [(*row[:5], None, NOT_KEPT) for row in copied]
        connection.executemany("INSERT OR IGNORE INTO changes VALUES (?, ?, ?, ?, ?, ?, ?)", missing)


def _kept(item: Item, key: str) -> tuple[bytes | None, int]:
    """An item as a row of its picture would have it, with the checksum."""
    if has_private_key(item):
        return None, NOT_KEPT
    try:
        value = encode(item)
    except CodecError:
        return None, NOT_KEPT
    return value, checksum(key, value)


def checksum(key: str, value: bytes) -> int:
    """The checksum of an item's row."""
    return zlib.crc32(value, zlib.crc32(key.encode()))


def _action(change: ItemChange) -> str:
    return "add" if change.before is None else "delete" if change.after is None else "update"


def _first(causes: Sequence[str]) -> list[str | int]:
    """The first causes, and the number of the others."""
    found = list(dict.fromkeys(filter(None, causes)))
    return [*found[:CAUSES], *([len(found) - CAUSES] if len(found) > CAUSES else [])]


def cause_of(change: ItemChange) -> str:
    """The cause of a change, for people: file and line, Consul index, operator."""
    item = change.after or change.before
    origin = _origin(item) if item is not None else None
    where = str(origin) if origin is not None and origin.location else ""
    if where and change.after is None:
        where += " (gone)"
    return ", ".join(filter(None, (where or change.source, change.cause)))


def _origin(item: Item) -> Origin | None:
    return item.origin if isinstance(item, Config | MeshConfigValue | MeshNetworksValue) else None


def _write_outcome(connection: sqlite3.Connection, outcome: RevisionOutcome) -> None:
    connection.execute(
        "UPDATE revisions SET proxies = :proxies, waiting = :waiting, bytes = :bytes, acked = :acked_seconds,"
        " nacked = :nacked, over = :is_over WHERE number = :revision",
        attrs.asdict(outcome, recurse=False),
    )
    connection.executemany(
        "INSERT OR REPLACE INTO nacks SELECT number, :number, :at, :proxy, :type, :names, :configs, :reason"
        " FROM revisions WHERE number = :revision",
        (
            {
                **attrs.asdict(nack, recurse=False),
                "revision": outcome.revision,
                "number": number,
                "at": nack.at.timestamp(),
                "names": json.dumps(nack.names),
                "configs": json.dumps(nack.configs),
            }
            for number, nack in enumerate(outcome.nacks)
        ),
    )


def _proxy_row(entry: ProxyEntry) -> tuple[object, ...]:
    position = entry.position
    return (
        entry.proxy.id,
        entry.proxy.name,
        json.dumps(proxy_row(entry.proxy)),
        entry.at.timestamp(),
        entry.is_connected,
        position.revision,
        position.is_refusing,
    )


def _prune(connection: sqlite3.Connection, bounds: HistoryBounds) -> None:
    """Drop the oldest revisions beyond the bounds, but not the latest."""
    last = connection.execute("SELECT number, at FROM revisions ORDER BY number DESC LIMIT 1").fetchone()
    if last is None:
        return
    number, now = last
    floor = connection.execute(
        "SELECT number FROM revisions ORDER BY number DESC LIMIT 1 OFFSET ?", (max(1, bounds.revisions),)
    ).fetchone()
    old = connection.execute(
        "SELECT max(number) FROM revisions WHERE at < ? AND number < ?", (now - bounds.seconds, number)
    ).fetchone()
    dropped = max(floor[0] if floor else -1, old[0] if old[0] is not None else -1)
    if dropped >= 0:
        connection.execute("DELETE FROM revisions WHERE number <= ?", (dropped,))
        for table in ("changes", "nacks", "outcomes"):
            connection.execute(f"DELETE FROM {table} WHERE revision <= ?", (dropped,))
    connection.execute("DELETE FROM proxies WHERE NOT connected AND seen < ?", (now - bounds.seconds,))
