"""Several planes behind one load balancer, which gives each new connection to the next plane that is up."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial

import attrs
import pytest
import trio
from envoy.config.core.v3.base_pb2 import Node as NodeMessage
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest, DeltaDiscoveryResponse

from mesh_pilot.model.bounds import Bounds
from mesh_pilot.model.resource import CLUSTER
from mesh_pilot.net.rpc import (
    Cardinality,
    GRPCError,
    RpcError,
    StreamTerminatedError,
    open_channel,
    open_listeners,
    serve,
)
from mesh_pilot.net.rpc.limits import Limits
from mesh_pilot.xds.ads.context import DEFAULT_OPTIONS, XdsOptions
from mesh_pilot.xds.ads.server import XdsServer
from tests.support.patience import PATIENT_CLIENT, PATIENT_SERVER
from tests.xds.fake_world import FakeWorld, node

DELTA = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
NAMES = ("a", "b", "c")


@attrs.define
class Replica:
    """One plane of its own World. All have the same resources."""

    name: str
    limits: Limits
    options: XdsOptions = DEFAULT_OPTIONS
    address: str = ""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    admitted: list[str] = attrs.field(factory=list)
    """The proxies that were identified, in order."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until its scope is cancelled, which is as abrupt as a kill."""
        world = FakeWorld()
        for name in NAMES:
            world.put(CLUSTER, name)
        xds = XdsServer(world, identifier=self.name, options=self.options, scope_of=self._note)
        with trio.CancelScope() as self.scope:
            async with trio.open_nursery() as nursery:
                listeners = await open_listeners("127.0.0.1:0")
                server = await nursery.start(partial(serve, xds.services(), listeners, limits=self.limits))
                self.address = server.addresses[0]
                task_status.started()
        self.address = ""

    def _note(self, proxy: object) -> str:
        self.admitted.append(proxy.id)  # type: ignore[attr-defined]
        return "one"


@attrs.define
class Fleet:
    """Clients that connect again whenever their stream ends. State: where each is sent, and what it received."""

    replicas: list[Replica]
    balanced: Iterator[int] = attrs.field(factory=itertools.count)
    at: dict[int, str] = attrs.field(factory=dict)
    connections: Counter[int] = attrs.field(factory=Counter)
    responses: Counter[int] = attrs.field(factory=Counter)
    statuses: Counter[str] = attrs.field(factory=Counter)
    changed: trio.Event = attrs.field(factory=trio.Event)

    async def client(self, number: int) -> None:
        versions: dict[str, str] = {}
        while True:
            up = [replica for replica in self.replicas if replica.address]
            replica = up[next(self.balanced) % len(up)]
            self.at[number] = replica.name
            try:
                await self._talk(number, replica, versions)
                self.statuses["OK"] += 1
            except GRPCError as error:
                self.statuses[error.status.name] += 1
            except (RpcError, StreamTerminatedError):
                self.statuses["lost"] += 1

    async def _talk(self, number: int, replica: Replica, versions: dict[str, str]) -> None:
        async with (
            open_channel(replica.address, limits=PATIENT_CLIENT) as channel,
            channel.request(DELTA, Cardinality.STREAM_STREAM, bytes, bytes) as call,
        ):
            first = DeltaDiscoveryRequest(type_url=CLUSTER, node=NodeMessage(id=node(number).id))
            first.initial_resource_versions.update(versions)
            await call.send_message(first.SerializeToString())
            self.connections[number] += 1
            self._note()
            while (data := await call.recv_message()) is not None:
                response = DeltaDiscoveryResponse.FromString(data)
                versions.update({each.name: each.version for each in response.resources})
                self.responses[number] += 1
                answer = DeltaDiscoveryRequest(type_url=CLUSTER, response_nonce=response.nonce)
                await call.send_message(answer.SerializeToString())
                self._note()

    def _note(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    async def until_each_has(self, connections: Counter[int], count: int) -> None:
        """Until each client has so many connections more than those."""
        while not all(self.connections[each] - connections[each] >= count for each in range(len(connections))):
            await self.changed.wait()


@asynccontextmanager
async def fleet(clients: int, replicas: list[Replica]) -> AsyncIterator[tuple[Fleet, trio.Nursery]]:
    async with trio.open_nursery() as nursery:
        for replica in replicas:
            await nursery.start(replica.run)
        made = Fleet(replicas)
        for number in range(clients):
            nursery.start_soon(made.client, number)
        yield made, nursery
        nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_clients_are_spread_again_once_their_connections_are_of_age() -> None:
    """Three planes, one of which dies and comes back: all are within 15 % of the same load, and nothing is sent."""
    clients = 300
    limits = attrs.evolve(PATIENT_SERVER, max_connection_age_seconds=6, connection_burst=1000, stream_burst=1000)
    replicas = [Replica(name, limits) for name in ("one", "two", "three")]
    start = Counter(dict.fromkeys(range(clients), 0))
    async with fleet(clients, replicas) as (running, nursery):
        await running.until_each_has(start, 1)
        assert is_even(running.at, clients, replicas)
        while running.responses.total() < clients:
            await running.changed.wait()
        replicas[0].scope.cancel()
        while "one" in running.at.values():
            await running.changed.wait()
        await nursery.start(replicas[0].run)
        before = Counter({number: running.connections[number] for number in range(clients)})
        await running.until_each_has(before, 1)
        while not is_even(running.at, clients, replicas):  # some are on their way to the next plane already
            await running.changed.wait()
        assert running.responses.total() == clients, "each was sent what there is once, by the first plane"
        assert running.statuses["OK"] >= clients - 100
        assert running.statuses.keys() <= {"OK", "lost", "CANCELLED"}, "the last two are of the kill"


def is_even(at: dict[int, str], clients: int, replicas: list[Replica], share: float = 0.15) -> bool:
    """True if the load of each plane is within a share of the mean."""
    loads = Counter(at.values())
    mean = clients / len(replicas)
    return all(abs(loads[each.name] - mean) <= share * mean for each in replicas)


async def test_a_herd_is_served_in_order_of_arrival() -> None:
    """Twice as many as may begin at once: each is identified in its turn, and is sent one response."""
    clients, burst = 100, 10
    options = XdsOptions(bounds=Bounds(max_requests_per_second=200), stream_burst=burst)
    replica = Replica("one", attrs.evolve(PATIENT_SERVER, connection_burst=1000, stream_burst=1000), options)
    async with trio.open_nursery() as nursery:
        await nursery.start(replica.run)
        made = Fleet([replica])
        for number in range(clients):
            nursery.start_soon(made.client, number)
            while not made.connections[number]:
                await made.changed.wait()
        while made.responses.total() < clients:
            await made.changed.wait()
        nursery.cancel_scope.cancel()
    assert replica.admitted == [node(number).id for number in range(clients)]
    assert set(made.responses.values()) == {1}
