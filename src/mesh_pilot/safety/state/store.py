"""The store: pictures of sources, by name and place, in a `Database`.

All calls block: make them in a worker thread, one at a time.

Kept are the items of each source, as they were taken in. Generated resources would be at hand sooner, but a change or a
new proxy needs the World that they were made of; of the merged World one could not tell what lies hidden beneath the
first source that has an object. A picture is used whole or not at all: part of one looks like a source that lost the
rest. Each item has a checksum, each picture the count and sum of its items', and its row one more, since SQLite notices
damage to its pages' structure and none to what stands in them. A place (a folder, an address) belongs to a picture's
name: a source that reads elsewhere now must not begin with what was there. Decision 018 has the alternatives.
"""

from __future__ import annotations

import enum
import sqlite3
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import attrs
import structlog

from mesh_pilot import __version__
from mesh_pilot.base.sealing import SealingError, read_keys, seal, unseal
from mesh_pilot.model.events import Item, Quarantine
from mesh_pilot.safety.state import codec
from mesh_pilot.safety.state.codec import CodecError, Key, has_private_key
from mesh_pilot.safety.state.database import Database, StateError, copied
from mesh_pilot.safety.state.history_tables import RunStart, forget_history, note_places, write_history
from mesh_pilot.safety.state.history_tables import checksum as item_checksum
from mesh_pilot.safety.state.picture_rows import (
    COLUMNS,
    SourceStateRow,
    begin_picture,
    garbled_rows,
    remove_picture,
    save_row,
)
from mesh_pilot.safety.state.revision_log import NO_HISTORY, HistoryBatch
from mesh_pilot.safety.state.settings import StateSettings

FORGOTTEN_SECONDS = 30 * 24 * 3600.0
"""The age at which pictures of places that are not read any more are removed."""

AT_ONCE = 100
"""Items that are encoded and written in one step: other threads wait for Python that long."""

log = structlog.get_logger(scope="state")


@attrs.frozen
class SavedSourceState:
    """The last full picture of a source."""

    source: str
    items: tuple[Item, ...]
    confirmed_at: datetime
    """When the source last stood by it."""


@attrs.frozen
class Batch:
    """The changes since the last write, all of one time."""

    revision: int
    """That of the World then."""
    items: Sequence[tuple[str, Key, Item | None]]
    """Source, key, and the item in force; None: deleted."""
    confirmed: Mapping[str, datetime]
    """The sources whose pictures are full, and when they last stood by them."""
    whole: frozenset[str] = frozenset()
    """The sources of which `items` has all that they have."""
    history: HistoryBatch = NO_HISTORY
    """The revisions since the last write, and what those before came to."""
    sources: Sequence[str] = ()
    """The World's sources in order of precedence, where it is not the order in which the store learned of them."""


class _Sealing(enum.Enum):
    """The encryption of the private keys in a picture."""

    CURRENT = enum.auto()
    """All are encrypted with the first key, or there are none."""
    OUTDATED = enum.auto()
    """A later key decrypts some."""
    UNKNOWN = enum.auto()
    """No key decrypts some."""


class _PictureError(Exception):
    """A picture that cannot be used: the reason."""


class Store:
    """Pictures in a file.

    State: the open file, the last revision in it, and the rows of the pictures in it that are those of the World.
    """

    def __init__(self, settings: StateSettings, places: Mapping[str, str]) -> None:
        """`places`: the sources whose pictures are kept, and where each of them reads."""
        self.settings = settings
        self.places = dict(places)
        self._places_of_run = dict(places)
        """The same, with the sources that are no more."""
        self.revision = 0
        """The last revision of the World that was written; 0: none is known."""
        self.bytes = 0
        """The size of the file after the last write."""
        self._database: Database | None = None
        self._rows: dict[str, SourceStateRow] = {}
        self._keys: tuple[bytes, ...] = ()
        self._restored = frozenset[str]()
        self.undecrypted = frozenset[str]()
        """The sources whose pictures in the file have private keys that could not be decrypted."""
        self._has_begun = False
        """True once it is noted in the file who writes its history."""
        self._has_written = False
        """True after the first write into the file."""

    def __repr__(self) -> str:
        return f"<Store {self.settings.folder} {'open' if self._database else 'closed'}, {len(self._rows)} pictures>"

    @property
    def current(self) -> frozenset[str]:
        """The sources whose pictures in the file go on from here. Those of others are written whole."""
        return frozenset(self._rows)

    def pictures(self) -> list[SavedSourceState]:
        """The full pictures of the sources at their places. One that cannot be used is left out, with a log line.

        Raises StateError.
        """
        try:
            return self._read(self._opened())
        except StateError:
            self._check()
            if self._database is not None:
                raise
        return self._read(self._opened())  # of the file that was begun in place of one that was moved aside

    def pictures_of_copy(self) -> list[SavedSourceState]:
        """The same where the file cannot be opened for a fault of the disk. Raises StateError."""
        with copied(self.settings.folder) as database:
            self._keys = _read_keys(self.settings.key_file)
            found = self._read(database)
        self._rows, self._restored = {}, frozenset()
        return found

    def picture_of(self, source: str, place: str) -> SavedSourceState | None:
        """The full picture of a source that comes later, at its place; None if there is none that can be used.

        Its picture is kept from now on. Raises StateError.
        """
        self.places[source] = self._places_of_run[source] = place
        database = self._opened()
        with database.transaction() as connection:
            try:
                row = self._row(connection, source, place)
                if row is None:
                    return None
                picture, sealing = self._picture(connection, row)
            except _PictureError as error:
                log.error("last picture of a source is not used", source=source, reason=str(error))
                return None
        if sealing is _Sealing.CURRENT:
            self._rows[source] = row
        return picture

    def move(self, source: str, place: str) -> None:
        """A source reads at this place from now on: if that is another one, its picture is written whole."""
        if self.places.get(source) != place:
            self.places[source] = self._places_of_run[source] = place
            self._rows.pop(source, None)

    def forget(self, source: str) -> None:
        """Remove the picture of a source that is no more. Raises StateError."""
        place = self.places.pop(source, None)
        self._rows.pop(source, None)
        if place is not None:
            with self._opened().transaction() as connection:
                remove_picture(connection, source, place)

    def _read(self, database: Database) -> list[SavedSourceState]:
        found = []
        undecrypted, outdated = set[str](), set[str]()
        with database.transaction() as connection:
            for _, garbled, place in garbled_rows(connection):
                text = "the entry of a picture is garbled: it is not used, and removed with the next write"
                log.error(text, source=str(garbled)[:100], place=str(place)[:200], file=str(database.path))
            kept = connection.execute("SELECT value FROM meta WHERE name = 'revision'").fetchone()
            self.revision = kept[0] if kept and isinstance(kept[0], int) else 0
            for source, place in self.places.items():
                try:
                    row = self._row(connection, source, place)
                    if row is not None:
                        picture, sealing = self._picture(connection, row)
                        found.append(picture)
                        if sealing is _Sealing.UNKNOWN:
                            undecrypted.add(source)
                        elif sealing is _Sealing.OUTDATED:
                            outdated.add(source)
                        else:
                            self._rows[source] = row
                except _PictureError as error:
                    file = str(database.path)
                    log.error("last picture of a source is not used", source=source, reason=str(error), file=file)
        self._restored = self.current | outdated
        self.undecrypted = frozenset(undecrypted)
        return found

    def write(self, batch: Batch) -> None:
        """Write a batch whole, or not at all. Raises StateError: the next batch may be written."""
        # The order counts within the transaction: the history copies items as the pictures have them before this batch
        # changes them, and a picture that is written whole begins empty. The rows in memory follow only once all of it
        # is in the file, so that a batch that fails can come again.
        database = self._opened()
        rows = {source: attrs.evolve(row) for source, row in self._rows.items()}
        batch = self._without_removed(batch)
        changes: dict[str, list[tuple[Key, Item | None]]] = {source: [] for source in batch.whole}
        for source, key, item in batch.items:
            changes.setdefault(source, []).append((key, item))
        if unknown := sorted((changes.keys() | batch.confirmed.keys()) - rows.keys() - batch.whole):
            raise StateError(f"{database.path}: it has no picture of {unknown[0]} yet")
        try:
            with database.transaction() as connection:
                if not self._has_written:
                    self._forget(connection)
                    if not self.settings.history.revisions:
                        forget_history(connection)
                self._write_history(connection, batch)
                for source in batch.whole:
                    rows[source] = begin_picture(connection, source, self.places[source])
                for source, found in changes.items():
                    for start in range(0, len(found), AT_ONCE):
                        self._put(connection, rows[source], found[start : start + AT_ONCE])
                for source, at in batch.confirmed.items():
                    rows[source].confirmed_at = at.timestamp()
                for source in changes.keys() | batch.confirmed.keys():
                    save_row(connection, rows[source])
                connection.executemany(
                    "INSERT OR REPLACE INTO meta VALUES (?, ?)",
                    (("revision", batch.revision), ("written by", __version__)),
                )
        except StateError:
            self._check()
            raise
        self._rows = rows
        self._has_written = True
        self._has_begun = self._has_begun or batch.history.begins
        self.revision = batch.revision
        database.tidy()
        self.bytes = database.size

    def _without_removed(self, batch: Batch) -> Batch:
        """A batch without the sources that went after it was made."""
        if not (batch.whole | batch.confirmed.keys()) - self.places.keys():
            return batch
        return attrs.evolve(
            batch,
            items=[item for item in batch.items if item[0] in self.places],
            confirmed={source: at for source, at in batch.confirmed.items() if source in self.places},
            whole=batch.whole & self.places.keys(),
        )

    def _write_history(self, connection: sqlite3.Connection, batch: Batch) -> None:
        if not batch.history:
            return
        start = None
        rank = {source: number for number, source in enumerate(batch.sources)}
        order = sorted(self._places_of_run, key=lambda source: rank.get(source, len(rank)))
        places = {source: self._places_of_run[source] for source in order}
        if batch.history.begins and not self._has_begun:
            start = RunStart(__version__, places, self._restored, self.revision)
        elif self._has_begun:
            note_places(connection, places)
        pictures = {source: row.id for source, row in self._rows.items() if source not in batch.whole}
        write_history(connection, batch.history, pictures, self.settings.history, start)

    def begin_anew(self, source: str) -> None:
        """The picture of a source is to be written whole the next time."""
        self._rows.pop(source, None)

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database, self._rows, self.undecrypted = None, {}, frozenset()

    def _opened(self) -> Database:
        if self._database is None:
            self._rows = {}
            self._keys = _read_keys(self.settings.key_file)
            self._has_begun = self._has_written = False
            self._database = Database(self.settings.folder)
        return self._database

    def _check(self) -> None:
        """Close a file that is gone, so that the next write begins another one."""
        if self._database is not None and not self._database.is_there:
            self.close()

    # -- reading

    def _forget(self, connection: sqlite3.Connection) -> None:
        """Remove garbled entries, and the pictures of places that were not read for long.

        Those of ours stay, however long we were away.
        """
        outdated = connection.execute(
            "SELECT id, source, place FROM pictures WHERE used_at < ?", (time.time() - FORGOTTEN_SECONDS,)
        ).fetchall()
        gone = [picture for picture, source, place in outdated if self.places.get(source) != place]
        for picture in (*gone, *(row[0] for row in garbled_rows(connection))):
            connection.execute("DELETE FROM items WHERE picture = ?", (picture,))
            connection.execute("DELETE FROM pictures WHERE id = ?", (picture,))

    def _row(self, connection: sqlite3.Connection, source: str, place: str) -> SourceStateRow | None:
        found = connection.execute(
            f"SELECT {COLUMNS} FROM pictures NOT INDEXED WHERE source = ? AND place = ?", (source, place)
        ).fetchone()
        if found is None:
            return None
        row = SourceStateRow(*found[1:])
        if row.checksum() != found[0]:
            return None  # it was said when the file was opened
        age = time.time() - row.confirmed_at
        if age > self.settings.max_age_of(source):
            limit = self.settings.max_age_of(source)
            raise _PictureError(f"it is {age:.0f} seconds old, and may be {limit:.0f}")
        return row

    def _picture(self, connection: sqlite3.Connection, row: SourceStateRow) -> tuple[SavedSourceState, _Sealing]:
        """A picture without what no key decrypts, and how its private keys are encrypted. Raises _PictureError."""
        items: list[Item] = []
        count = checksum = closed = 0
        reason = ""
        sealing = _Sealing.CURRENT
        try:
            for key, value, is_sealed, kept in connection.execute(
                "SELECT key, value, sealed, checksum FROM items WHERE picture = ?", (row.id,)
            ):
                if item_checksum(key, value) != kept:
                    raise _PictureError(f"{key} in it is garbled")
                count += 1
                checksum += kept
                try:
                    if is_sealed:
                        value, is_outdated = self._unsealed(value, _sealed_as(row.source, key))
                        sealing = _Sealing.OUTDATED if is_outdated else sealing
                    items.append(codec.decode(value))
                except SealingError as error:
                    closed, reason = closed + 1, str(error)
                except CodecError as error:
                    raise _PictureError(f"{key} in it {error}") from None
        except (TypeError, AttributeError, UnicodeDecodeError):  # values of another type than they were written with
            raise _PictureError("the items are garbled") from None
        if (count, checksum) != (row.items, row.items_checksum):
            raise _PictureError(f"{count} of its {row.items} items are there")
        if closed:
            reason = reason if self._keys else "there is no key"
            log.error("private keys in a last picture are not used", source=row.source, count=closed, reason=reason)
            sealing = _Sealing.UNKNOWN
        return SavedSourceState(row.source, tuple(items), datetime.fromtimestamp(row.confirmed_at, UTC)), sealing

    def _unsealed(self, value: bytes, use: str) -> tuple[bytes, bool]:
        """The data, and True if it is not encrypted with the first key. Raises SealingError."""
        try:
            return unseal(value, self._keys[:1], use), False
        except SealingError:
            return unseal(value, self._keys[1:], use), True

    # -- writing

    def _put(
        self, connection: sqlite3.Connection, row: SourceStateRow, changes: Sequence[tuple[Key, Item | None]]
    ) -> None:
        """Write items of a picture, a slice at a time: SQLite lets other threads run between statements."""
        keys = [codec.encode_key(key) for key, _ in changes]
        which = f"picture = ? AND key IN ({', '.join('?' * len(keys))})"
        count, checksum = connection.execute(
            f"SELECT count(*), coalesce(sum(checksum), 0) FROM items WHERE {which}", (row.id, *keys)
        ).fetchone()
        if count:
            connection.execute(f"DELETE FROM items WHERE {which}", (row.id, *keys))
        values: list[object] = []
        for key, (_, item) in zip(keys, changes, strict=True):
            if item is None or (isinstance(item, Quarantine) and item.is_trial):
                continue
            is_private = has_private_key(item)
            if is_private and not self._keys:
                continue
            value = self._encoded(row.source, item)
            if is_private:
                value = seal(value, self._keys, _sealed_as(row.source, key))
            its_checksum = item_checksum(key, value)
            values += (row.id, key, value, is_private, its_checksum)
            count -= 1
            checksum -= its_checksum
        if values:
            places = ", ".join(["(?, ?, ?, ?, ?)"] * (len(values) // 5))
            connection.execute(f"INSERT INTO items VALUES {places}", values)
        row.items -= count
        row.items_checksum -= checksum

    def _encoded(self, source: str, item: Item) -> bytes:
        try:
            return codec.encode(item)
        except CodecError as error:
            log.error("item cannot be kept, nor the picture with it", source=source, reason=str(error))
            return b""


def _sealed_as(source: str, key: str) -> str:
    """The use that a sealed item is bound to."""
    return f"mesh-pilot-state/{codec.FORMAT} {source} {key}"


def _read_keys(path: Path | None) -> tuple[bytes, ...]:
    """The keys of a file; none, with a log line, if it cannot be read."""
    if path is None:
        return ()
    try:
        return read_keys(path)
    except SealingError as error:
        log.error("private keys are not kept in the state", reason=str(error))
        return ()
