"""Sessions, entries and transactions of Consul, as a lock needs them.

Source of the rules: Consul, "HTTP API": "Session", "KV Store", "Transactions".
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import attrs
import httpx
import trio

from mesh_pilot.consul.client.api import ConsulError, TokenFile, open_client
from mesh_pilot.consul.client.settings import Agent
from mesh_pilot.replicas.election.base import LockError

_NOT_FOUND, _CONFLICT = 404, 409


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
    """Requests to one agent, each on a connection of its own. Raises LockError for any answer that is not expected."""

    def __init__(self, agent: Agent, datacenter: str, seconds: float, more: Mapping[str, str] | None = None) -> None:
        """``seconds``: the time that a request may take. ``more``: parameters of every request; empty ones are none."""
        self._agent = agent
        self._tokens = TokenFile(agent)
        always = {"dc": datacenter, **(more or {})}
        self._always = {name: value for name, value in always.items() if value}
        self._seconds = seconds
        server_name = agent.tls.server_name
        self._extensions = {"sni_hostname": server_name} if server_name else {}

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
        reply = await self._ask("PUT", "/v1/session/create", content=json.dumps(body).encode())
        return str(_read(reply, lambda data: data["ID"]))

    async def renew_session(self, session: str) -> bool:
        """False if there is no such session any more."""
        return (await self._ask("PUT", f"/v1/session/renew/{session}")).status_code != _NOT_FOUND

    async def destroy_session(self, session: str) -> None:
        await self._ask("PUT", f"/v1/session/destroy/{session}")

    async def get(self, key: str, after: int = 0, wait_seconds: float = 0.0) -> tuple[KvEntry | None, int]:
        """The entry and the index; with ``after``, once the index is another one or the wait is over."""
        reply = await self._read(key, {}, after, wait_seconds)
        entries = _entries(reply)
        return (entries[0] if entries else None), _index(reply)

    async def tree(self, prefix: str, after: int = 0, wait_seconds: float = 0.0) -> tuple[list[KvEntry], int]:
        """The entries below a prefix, and the index, as ``get`` has them."""
        reply = await self._read(prefix, {"recurse": ""}, after, wait_seconds)
        return _entries(reply), _index(reply)

    async def hold(self, key: str, value: bytes, session: str) -> bool:
        """Put an entry that a session holds; False if another one does."""
        reply = await self._ask("PUT", f"/v1/kv/{quote(key)}", {"acquire": session}, value)
        return reply.text.strip() == "true"

    async def let_go(self, key: str, session: str) -> None:
        """Release an entry, if the session holds it."""
        await self._ask("PUT", f"/v1/kv/{quote(key)}", {"release": session})

    async def transact(self, *operations: Mapping[str, object]) -> list[int]:
        """Carry out operations on entries, all or none; their modify indexes. Raises TransactionRefused, too."""
        body = json.dumps([{"KV": operation} for operation in operations]).encode()
        reply = await self._ask("PUT", "/v1/txn", content=body)
        if reply.status_code == _CONFLICT:
            errors = _read(reply, lambda data: {int(e["OpIndex"]): str(e["What"]) for e in data["Errors"]})
            raise TransactionRefused(errors)
        results = _read(reply, lambda data: [int(result["KV"]["ModifyIndex"]) for result in data["Results"] or ()])
        assert isinstance(results, list)
        return results

    async def _read(self, key: str, params: Mapping[str, str], after: int, wait_seconds: float) -> httpx.Response:
        blocking = {"index": str(after), "wait": f"{round(wait_seconds * 1000)}ms"} if after else {"consistent": ""}
        seconds = self._seconds + (wait_seconds * 17 / 16 if after else 0.0)
        return await self._ask("GET", f"/v1/kv/{quote(key)}", {**params, **blocking}, seconds=seconds)

    async def _ask(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None = None,
        content: bytes = b"",
        seconds: float = 0.0,
    ) -> httpx.Response:
        try:
            token = self._tokens.token()
            with trio.fail_after(seconds or self._seconds):
                async with open_client(self._agent) as client:
                    reply = await client.request(
                        method,
                        path,
                        params={**(params or {}), **self._always},
                        content=content,
                        headers={"x-consul-token": token} if token else {},
                        timeout=None,
                        extensions=self._extensions,
                    )
        except trio.TooSlowError:
            raise LockError(f"{self._agent.address}: no answer within {seconds or self._seconds:g} s") from None
        except (httpx.HTTPError, ConsulError) as error:
            raise LockError(f"{self._agent.address}: {str(error) or type(error).__name__}") from None
        is_absent = reply.status_code == _NOT_FOUND and path.startswith(("/v1/kv/", "/v1/session/renew/"))
        is_refused = reply.status_code == _CONFLICT and path == "/v1/txn"
        if reply.status_code != httpx.codes.OK and not is_absent and not is_refused:
            said = "".join(c if c.isprintable() else " " for c in reply.text)[:300].strip()
            raise LockError(f"{self._agent.address}: {method} {path} is refused: {reply.status_code} {said}")
        return reply


def operation(verb: str, key: str, value: bytes | None = None, session: str = "") -> dict[str, object]:
    """An operation of a transaction."""
    found: dict[str, object] = {"Verb": verb, "Key": key}
    if value is not None:
        found["Value"] = base64.b64encode(value).decode("ascii")
    if session:
        found["Session"] = session
    return found


def _index(reply: httpx.Response) -> int:
    text = reply.headers.get("x-consul-index", "")
    return int(text) if text.isdecimal() and len(text) < 20 else 0


def _entries(reply: httpx.Response) -> list[KvEntry]:
    if reply.status_code == _NOT_FOUND:
        return []
    found: list[KvEntry] = _read(
        reply,
        lambda data: [
            KvEntry(
                str(entry["Key"]),
                base64.b64decode(entry["Value"] or ""),
                int(entry["ModifyIndex"]),
                str(entry.get("Session") or ""),
            )
            for entry in data
        ],
    )
    return found


def _read(reply: httpx.Response, take: Any) -> Any:
    try:
        return take(reply.json())
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise LockError(f"{reply.request.url.path}: the answer is not one of Consul's") from None
