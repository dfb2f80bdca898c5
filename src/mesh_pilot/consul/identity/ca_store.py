"""The CA's files in one entry of Consul's KV store, shared by replicas.

One entry holds all files, so a change is all or nothing; check-and-set makes one root of two replicas that start at
once. It holds private keys: it is encrypted, and only our ACL token should be able to write it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from mesh_pilot.consul.client.client import ConsulError
from mesh_pilot.consul.client.kv import ConsulKv
from mesh_pilot.consul.client.settings import Agent
from mesh_pilot.identity.authority.encryption import opened, read_keys, sealed
from mesh_pilot.identity.authority.store import StoreConflict, StoredFiles, StoreError

T = TypeVar("T")

REQUEST_SECONDS = 15.0
WAIT_SECONDS = 60.0
"""The time that a blocking query may stay unanswered."""

MAX_BYTES = 512 * 1024
"""The longest value that Consul takes."""


@attrs.frozen(kw_only=True)
class ConsulStoreSettings:
    """The entry, and how it is read and written."""

    key: str
    """The key of the entry, such as ``mesh-pilot/ca``."""
    agent: Agent
    datacenter: str = ""
    """The datacenter whose KV store it is; empty: the agent's own."""
    encryption_file: Path | None = None
    """The file of the encryption keys; see ``encryption``."""
    allow_plaintext: bool = False
    """True to store private keys as they are, without an encryption key."""

    def problem(self) -> str:
        """The reason why these settings cannot work; empty if they can."""
        if not self.key.strip("/"):
            return "the key of the entry is empty"
        if self.encryption_file is None and not self.allow_plaintext:
            return "the CA's private key would be stored in plaintext; give a key to encrypt it with"
        return ""


class ConsulStore:
    """One entry. Mutable state: the version that was read last, and its index."""

    def __init__(self, settings: ConsulStoreSettings) -> None:
        self._settings = settings
        self._key = settings.key.strip("/")
        self._kv = ConsulKv(settings.agent, settings.datacenter, REQUEST_SECONDS)
        self._seen: tuple[str, int] | None = None

    def __repr__(self) -> str:
        return f"<ConsulStore {self.place}>"

    @property
    def place(self) -> str:
        return f"KV entry {self._key} at {self._settings.agent.address}"

    async def read(self) -> StoredFiles:
        """See ``MaterialStore``. Raises StoreError."""
        stored, index = await self._get()
        self._seen = stored.version, index
        return stored

    async def write(self, files: Mapping[str, bytes], expected: str) -> None:
        """See ``MaterialStore``. Raises StoreConflict, StoreError."""
        stored, index = await self._get()
        conflict = StoreConflict(f"{self.place}: another replica has changed it; try again")
        if stored.version != expected:
            raise conflict
        text = sealed(files, self._keys(), self._key)
        if len(text) > MAX_BYTES:
            raise StoreError(
                f"{self.place}: the files have {len(text)} bytes, over the {MAX_BYTES} that fit in an entry"
            )
        # An index of 0 puts the entry only if there is none.
        if not await self._asked(self._kv.put(self._key, text, cas=index if stored.files else 0)):
            raise conflict

    async def changed(self, version: str) -> None:
        """See ``MaterialStore``. Raises StoreError."""
        while self._seen is not None and self._seen[0] == version:
            stored, index = await self._get(self._seen[1])
            self._seen = stored.version, index
            if not index:  # an agent that gives no index does not block either
                await trio.sleep(REQUEST_SECONDS)

    async def _get(self, after: int = 0) -> tuple[StoredFiles, int]:
        """The files and the index of the entry; no files if there is none. Waits for another index than ``after``."""
        entry, index = await self._asked(self._kv.get(self._key, after, WAIT_SECONDS))
        if entry is None:
            return StoredFiles(), index
        return StoredFiles(opened(entry.value, self._keys(), self._key)), entry.modify_index

    def _keys(self) -> tuple[bytes, ...]:
        path = self._settings.encryption_file
        return () if path is None else read_keys(path)

    async def _asked(self, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except ConsulError as error:
            raise StoreError(f"KV entry {self._key} at {error}") from None
