"""The order of owners of contested hosts, shared by the replicas that elect a leader in Consul.

The leader writes its order into an entry next to the lock, in one transaction with the check of the lock. Followers
take it, and so does a new leader before it writes. While the store cannot be reached, or has something else in the
entry, each replica keeps the order that it has.
"""

from __future__ import annotations

import structlog
import trio

from mesh_pilot.app.settings import Settings
from mesh_pilot.base.backoff import Backoff
from mesh_pilot.consul.client.client import ConsulError
from mesh_pilot.consul.client.kv import ConsulKv
from mesh_pilot.consul.election.lock import ConsulElectionSettings
from mesh_pilot.replicas.election.base import Election, LockError, Term
from mesh_pilot.world.host_ownership import HostOwnership
from mesh_pilot.world.shared_order import decode, encode

log = structlog.get_logger(scope="election")

TASK = "owners of hosts"

ANSWER_SECONDS = 5.0
"""The time for a request to Consul."""

WAIT_SECONDS = 60.0
"""The time that a blocking query may stay unanswered, and after which the leader compares the entry with its order."""

GATHER_SECONDS = 1.0
"""Between two writes, or two readings."""

NOTHING = b"[]"


class SharedOwners:
    """Mutable state: what the entry has, as far as this replica knows; whether it leads; what the log was told."""

    def __init__(self, election: Election, owners: HostOwnership, kv: ConsulKv, key: str, retry_seconds: float) -> None:
        self._owners = owners
        self._kv = kv
        self._key = key
        self._retry_seconds = retry_seconds
        self._stored = NOTHING
        self._leads = False
        self._trouble = ""
        election.while_leading(TASK, self._publish)

    def __repr__(self) -> str:
        return f"<SharedOwners {self._key}{' of the leader' if self._leads else ''}>"

    async def run(self) -> None:
        """Follow the entry, until cancelled."""
        index, backoff = 0, Backoff(limit_seconds=self._retry_seconds)
        while True:
            try:
                index = await self._read(index)
            except (ConsulError, LockError) as error:
                self._say(f"the entry cannot be read: {error}")
                await trio.sleep(backoff.next_seconds())
                continue
            backoff.reset()
            if not self._leads:
                self._take()
            await trio.sleep(GATHER_SECONDS if index else self._retry_seconds)  # without an index nothing blocks

    async def _publish(self, term: Term) -> None:
        """Keep the entry as this replica's order is."""
        backoff, has_taken = Backoff(limit_seconds=self._retry_seconds), False
        self._leads = True
        try:
            while True:
                changed = self._owners.changed
                try:
                    if not has_taken:
                        await self._read(0)
                        self._take()
                        has_taken = True
                    await self._write(term)
                except (ConsulError, LockError) as error:
                    self._say(f"the entry cannot be written: {error}")
                    await trio.sleep(backoff.next_seconds())
                    continue
                backoff.reset()
                with trio.move_on_after(WAIT_SECONDS):
                    await changed.wait()
                await trio.sleep(GATHER_SECONDS)
        finally:
            self._leads = False

    async def _read(self, index: int) -> int:
        """Learn what the entry has, once its index is another one; the index. Raises ConsulError."""
        entry, found = await self._kv.get(self._key, index, WAIT_SECONDS)
        self._stored = entry.value if entry is not None else NOTHING
        return found if found >= index else 0

    def _take(self) -> None:
        try:
            orders = decode(self._stored)
        except ValueError as error:
            self._say(f"the entry is not a list of owners: {error}")
            return
        self._say("")
        self._owners.take(orders)

    async def _write(self, term: Term) -> None:
        """Write the order, if it is known and the entry has another. Raises LockError, TermEnded."""
        orders = self._owners.orders()
        if orders is None:
            return
        text, left_out = encode(orders)
        if text != self._stored:
            await term.fenced_write(self._key, text)
            self._stored = text
        self._say(f"the entry is full: {left_out} contested hosts have no room in it" if left_out else "")

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            log.warning(
                "owners of hosts are not shared by replicas",
                entry=self._key,
                reason=trouble,
                effect="this replica keeps its own order for contested hosts",
                what_to_do="let the token write the entry, or name owners under hostOwners in mesh.yaml",
            )
        elif self._trouble and not trouble:
            log.info("owners of hosts are shared by replicas again", entry=self._key)
        self._trouble = trouble


def share_owners(settings: Settings, election: Election, owners: HostOwnership) -> SharedOwners | None:
    """The sharing of owners; None: replicas have no store in common."""
    elected = settings.election
    if not isinstance(elected, ConsulElectionSettings):
        return None
    kv = ConsulKv(elected.agent, elected.datacenter, ANSWER_SECONDS)
    key = elected.key.strip("/")
    return SharedOwners(election, owners, kv, f"{key.rpartition('/')[0] or key}/owners", elected.ttl_seconds)
