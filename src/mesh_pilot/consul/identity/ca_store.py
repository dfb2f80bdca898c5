"""The CA's files in one entry of Consul's KV store, shared by replicas.

One entry holds all files, so a change is all or nothing; check-and-set makes one root of two replicas that start at
once. It holds private keys: it is encrypted, and only our ACL token should be able to write it.
"""

from __future__ import annotations

import base64
from binascii import Error
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import attrs
import httpx
import trio

from mesh_pilot.consul.client.api import ConsulError, TokenFile, open_client
from mesh_pilot.consul.client.settings import Agent
from mesh_pilot.identity.authority.encryption import opened, read_keys, sealed
from mesh_pilot.identity.authority.store import StoreConflict, StoredFiles, StoreError

REQUEST_SECONDS = 15.0
WAIT_SECONDS = 60
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
        self._tokens = TokenFile(settings.agent)
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
        conflict = StoreConflict(f"{self.place}: another replica has changed it meanwhile; try again")
        if stored.version != expected:
            raise conflict
        text = sealed(files, self._keys(), self._key)
        if len(text) > MAX_BYTES:
            raise StoreError(
                f"{self.place}: the files have {len(text)} bytes, over the {MAX_BYTES} that fit in an entry"
            )
        # An index of 0 puts the entry only if there is none.
        reply = await self._ask("PUT", {"cas": str(index if stored.files else 0)}, text)
        if reply.text.strip() != "true":
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
        blocking = {"index": str(after), "wait": f"{WAIT_SECONDS}s"} if after else {"consistent": ""}
        reply = await self._ask("GET", blocking)
        index = reply.headers.get("x-consul-index", "")
        at = int(index) if index.isdecimal() and len(index) < 20 else 0
        if reply.status_code == httpx.codes.NOT_FOUND:
            return StoredFiles(), at
        try:
            (entry,) = reply.json()
            modified, value = int(entry["ModifyIndex"]), entry["Value"]
        except (ValueError, TypeError, KeyError):
            raise StoreError(f"{self.place}: the answer is not one of Consul's") from None
        return StoredFiles(opened(_decoded(value), self._keys(), self._key)), modified

    def _keys(self) -> tuple[bytes, ...]:
        path = self._settings.encryption_file
        return () if path is None else read_keys(path)

    async def _ask(self, method: str, params: Mapping[str, str], content: bytes = b"") -> httpx.Response:
        try:
            token = self._tokens.token()
            async with open_client(self._settings.agent) as client:
                reply = await client.request(
                    method,
                    f"/v1/kv/{quote(self._key)}",
                    params={**params, **({"dc": self._settings.datacenter} if self._settings.datacenter else {})},
                    content=content,
                    headers={"x-consul-token": token} if token else {},
                    timeout=REQUEST_SECONDS + (WAIT_SECONDS * 17 / 16 if "index" in params else 0),
                )
        except (httpx.HTTPError, ConsulError) as error:
            raise StoreError(f"{self.place}: {str(error) or type(error).__name__}") from None
        is_absent = method == "GET" and reply.status_code == httpx.codes.NOT_FOUND
        if reply.status_code != httpx.codes.OK and not is_absent:
            said = "".join(c if c.isprintable() else " " for c in reply.text)[:300].strip()
            raise StoreError(f"{self.place}: {method} is refused: {reply.status_code} {said}")
        return reply


def _decoded(value: object) -> bytes:
    try:
        return base64.b64decode(str(value or ""), validate=True)
    except Error:
        return b""
