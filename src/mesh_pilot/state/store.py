"""The file of the state: pictures of sources, by name and place.

All calls block: make them in a worker thread, one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import attrs

from mesh_pilot.model.events import Item
from mesh_pilot.state.settings import StateSettings

Key = tuple[str, ...]


class StateError(Exception):
    """State that cannot be used: the file, the reason, what goes on without it, and what to do, in one line."""


@attrs.frozen
class KeptPicture:
    """The last full picture of a source."""

    source: str
    items: tuple[Item, ...]
    confirmed_at: datetime
    """When the source last stood by it."""


@attrs.frozen
class Batch:
    """The changes since the last write, all of one moment."""

    revision: int
    """That of the World then."""
    items: Sequence[tuple[str, Key, Item | None]]
    """Source, key, and the item in force; None: deleted."""
    confirmed: Mapping[str, datetime]
    """The sources whose pictures are full, and when they last stood by them."""


class Store:
    """An open file of state, which no other process has open."""

    @classmethod
    def open(cls, settings: StateSettings, places: Mapping[str, str]) -> Store:
        """Open the file, or make it. `places`: the sources whose pictures are kept, and where each of them reads.

        Raises StateError. A file that cannot be read is moved aside first, with a line in the log.
        """
        raise NotImplementedError

    @property
    def revision(self) -> int:
        """The last revision of the World that was written; 0: none."""
        raise NotImplementedError

    def pictures(self) -> list[KeptPicture]:
        """The full pictures of the sources at their places. One that cannot be read is left out, with a log line."""
        raise NotImplementedError

    def write(self, batch: Batch) -> None:
        """Write a batch whole, or not at all. Raises StateError: the next batch may be written."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
