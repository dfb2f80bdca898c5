"""Leader election by a Lease of a real API server: three candidates, and a server that ends, returns and goes back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from mesh_pilot.kubernetes.election.lease import KubernetesElectionSettings
from mesh_pilot.replicas.election.base import Replica, Term
from mesh_pilot.replicas.election.elections import LockElection
from tests.support.apiserver import ApiServer
from tests.support.envoy import eventually

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(300)]

TTL = 4.0


@attrs.define(eq=False)
class Candidates:
    """Three replicas in one process. State: who leads now, and all terms that ever began."""

    elections: dict[str, LockElection] = attrs.field(factory=dict)
    leading: dict[str, int] = attrs.field(factory=dict)
    terms: list[tuple[str, int]] = attrs.field(factory=list)
    most: int = 0
    """At the same time."""

    async def work(self, name: str, term: Term) -> None:
        self.leading[name] = term.number
        self.most = max(self.most, len(self.leading))
        self.terms.append((name, term.number))
        try:
            await trio.sleep_forever()
        finally:
            del self.leading[name]

    async def leader(self, *, after: int = 0) -> str:
        """The one that leads, in a term after this one."""

        def there() -> bool:
            return any(number > after for number in self.leading.values())

        await eventually(there, what="one leads")
        return next(iter(self.leading))


@asynccontextmanager
async def candidates(kubeconfig: Path, namespace: str) -> AsyncIterator[Candidates]:
    made = Candidates()
    async with trio.open_nursery() as nursery:
        for name in ("a", "b", "c"):
            settings = KubernetesElectionSettings(kubeconfig=kubeconfig, namespace=namespace, ttl_seconds=TTL)
            election = settings.election(Replica(name))
            election.while_leading("lead", lambda term, name=name: made.work(name, term))  # type: ignore[misc]  # mypy: default
            made.elections[name] = election
            nursery.start_soon(election.run)
        yield made
        nursery.cancel_scope.cancel()


async def test_one_of_three_leads_and_another_when_it_resigns(apiserver: ApiServer) -> None:
    async with apiserver.namespace() as namespace, candidates(apiserver.kubeconfig(), namespace.name) as three:
        first = await three.leader()
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace.name}/leases/mesh-pilot-leader"
        lease = (await apiserver.ask("GET", path))["spec"]
        assert (lease["holderIdentity"], lease["leaseTransitions"] + 1) == (first, three.leading[first])

        three.elections[first].resign()
        second = await three.leader(after=three.terms[-1][1])
        assert second != first
        assert three.most == 1


async def test_a_lease_of_another_client_is_respected_until_it_has_run_out(apiserver: ApiServer) -> None:
    async with apiserver.namespace() as namespace:
        spec = {
            "holderIdentity": "istiod",
            "leaseDurationSeconds": 3,
            "acquireTime": "2026-01-01T00:00:00.000000Z",
            "renewTime": "2026-01-01T00:00:00.000000Z",
            "leaseTransitions": 6,
        }
        await apiserver.apply(namespace.object("coordination.k8s.io/v1", "Lease", "mesh-pilot-leader", spec=spec))
        async with candidates(apiserver.kubeconfig(), namespace.name) as three:
            seen = three.elections["a"]
            await eventually(lambda: seen.leader is not None and seen.leader.id == "istiod", what="it is seen")
            assert not three.terms
            await three.leader()
            assert [number for _, number in three.terms] == [8]


# A request that times out while it connects leaves its socket to the garbage collector (httpcore).
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_server_that_ends_and_one_restored_from_a_backup_never_make_two_leaders(tmp_path: Path) -> None:
    server = ApiServer(tmp_path / "server")
    try:
        await trio.to_thread.run_sync(server.start)
        await server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "istio-system"}})
        async with candidates(server.kubeconfig(), "istio-system") as three:
            first = await three.leader()
            backup = await trio.to_thread.run_sync(server.backup)
            three.elections[first].resign()
            await three.leader()
            server.kill()
            await eventually(lambda: not three.leading, what="nobody leads without the server")
            await trio.to_thread.run_sync(server.restore, backup)
            await three.leader()
            assert three.most == 1
    finally:
        server.kill(etcd=True)
