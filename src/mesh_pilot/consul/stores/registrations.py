"""Records of auto-registered workloads in Consul's KV store, where all replicas have them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import structlog
import trio

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.consul.client.client import ConsulError
from mesh_pilot.consul.client.kv import ConsulKv, KvEntry, TransactionRefused
from mesh_pilot.replicas.election.base import LockError
from mesh_pilot.replicas.registration.membership import Change, Kept
from mesh_pilot.replicas.registration.records import decode, encode
from mesh_pilot.replicas.registration.stores import Take

log = structlog.get_logger(scope="registration")

WAIT_SECONDS = 60.0

GATHER_SECONDS = 0.1
"""The interval between two readings of all entries: changes during it are read together."""

ENTRIES_A_TURN = 100
"""Entries that are decoded before other tasks have their turn: some milliseconds."""


class ConsulRecords:
    """Entries below a prefix: ``PREFIX/NAMESPACE/NAME``. State: what was read last, and what was complained about.

    Consul tells all entries at each change, so those that are as before are not decoded again.
    """

    is_shared = True

    def __init__(self, kv: ConsulKv, prefix: str, retry_seconds: float) -> None:
        self.place = f"Consul KV {prefix}"
        self._kv = kv
        self._prefix = f"{prefix}/"
        self._retry_seconds = retry_seconds
        self._known: dict[str, Kept] = {}
        self._bad: dict[str, int] = {}
        """Versions that were complained about, by key."""

    def __repr__(self) -> str:
        return f"<ConsulRecords {self._prefix}>"

    async def follow(self, take: Take) -> None:
        backoff = Backoff(limit_seconds=self._retry_seconds)
        index, is_failing = 0, False
        while True:
            try:
                entries, found = await self._kv.tree(self._prefix, index, WAIT_SECONDS)
            except ConsulError as error:
                if not is_failing:
                    log.warning("auto-registered entries of other replicas cannot be read", reason=str(error))
                is_failing = True
                await trio.sleep(backoff.next_seconds())
                continue
            if is_failing:
                log.info("auto-registered entries of other replicas are read again")
            is_failing = False
            backoff.reset()
            await self._read_all(entries)
            take({kept.record.key: kept for kept in self._known.values()}, found if 0 < index <= found else None)
            await trio.sleep(GATHER_SECONDS)
            if not found:  # an agent that gives no index does not block either
                await trio.sleep(self._retry_seconds)
            index = found if found >= index else 0

    async def write(self, change: Change) -> int | None:
        key = f"{self._prefix}{change.key.namespace}/{change.key.name}"
        verb = "delete-cas" if change.record is None else "cas"
        operation: dict[str, Any] = {"Verb": verb, "Key": key, "Index": change.index}
        if change.record is not None:
            operation["Value"] = base64.b64encode(encode(change.record)).decode("ascii")
        try:
            indexes = await self._kv.transact(operation)
        except TransactionRefused as refused:
            if any("stale" in reason or "index" in reason for reason in refused.reasons.values()):
                return None
            raise LockError(str(refused)) from None
        except ConsulError as error:
            raise LockError(str(error)) from None
        return indexes[0] if indexes else 0

    async def _read_all(self, entries: Sequence[KvEntry]) -> None:
        """Decode what is new, and forget what is not there any more; other tasks have their turns in between."""
        known = {}
        for number, entry in enumerate(entries, 1):
            kept = self._known.get(entry.key)
            if kept is None or kept.index != entry.modify_index:
                kept = self._read(entry)
            if kept is not None:
                known[entry.key] = kept
            if not number % ENTRIES_A_TURN:
                await trio.lowlevel.checkpoint()
        self._known = known
        self._bad = {entry.key: self._bad[entry.key] for entry in entries if entry.key in self._bad}

    def _read(self, entry: KvEntry) -> Kept | None:
        """The record of an entry; None, with a line in the log, for anything else that was written there."""
        try:
            record = decode(entry.value)
            if entry.key != f"{self._prefix}{record.key.namespace}/{record.key.name}":
                raise ValueError(f"it is of {record.key}")
        except ValueError as error:
            if self._bad.get(entry.key) != entry.modify_index:
                log.warning(
                    "an entry is not an auto-registered workload; it is ignored", key=entry.key, reason=str(error)
                )
            self._bad[entry.key] = entry.modify_index
            return None
        return Kept(record, entry.modify_index)
