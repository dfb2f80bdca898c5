"""A store of configuration as its users see it: read, write and delete one object, with the version that is meant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import attrs

from mesh_pilot.model.config import ConfigKey

Object = Mapping[str, Any]
"""An object as plain data: ``apiVersion``, ``kind``, ``metadata``, ``spec``."""


class ConfigStoreError(Exception):
    """The store cannot be read or written now: where, why, what to do, in one line. Nothing has changed."""


class ConfigConflict(ConfigStoreError):
    """The object is not what the writer took it for: read it again and decide again."""


class ConfigRefusal(ConfigStoreError):
    """The store will not take this change, whenever it is tried: why, and what to do."""


@attrs.frozen
class Stored:
    """An object as it is in the store."""

    document: Object | None = attrs.field(repr=False)
    """None if what is there cannot be read; it can be replaced and deleted all the same."""
    version: str
    """Another one after each change. Only compared, and only with those of the same object."""
    location: str
    """Where it is: a path, a key, a URL's path."""


class ConfigStore(Protocol):
    """Keeps objects. Every method raises ConfigStoreError.

    ``at`` is the location that the store's source has told of the object; empty: it has told none. Cancelled, a write
    has happened whole or not at all.
    """

    @property
    def place(self) -> str:
        """Where it is, for people: ``folder /etc/mesh/config``."""
        ...

    @property
    def source(self) -> str:
        """The name of the source that reads it."""
        ...

    async def read(self, key: ConfigKey, at: str = "") -> Stored | None:
        """The object as it is now; None if there is none."""
        ...

    async def write(
        self, key: ConfigKey, document: Object, instead_of: Stored | None, *, at: str = "", dry_run: bool = False
    ) -> Stored:
        """Put an object in the place of the one that was read; None: where there was none. Returns it as it is then.

        Raises ConfigConflict if something else is there by now. With ``dry_run`` all is checked and nothing written.
        """
        ...

    async def delete(self, key: ConfigKey, instead_of: Stored, *, at: str = "", dry_run: bool = False) -> None:
        """Remove the object that was read. Raises ConfigConflict if something else is there by now, or nothing."""
        ...
