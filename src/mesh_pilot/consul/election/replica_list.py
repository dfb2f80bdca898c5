"""The replicas that are there, each in an entry of Consul's KV store that is deleted with its session."""

from __future__ import annotations

import json

import attrs
import structlog
import trio

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.consul.client.client import ConsulError
from mesh_pilot.consul.client.kv import ConsulKv, KvEntry
from mesh_pilot.replicas.election.base import Replica

log = structlog.get_logger(scope="election")

WAIT_SECONDS = 60.0
RENEWALS = 3
LEAVE_SECONDS = 2.0


class ReplicaList:
    """The entries below a prefix. State: those seen last, our session, and whether we could not register."""

    def __init__(self, kv: ConsulKv, prefix: str, ttl_seconds: float, replica: Replica) -> None:
        self._kv = kv
        self._prefix = prefix
        self._ttl_seconds = ttl_seconds
        self._replica = replica
        self._session = ""
        self._is_failing = False
        self.replicas: tuple[Replica, ...] = ()

    def __repr__(self) -> str:
        return f"<ReplicaList {self._prefix}: {len(self.replicas)}>"

    async def run(self) -> None:
        """Register this replica, and follow the others, until cancelled; then our entry goes."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._register)
                nursery.start_soon(self._follow)
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(LEAVE_SECONDS):
                await self._leave()

    async def _register(self) -> None:
        backoff = Backoff(limit_seconds=self._ttl_seconds)
        while True:
            try:
                await self._stay()
            except ConsulError as error:
                if not self._is_failing:
                    log.warning("this replica cannot be registered", replica=self._replica.id, reason=str(error))
                self._is_failing = True
                await trio.sleep(backoff.next_seconds())
            else:
                self._is_failing = False
                backoff.reset()
                await trio.sleep(self._ttl_seconds / RENEWALS)

    async def _stay(self) -> None:
        """Keep the session, and with it the entry. Raises ConsulError."""
        if not self._session or not await self._kv.renew_session(self._session):
            self._session = await self._kv.create_session(
                f"mesh-pilot replica {self._replica.id}",
                ttl_seconds=self._ttl_seconds,
                behavior="delete",
                lock_delay_seconds=0.0,
            )
        elif any(replica.id == self._replica.id for replica in self.replicas):
            return
        key, value = self._prefix + self._replica.id, json.dumps(attrs.asdict(self._replica)).encode()
        if not await self._kv.put(key, value, acquire=self._session):
            raise ConsulError(f"KV entry {key}: another session holds it")

    async def _leave(self) -> None:
        try:
            if self._session:
                await self._kv.destroy_session(self._session)
        except ConsulError as error:
            log.info("this replica's entry was not deleted; it ends on its own", reason=str(error))

    async def _follow(self) -> None:
        backoff = Backoff(limit_seconds=self._ttl_seconds)
        index = 0
        while True:
            try:
                entries, found = await self._kv.tree(self._prefix, index, WAIT_SECONDS)
            except ConsulError as error:
                log.debug("the replicas cannot be listed", reason=str(error))
                await trio.sleep(backoff.next_seconds())
                continue
            backoff.reset()
            self.replicas = tuple(_replica(entry, self._prefix) for entry in entries if entry.session)
            if not found:  # an agent that gives no index does not block either
                await trio.sleep(self._ttl_seconds)
            index = found if found >= index else 0


def _replica(entry: KvEntry, prefix: str) -> Replica:
    """The replica of an entry; anything may stand in it."""
    try:
        found = json.loads(entry.value)
        texts = {field.name: str(found.get(field.name, "")) for field in attrs.fields(Replica)}
    except (ValueError, TypeError, AttributeError, RecursionError):
        texts = {}
    return Replica(**{**texts, "id": entry.key.removeprefix(prefix)})
