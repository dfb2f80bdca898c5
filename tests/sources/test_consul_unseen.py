"""Services of Consul that no proxy sees: what a change costs does not depend on how many there are."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
import pytest
import trio
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest, DeltaDiscoveryResponse

from bench.client import DELTA_PATH, Client, Counts
from bench.consul_server import address_of, assignment, check, instance
from bench.consul_size import sidecar
from bench.fake_consul import FakeConsul
from mesh_pilot.app.control_plane import ControlPlane, control_plane
from mesh_pilot.app.settings import Settings
from mesh_pilot.consul.source import Agent, ConsulRegistry, ConsulSettings
from mesh_pilot.model.resource import ENDPOINT
from mesh_pilot.model.service import Endpoint, ServiceKey
from mesh_pilot.net.rpc import Cardinality, open_channel
from tests.support.envoy import eventually

SEEN = 10
FEW, MANY = 10, 1000
"""Services that no proxy sees."""
NOISE = 60
"""Calls of one function that may come and go with how bytes are cut on sockets; far from one for each service."""

SLACK = 20
"""Objects that may be left of what changed last."""


@attrs.define
class Mesh:
    """A plane on a Consul, and a proxy whose Sidecar shows it the first services."""

    consul: FakeConsul
    plane: ControlPlane
    client: Client
    received: Counts

    def addresses(self, number: int) -> set[str]:
        """Those of a service's endpoints in the World."""
        found = self.plane.state.world.endpoints.peek(ServiceKey(f"s-{number}.service.consul", "default"))
        return {endpoint.address for endpoint in found}

    async def until(self, holds: Callable[[], bool]) -> None:
        await eventually(holds, what="the change is known")

    async def fence(self) -> None:
        """What was under way is done: a later change of a service that is seen has come to the proxy."""
        id, address = "s-0-0", address_of(0, 0).encode()
        is_there = not self._holds(address)
        self.consul.transact([check(0, 0, "passing" if is_there else "critical")])
        await eventually(lambda: self._holds(address) is is_there, what=f"the proxy has a change of {id}")

    def _holds(self, address: bytes) -> bool:
        return address in self.client.types[ENDPOINT].held.items[assignment(0)].body


@asynccontextmanager
async def mesh(unseen: int, folder: Path) -> AsyncIterator[Mesh]:
    consul, anywhere = FakeConsul(), "127.0.0.1:0"
    for rank in (0, 1, 9):
        consul.register({"Node": f"node-{rank}", "Address": f"10.{rank}.0.1"})
    for number in range(SEEN + unseen):
        for rank in (0, 1):
            consul.transact([instance(number, rank), check(number, rank, "passing")])
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, consul.serve, 0, host="127.0.0.1"))
        agent = Agent(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}")
        settings = Settings(
            config_dirs=(folder,),
            registries=(ConsulRegistry((ConsulSettings(agent=agent, max_queries=18),)),),
            grpc_addr=anywhere,
            secure_grpc_addr=anywhere,
            http_addr=anywhere,
            monitoring_addr=anywhere,
            shutdown_seconds=0.5,
        )
        async with control_plane(settings) as plane, proxy(plane) as (client, received):
            yield Mesh(consul, plane, client, received)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def proxy(plane: ControlPlane) -> AsyncIterator[tuple[Client, Counts]]:
    """One that has everything, and follows it for the length of the block."""
    received, sent = Counts(), list[bytes]()
    client = Client(0, "delta", "default", received)
    kinds = (Cardinality.STREAM_STREAM, DeltaDiscoveryRequest, DeltaDiscoveryResponse)
    await plane.wait_ready()
    async with open_channel(plane.addresses.grpc) as channel, channel.request(DELTA_PATH, *kinds) as call:

        async def talk() -> None:
            while True:
                while sent:
                    await call.send_message(DeltaDiscoveryRequest.FromString(sent.pop(0)))
                response = await call.recv_message()
                assert response is not None
                client.received(response.SerializeToString(), trio.current_time())

        client.connected(sent.append, keep=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(talk)
            await eventually(lambda: client.is_complete, what="the proxy has everything")
            yield client, received
            nursery.cancel_scope.cancel()


@contextmanager
def counted_calls(of: tuple[str, ...]) -> Iterator[Counter[str]]:
    """How often each function of some folders is called meanwhile; generators count each time that they go on."""
    counts: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and any(folder in frame.f_code.co_filename for folder in of):
            counts[f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}"] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield counts
    finally:
        sys.setprofile(before)


def kept_answers() -> int:
    """The entries of Consul's answers, as JSON, that something still has."""
    gc.collect()
    return sum(type(each) is dict and {"Node", "Service", "Checks"} <= each.keys() for each in gc.get_objects())


def kept_endpoints() -> int:
    return sum(type(each) is Endpoint for each in gc.get_objects())


@attrs.frozen
class Cost:
    """What a change comes to, with that of a service that is seen as a fence."""

    queries: int
    responses: int
    resources: int
    translator_calls: int
    calls: Counter[str]


async def cost(mesh: Mesh, change: Callable[[], None], known: Callable[[], bool], of: tuple[str, ...]) -> Cost:
    await mesh.fence()
    asked, received = mesh.consul.queries.total(), attrs.evolve(mesh.received)
    computed = sum(mesh.plane.state.world.memo.statistics().calls.values())
    with counted_calls(of) as calls:
        change()
        await mesh.until(known)
        await mesh.fence()
    return Cost(
        mesh.consul.queries.total() - asked,
        mesh.received.responses - received.responses,
        mesh.received.resources - received.resources,
        sum(mesh.plane.state.world.memo.statistics().calls.values()) - computed,
        calls,
    )


def grown(few: Cost, many: Cost) -> dict[str, tuple[int, int]]:
    """The functions that are called more often the more services there are."""
    return {name: (few.calls[name], n) for name, n in many.calls.items() if n > few.calls[name] + NOISE}


EVERYTHING = ("/mesh_pilot/",)
BEHIND_THE_SOURCE = tuple(f"/mesh_pilot/{room}/" for room in ("engine", "envoy", "mesh", "net", "world", "xds"))


@pytest.mark.slow
async def test_a_change_of_an_unseen_service_costs_the_same_with_ten_and_with_a_thousand_of_them(
    tmp_path: Path,
) -> None:
    flaps, arrivals = [], []
    for unseen in (FEW, MANY):
        number = SEEN + unseen - 1
        folder = tmp_path / str(unseen)
        folder.mkdir()
        (folder / "sidecar.yaml").write_text(sidecar(range(SEEN)))
        flapping, new = address_of(number, 1), address_of(number, 9)
        async with mesh(unseen, folder) as at:
            known = partial(at.addresses, number)
            await eventually(lambda: not kept_answers(), what="no answer is kept once it was read")
            assert kept_endpoints() <= (SEEN + unseen) * 2 + SLACK, "one for each instance, whoever refers to it"
            flap = partial(at.consul.transact, [check(number, 1, "critical")])
            flaps.append(await cost(at, flap, lambda k=known, a=flapping: a not in k(), EVERYTHING))
            arrival = partial(at.consul.transact, [instance(number, 9)])
            arrivals.append(await cost(at, arrival, lambda k=known, a=new: a in k(), BEHIND_THE_SOURCE))
    assert grown(*flaps) == {}, "a check names its service: nothing is walked to find it"
    assert grown(*arrivals) == {}, "finding who came is between Consul and the source; what follows is the same"
    for few, many in (flaps, arrivals):
        # Those of the fence, which is a change of one service that is seen.
        assert (few.responses, few.resources, few.translator_calls) == (1, 1, few.translator_calls)
        assert (many.responses, many.resources, many.translator_calls) == (1, 1, few.translator_calls)
    assert [each.queries for each in flaps] == [flaps[0].queries] * 2
