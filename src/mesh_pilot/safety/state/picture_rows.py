"""The rows of pictures in the file: one for each source and place, each with its checksum."""

from __future__ import annotations

import sqlite3
import time
import zlib

import attrs


@attrs.define
class SourceStateRow:
    """The row of a picture."""

    id: int
    source: str
    place: str
    confirmed_at: float = 0.0
    items: int = 0
    items_checksum: int = 0
    """The sum of the checksums of its items."""

    def checksum(self) -> int:
        values = (self.source, self.place, self.confirmed_at, self.items, self.items_checksum)
        return zlib.crc32(repr(values).encode())


COLUMNS = "checksum, id, source, place, confirmed_at, items, items_checksum"


def garbled_rows(connection: sqlite3.Connection) -> list[tuple[int, object, object]]:
    """Id, source and place of entries that are not as they were written; no index has a say."""
    rows = connection.execute(f"SELECT {COLUMNS} FROM pictures NOT INDEXED").fetchall()
    return [(row[1], row[2], row[3]) for row in rows if SourceStateRow(*row[1:]).checksum() != row[0]]


def remove_picture(connection: sqlite3.Connection, source: str, place: str) -> None:
    """Remove a picture, if it is there."""
    for (old,) in connection.execute(
        "SELECT id FROM pictures WHERE source = ? AND place = ?", (source, place)
    ).fetchall():
        connection.execute("DELETE FROM items WHERE picture = ?", (old,))
        connection.execute("DELETE FROM pictures WHERE id = ?", (old,))


def begin_picture(connection: sqlite3.Connection, source: str, place: str) -> SourceStateRow:
    """Begin a picture again."""
    remove_picture(connection, source, place)
    made = connection.execute("INSERT INTO pictures VALUES (NULL, ?, ?, 0, 0, 0, 0, 0)", (source, place))
    assert made.lastrowid is not None
    return SourceStateRow(made.lastrowid, source, place)


def save_row(connection: sqlite3.Connection, row: SourceStateRow) -> None:
    connection.execute(
        "UPDATE pictures SET confirmed_at = ?, items = ?, items_checksum = ?, checksum = ?, used_at = ? WHERE id = ?",
        (row.confirmed_at, row.items, row.items_checksum, row.checksum(), time.time(), row.id),
    )
