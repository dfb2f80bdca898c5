"""Stores of the CA's files: one set of small named files that is read and replaced as a whole.

A store knows nothing of certificates. ``FolderStore`` (``identity.authority.folder``) keeps them in a folder;
other stores share them between replicas that have no folder in common.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Protocol

import attrs


class StoreError(Exception):
    """A store that cannot be read or written, in one line: where, why, and what to do."""


class StoreConflict(StoreError):
    """The files have changed since they were read: read them again and decide again."""


@attrs.frozen
class StoredFiles:
    """The files of a store as they were at one time."""

    files: Mapping[str, bytes] = attrs.field(factory=dict, repr=lambda files: f"<{', '.join(sorted(files))}>")
    """Contents by name; empty where nothing has been written yet. They include private keys."""

    @property
    def version(self) -> str:
        """A digest of names and contents."""
        digest = hashlib.sha256()
        for name, content in sorted(self.files.items()):
            digest.update(f"{name} {len(content)}\n".encode() + content)
        return digest.hexdigest()


class MaterialStore(Protocol):
    """Keeps the files of ``identity.authority.material.FILES``; names that are not there are none of its business."""

    @property
    def place(self) -> str:
        """Where it is, for messages: a path, a URL with a key."""
        ...

    async def read(self) -> StoredFiles:
        """The files as they are now, all of one time. Raises StoreError."""
        ...

    async def write(self, files: Mapping[str, bytes], expected: str) -> None:
        """Replace all files by these at once, also if this process ends halfway; a name that is absent is removed.

        ``expected`` is the version that was read. Raises StoreConflict if that is not what is there now, StoreError.
        """
        ...

    async def changed(self, version: str) -> None:
        """Wait until the files may differ from that version, some seconds late at most. It may return too often.

        Raises StoreError; nothing is left behind if cancelled.
        """
        ...
