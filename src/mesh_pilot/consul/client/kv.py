"""Entries, sessions and transactions of Consul's KV store, for locks, records and stores.

Sessions and transactions are partly ours. python-consul2 creates no session without the check of its node, which would
end it too early (``NodeChecks``), and gives the errors of a transaction as one text.

Source of the rules: Consul, "HTTP API": "Session", "KV Store", "Transactions".
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar

import attrs
import trio
from consul import base

from mesh_pilot.consul.client.api import transaction
from mesh_pilot.consul.client.client import (
    ConsulClient,
    ConsulError,
    HttpTransport,
    index_of,
    longest_wait,
    open_http,
    wait_text,
)
from mesh_pilot.consul.client.settings import Agent

T = TypeVar("T")


@attrs.frozen
class KvEntry:
    """An entry of the KV store."""

    key: str
    value: bytes
    modify_index: int
    session: str
    """The session that holds it; empty if none does."""


class TransactionRefused(Exception):
    """A transaction that Consul did not carry out: by number of the operation, the reason."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__("; ".join(reasons.values()))
        self.reasons = reasons


class ConsulKv:
    """The KV store of an agent. Raises ConsulError for any answer that is not expected.

    Each request opens a connection: the one of a lock must not wait for an answer on a connection that died
    while it was idle.
    """

    def __init__(self, agent: Agent, datacenter: str, seconds: float, always: Mapping[str, str] | None = None) -> None:
        """`seconds`: the time that a request may take. `always`: parameters of every request, left out if empty."""
        self._agent = agent
        self._seconds = seconds
        self._client = ConsulClient(HttpTransport(lambda: open_http(agent), agent, always or {}), datacenter)

    def __repr__(self) -> str:
        return f"<ConsulKv {self._agent.address}>"

    async def create_session(self, name: str, *, ttl_seconds: float, behavior: str, lock_delay_seconds: float) -> str:
        """A session that only its TTL ends: no check of the node does."""
        body = {
            "Name": name,
            "TTL": f"{ttl_seconds:g}s",
            "Behavior": behavior,
            "LockDelay": f"{lock_delay_seconds:g}s",
            "Checks": [],
            "NodeChecks": [],
        }
        callback, path = base.CB.json(is_id=True), "/v1/session/create"
        return str(await self._timed(self._client.http.put(callback, path, self._datacenter, json.dumps(body))))

    async def renew_session(self, session: str) -> bool:
        """False if there is no such session any more."""
        try:
            await self._timed(self._client.session.renew(session))
        except ConsulError as error:
            if isinstance(error.__cause__, base.NotFound):
                return False
            raise
        return True

    async def destroy_session(self, session: str) -> None:
        await self._timed(self._client.session.destroy(session))

    async def get(self, key: str, after: int = 0, wait_seconds: float = 0.0) -> tuple[KvEntry | None, int]:
        """The entry and the index; with ``after``, once the index is another one or the wait is over."""
        found, index = await self._read(key, after, wait_seconds, recurse=False)
        return (found[0] if found else None), index

    async def tree(self, prefix: str, after: int = 0, wait_seconds: float = 0.0) -> tuple[list[KvEntry], int]:
        """The entries below a prefix, and the index, as ``get`` has them."""
        return await self._read(prefix, after, wait_seconds, recurse=True)

    async def put(self, key: str, value: bytes, **how: Any) -> bool:
        """Put an entry, as python-consul2's ``kv.put`` has it: ``cas=7``, ``acquire=session``. False: it was not."""
        return await self._timed(self._client.kv.put(key, value, **how)) is True

    async def let_go(self, key: str, session: str) -> None:
        """Release an entry, if the session holds it."""
        await self.put(key, b"", release=session)

    async def transact(self, *operations: Mapping[str, object]) -> list[int]:
        """Carry out operations on entries, all or none; their modify indexes. Raises TransactionRefused, too."""
        body = json.dumps([{"KV": operation} for operation in operations])
        is_done, said = await self._timed(self._client.http.put(transaction, "/v1/txn", self._datacenter, body))
        try:
            if is_done:
                return [int(result["KV"]["ModifyIndex"]) for result in said]
            reasons = {int(each["OpIndex"]): str(each["What"]) for each in said}
        except (ValueError, TypeError, LookupError):
            raise self._unexpected("/v1/txn") from None
        raise TransactionRefused(reasons)

    @property
    def _datacenter(self) -> list[tuple[str, object]]:
        return [("dc", self._client.dc)] if self._client.dc else []

    async def _read(self, key: str, after: int, wait_seconds: float, *, recurse: bool) -> tuple[list[KvEntry], int]:
        blocking = {"index": after, "wait": wait_text(wait_seconds)} if after else {"consistency": "consistent"}
        ask = self._client.kv.get(key, recurse=recurse, **blocking)
        index, found = await self._timed(ask, longest_wait(wait_seconds) if after else 0.0)
        entries: Sequence[Any] = found if recurse and found else [found] if found else []
        try:
            return [
                KvEntry(str(e["Key"]), e["Value"] or b"", int(e["ModifyIndex"]), str(e.get("Session") or ""))
                for e in entries
            ], index_of(index)
        except (ValueError, TypeError, LookupError, AttributeError):
            raise self._unexpected(f"/v1/kv/{key}") from None

    async def _timed(self, answer: Awaitable[T], more_seconds: float = 0.0) -> T:
        seconds = self._seconds + more_seconds
        try:
            with trio.fail_after(seconds):
                return await answer
        except trio.TooSlowError:
            raise ConsulError(f"{self._agent.address}: no answer within {seconds:g} s") from None
        except ConsulError as error:
            error.args = (f"{self._agent.address}: {error}",)
            raise

    def _unexpected(self, path: str) -> ConsulError:
        return ConsulError(f"{self._agent.address}: what answers {path} is not Consul")


def operation(verb: str, key: str, value: bytes | None = None, session: str = "") -> dict[str, object]:
    """An operation of a transaction."""
    found: dict[str, object] = {"Verb": verb, "Key": key}
    if value is not None:
        found["Value"] = base64.b64encode(value).decode("ascii")
    if session:
        found["Session"] = session
    return found
