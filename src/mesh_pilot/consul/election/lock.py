"""A lock in Consul's KV store, held by a session.

The session is invalidated once it was not renewed for its TTL: never before, after twice the TTL at the latest. Its
lock delay is the TTL, too: where a session is invalidated early, as when somebody destroys it, the lock is not given to
another replica before the last leader's own clock ended its term. Every term has its own session, so a write
of an old term is fenced off even if the same replica leads again. Releasing the lock at the end of a term has no delay.

The number of a term is the modify index of the entry: it grows with every write to Consul.

Source of the rules: Consul, "Sessions" and "Application leader election with sessions".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import attrs
import trio

from mesh_pilot.consul.client.client import ConsulError, check_files
from mesh_pilot.consul.client.kv import ConsulKv, KvEntry, TransactionRefused, operation
from mesh_pilot.consul.client.settings import Agent
from mesh_pilot.consul.election.replica_list import ReplicaList
from mesh_pilot.replicas.election.base import Holding, Leader, LockError, LockLost, Replica
from mesh_pilot.replicas.election.elections import DEFAULT_TTL_SECONDS, LockElection

WAIT_SECONDS = 60.0
"""The time that a blocking query may stay unanswered."""

_CHECK = 0
"""The number of the check among the operations of a fenced write."""

_NOT_TO_BE_HAD = ("lock is already held", "lock delay")
"""Reasons for which Consul does not give a lock that pass with time."""


class ConsulLock:
    """An entry that a session holds; implements `base.Lock`. State: the session of the attempts."""

    kind = "consul"

    def __init__(self, agent: Agent, datacenter: str, key: str, ttl_seconds: float, replica: Replica) -> None:
        self.ttl_seconds = ttl_seconds
        self.poll_seconds = ttl_seconds / 15
        self.place = f"KV entry {key} at {agent.address}"
        self._key = key
        self._replica = replica
        self._kv = ConsulKv(agent, datacenter, ttl_seconds / 5)
        self._list = ReplicaList(self._kv, f"{key.rpartition('/')[0] or key}/replicas/", ttl_seconds, replica)
        self._session = ""

    def __repr__(self) -> str:
        return f"<ConsulLock {self.place}>"

    async def attend(self) -> None:
        await self._list.run()

    def replicas(self) -> tuple[Replica, ...]:
        return self._list.replicas

    async def acquire(self) -> Holding | Leader | None:
        with _asking():
            entry, _ = await self._kv.get(self._key)
            if entry is not None and entry.session and entry.session != self._session:
                return _leader(entry)
            if not self._session or not await self._kv.renew_session(self._session):
                self._session = ""
                self._session = await self._kv.create_session(
                    f"mesh-pilot leader {self._replica.id}",
                    ttl_seconds=self.ttl_seconds,
                    behavior="release",
                    lock_delay_seconds=self.ttl_seconds,
                )
            value = attrs.asdict(self._replica) | {"since": datetime.now(UTC).isoformat(timespec="seconds")}
            lock = operation("lock", self._key, json.dumps(value).encode(), self._session)
            try:
                (index,) = await self._kv.transact(lock)
            except TransactionRefused as refused:
                if any(text in str(refused) for text in _NOT_TO_BE_HAD):
                    return None
                raise LockError(f"{self.place}: {refused}") from None
        return Holding(index, self._session)

    async def renew(self, holding: Holding) -> None:
        with _asking():
            if not await self._kv.renew_session(holding.session):
                raise LockLost("the session was invalidated")

    async def confirm(self, holding: Holding) -> None:
        with _asking():
            entry, _ = await self._kv.get(self._key)
        if reason := _lost(entry, holding):
            raise LockLost(reason)

    async def release(self, holding: Holding | None) -> None:
        session = self._session if holding is None else holding.session
        if not session:
            return
        if holding is None or session == self._session:
            self._session = ""
        with _asking():
            # A session that is destroyed while it holds the lock delays others.
            await self._kv.let_go(self._key, session)
            await self._kv.destroy_session(session)

    async def wait_free(self) -> None:
        index = 0
        while True:
            entry, index = await self._changed(index)
            if entry is None or not entry.session:
                return

    async def wait_lost(self, holding: Holding) -> str:
        index = holding.term
        while True:
            entry, index = await self._changed(index)
            if reason := _lost(entry, holding):
                return reason

    async def fenced_write(self, holding: Holding, key: str, value: bytes | None) -> None:
        write = operation("delete", key) if value is None else operation("set", key, value)
        try:
            with _asking():
                await self._kv.transact(operation("check-session", self._key, session=holding.session), write)
        except TransactionRefused as refused:
            if "session" in refused.reasons.get(_CHECK, ""):
                raise LockLost("the lock is held no more") from None
            raise LockError(f"KV entry {key}: {refused}") from None

    async def _changed(self, index: int) -> tuple[KvEntry | None, int]:
        """The entry and its index, once that is another than ``index``; right away for 0."""
        with _asking():
            entry, found = await self._kv.get(self._key, index, WAIT_SECONDS)
        if not found:  # an agent that gives no index does not block either
            await trio.sleep(self.poll_seconds)
        return entry, found if found >= index else 0


@contextmanager
def _asking() -> Iterator[None]:
    try:
        yield
    except ConsulError as error:
        raise LockError(str(error)) from None


@attrs.frozen(kw_only=True)
class ConsulElectionSettings:
    """A lock in Consul's KV store; implements `base.ElectionSettings`."""

    agent: Agent
    datacenter: str = ""
    """The datacenter whose KV store it is; empty: the agent's own."""
    key: str = "mesh-pilot/leader"
    """The entry of the lock; replicas are listed next to it, in ``replicas/``."""
    ttl_seconds: float = DEFAULT_TTL_SECONDS

    def election(self, replica: Replica) -> LockElection:
        check_files(self.agent)
        lock = ConsulLock(self.agent, self.datacenter, self.key.strip("/"), self.ttl_seconds, replica)
        return LockElection(lock, replica)


def _lost(entry: KvEntry | None, holding: Holding) -> str:
    if entry is None:
        return "the entry of the lock was deleted"
    if not entry.session:
        return "the lock was released"
    return "" if entry.session == holding.session else f"{_leader(entry).id} has the lock"


def _leader(entry: KvEntry) -> Leader:
    """The holder of the lock; anything may stand in the entry."""
    try:
        found = json.loads(entry.value)
        since = datetime.fromisoformat(found["since"])
        texts = {name: str(found[name]) for name in ("id", "host", "address")}
    except (ValueError, TypeError, LookupError, RecursionError):
        return Leader(f"session {entry.session}", entry.modify_index)
    return Leader(term=entry.modify_index, since=since, **texts)
