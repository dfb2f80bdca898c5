"""Consul's KV store as a store: one key an object, ``PREFIX/KIND/NAMESPACE/NAME``, written by check-and-set.

Source of the rules: Consul, "HTTP API": "Transactions".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from mesh_pilot.consul.client.client import ConsulError
from mesh_pilot.consul.client.kv import ConsulKv, KvEntry, TransactionRefused, operation
from mesh_pilot.consul.client.settings import ConsulSettings
from mesh_pilot.consul.source.configs import location_of
from mesh_pilot.istio.reading.yaml import Document
from mesh_pilot.model.config import ConfigKey, Origin
from mesh_pilot.sources.config_store.base import ConfigConflict, ConfigRefusal, ConfigStoreError, Object, Stored
from mesh_pilot.sources.config_store.documents import as_yaml, key_of, objects_in

REQUEST_SECONDS = 15.0

MAX_BYTES = 512 * 1024
"""The longest value that Consul takes."""

_STALE = ("index is stale", "current modify index", "doesn't exist")
"""In Consul's reasons for a check that does not match."""


class KvStore(Protocol):
    """The part of ``ConsulKv`` that is used."""

    async def get(self, key: str) -> tuple[KvEntry | None, int]: ...

    async def transact(self, *operations: Mapping[str, object]) -> list[int]: ...


class ConsulConfigKeys:
    """Implements ``ConfigStore``. It has no state."""

    def __init__(self, settings: ConsulSettings, source: str = "consul", kv: KvStore | None = None) -> None:
        self._prefix = settings.config_prefix.strip("/")
        self._address = settings.agent.address
        self._source = source
        more = {"partition": settings.partition, "ns": settings.consul_namespace}
        self._kv: KvStore = kv or ConsulKv(settings.agent, settings.datacenter, REQUEST_SECONDS, more)

    def __repr__(self) -> str:
        return f"<ConsulConfigKeys {self.place}>"

    @property
    def place(self) -> str:
        return f"KV keys below {self._prefix}/ at {self._address}"

    @property
    def source(self) -> str:
        return self._source

    async def read(self, key: ConfigKey, at: str = "") -> Stored | None:
        """See ``ConfigStore``."""
        told = at.removeprefix(location_of(""))
        own = self._own(key)
        if told != own and told.startswith(f"{self._prefix}/"):
            entry = await self._get(told)
            if entry is not None and (stored := _stored(entry, key)) is not None:
                return stored
        entry = await self._get(own)
        if entry is None:
            return None
        stored = _stored(entry, key)
        if stored is None:
            raise ConfigRefusal(f"the value of {own} is another object than {key}, or several: fix it there")
        return stored

    async def write(
        self, key: ConfigKey, document: Object, instead_of: Stored | None, *, at: str = "", dry_run: bool = False
    ) -> Stored:
        """See ``ConfigStore``."""
        value = as_yaml(document)
        if len(value) > MAX_BYTES:
            raise ConfigRefusal(f"{key} has {len(value)} bytes, over the {MAX_BYTES} that fit in a key of Consul")
        location = instead_of.location if instead_of is not None else self._own(key)
        if dry_run:
            await self._check(key, instead_of, at)
            return Stored(document, instead_of.version if instead_of is not None else "", location)
        index = int(instead_of.version) if instead_of is not None else 0
        (modified,) = await self._transact(key, {**operation("cas", location, value), "Index": index})
        return Stored(document, str(modified), location)

    async def delete(self, key: ConfigKey, instead_of: Stored, *, at: str = "", dry_run: bool = False) -> None:
        """See ``ConfigStore``."""
        if dry_run:
            await self._check(key, instead_of, at)
            return
        index = {"Index": int(instead_of.version)}
        # Consul takes a delete-cas of a key that is gone for done.
        check = {**operation("check-index", instead_of.location), **index}
        await self._transact(key, check, {**operation("delete-cas", instead_of.location), **index})

    def _own(self, key: ConfigKey) -> str:
        return "/".join(filter(None, (self._prefix, key.kind, key.namespace, key.name)))

    async def _check(self, key: ConfigKey, expected: Stored | None, at: str) -> None:
        now = await self.read(key, expected.location if expected is not None else at)
        if (now.version if now is not None else "") != (expected.version if expected is not None else ""):
            raise _conflict(key)

    async def _get(self, key: str) -> KvEntry | None:
        try:
            entry, _ = await self._kv.get(key)
        except ConsulError as error:
            raise ConfigStoreError(str(error)) from None
        return entry

    async def _transact(self, key: ConfigKey, *changes: dict[str, object]) -> list[int]:
        try:
            return await self._kv.transact(*changes)
        except TransactionRefused as error:
            if any(stale in str(error) for stale in _STALE):
                raise _conflict(key) from None
            raise ConfigStoreError(
                f"{self._address}: {error}; the token needs key_prefix {self._prefix!r} write"
            ) from None
        except ConsulError as error:
            raise ConfigStoreError(f"{error}; whether it was written is not known: read it again") from None


def _conflict(key: ConfigKey) -> ConfigConflict:
    return ConfigConflict(f"{key} has changed in Consul since it was read")


def _stored(entry: KvEntry, key: ConfigKey) -> Stored | None:
    """The object of an entry; None if that is another one."""
    found = objects_in(entry.value, Origin("consul", location_of(entry.key)))
    unread = Stored(None, str(entry.modify_index), entry.key)
    if not found or (len(found) == 1 and not isinstance(found[0], Document)):
        return unread
    if len(found) > 1:
        return None
    (document,) = found
    assert isinstance(document, Document)
    data = document.data
    metadata = data.get("metadata") or {}
    if not isinstance(metadata, dict):
        return unread
    # The key of an entry says what its object leaves out.
    placed = {**data, "metadata": {"namespace": key.namespace, "name": key.name, **metadata}}
    if key_of(placed) != key:
        return None
    return attrs.evolve(unread, document=placed)
