"""A lock that is a Lease of Kubernetes (``coordination.k8s.io/v1``); every write names the version that it replaces.

The API server fences nothing but the Lease itself: a write to anything else of a leader that was stopped after its last
check may take effect when another leads. ``Term.confirm`` right before it makes that unlikely, not impossible.

Deleting the Lease makes the numbers of terms begin with 1 again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import trio

from mesh_pilot.kubernetes.apiserver import Access, ApiClient, ApiServerError, KubernetesError, load_access
from mesh_pilot.kubernetes.election.lease_record import (
    LeaseObserver,
    LeaseRecord,
    Object,
    read_lease,
    released,
    renewed,
    taken,
)
from mesh_pilot.replicas.election.base import Clock, Holding, Leader, LockError, LockLost, Replica, boot_clock
from mesh_pilot.replicas.election.elections import DEFAULT_TTL_SECONDS, LockElection

API = "coordination.k8s.io/v1"
_NOT_FOUND, _CONFLICT = 404, 409
_TRANSITIONS = 2**31
"""A Lease has fewer: whoever may edit it can write the most that an API server takes, and then terms begin with 1."""


class KubernetesLease:
    """A Lease; implements `base.Lock`. State: what was observed of it, and the object as we wrote it last."""

    kind = "kubernetes"

    def __init__(
        self, access: Access, namespace: str, name: str, ttl_seconds: float, replica: Replica, clock: Clock
    ) -> None:
        self.ttl_seconds = float(math.ceil(ttl_seconds))
        self.poll_seconds = self.ttl_seconds * 2 / 15
        self.place = f"Lease {namespace}/{name} at {access.server}"
        self._access = access
        self._replica = replica
        self._clock = clock
        self._folder = f"/apis/{API}/namespaces/{namespace}/leases"
        self._name = name
        self._observer = LeaseObserver(self.ttl_seconds)
        self._own: Object | None = None

    def __repr__(self) -> str:
        return f"<KubernetesLease {self.place}>"

    async def attend(self) -> None:
        """Nothing: a Lease has no list of replicas."""
        await trio.sleep_forever()

    def replicas(self) -> tuple[Replica, ...]:
        return ()

    async def acquire(self) -> Holding | Leader | None:
        found = await self._get()
        if found is None:
            new = {"apiVersion": API, "kind": "Lease", "metadata": {"name": self._name}}
            return await self._take(await self._ask("POST", self._folder, self._taken(new, 0)))
        record = _record(found)
        if record.holder != self._replica.id and not self._observer.is_free(record, self._clock()):
            return Leader(record.holder, _term(record), record.since)
        return await self._take(await self._put(self._taken(found, (record.transitions + 1) % _TRANSITIONS)))

    async def renew(self, holding: Holding) -> None:
        for _ in range(2):
            if self._own is None or _term(_record(self._own)) != holding.term:
                raise LockLost("the Lease was released")
            reply = await self._put(renewed(self._own, datetime.now(UTC)))
            if reply is not None:
                self._own = reply
                return
            await self.confirm(holding)  # somebody has edited it, or our last write came through although it failed
        raise LockError(f"{self.place}: it keeps changing while it is renewed")

    async def confirm(self, holding: Holding) -> None:
        found = await self._get()
        if found is None:
            raise LockLost("the Lease was deleted")
        record = _record(found)
        if record.holder != self._replica.id or _term(record) != holding.term:
            raise LockLost(f"{record.holder} has the Lease" if record.holder else "the Lease was released")
        self._own = found

    async def release(self, holding: Holding | None) -> None:
        own, self._own = self._own, None
        if own is not None:
            await self._put(released(own, datetime.now(UTC)))  # a conflict: it is another's already

    async def wait_free(self) -> None:
        await trio.sleep(self.poll_seconds)

    async def wait_lost(self, holding: Holding) -> str:
        await trio.sleep_forever()
        raise AssertionError

    async def fenced_write(self, holding: Holding, key: str, value: bytes | None) -> None:
        raise LockError(f"{self.place} fences no writes to Consul")

    def _taken(self, found: Object, transitions: int) -> Object:
        return taken(found, self._replica.id, int(self.ttl_seconds), transitions, datetime.now(UTC))

    async def _take(self, written: Object | None) -> Holding | None:
        """The holding of a write; None if another was quicker."""
        if written is None:
            return None
        record = _record(written)
        if record.holder != self._replica.id:
            raise LockError(f"{self.place}: the answer is not the Lease as it was written")
        self._own = written
        return Holding(_term(record))

    async def _get(self) -> Object | None:
        """None if there is no Lease."""
        return await self._ask("GET", f"{self._folder}/{self._name}")

    async def _put(self, lease: Object) -> Object | None:
        """The Lease as it was written; None if the version that it was to replace is no longer there."""
        return await self._ask("PUT", f"{self._folder}/{self._name}", lease)

    async def _ask(self, method: str, path: str, body: Object | None = None) -> Object | None:
        seconds = self.ttl_seconds / 5
        try:
            with trio.fail_after(seconds):
                async with ApiClient(self._access, answer_seconds=seconds) as client:
                    return await client.request(method, path, json=body)
        except trio.TooSlowError:
            raise LockError(f"{self._access.server}: no answer within {seconds:g} s") from None
        except ApiServerError as error:
            if error.status == _CONFLICT or (error.status == _NOT_FOUND and method != "POST"):
                return None
            raise LockError(str(error)) from None
        except KubernetesError as error:
            raise LockError(str(error)) from None


def _record(found: Mapping[str, Any]) -> LeaseRecord:
    try:
        return read_lease(found)
    except ValueError as error:
        raise LockError(str(error)) from None


def _term(record: LeaseRecord) -> int:
    return record.transitions + 1


@attrs.frozen(kw_only=True)
class KubernetesElectionSettings:
    """A Lease of Kubernetes; implements `base.ElectionSettings`."""

    kubeconfig: Path | None = None
    """The way to the API server; None: as a pod, or as kubectl does."""
    namespace: str = "istio-system"
    name: str = "mesh-pilot-leader"
    ttl_seconds: float = DEFAULT_TTL_SECONDS

    def election(self, replica: Replica) -> LockElection:
        access = load_access(self.kubeconfig, flag="--kubernetes-kubeconfig")
        lease = KubernetesLease(access, self.namespace, self.name, self.ttl_seconds, replica, boot_clock)
        return LockElection(lease, replica)
