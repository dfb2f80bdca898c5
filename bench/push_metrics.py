"""What metrics and traces cost a push: CPU of a control plane and its clients, in one process, with and without them.

Changes of endpoints go to N streams, which accept them. The three ways take turns; the least of each counts.
Usage: python bench/push_metrics.py [--streams 20] [--changes 100] [--rounds 5]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import trio
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.model.events import Endpoints, Upsert
from mesh_pilot.model.resource import ENDPOINT
from mesh_pilot.model.service import Endpoint, Port, Protocol, Service, ServiceKey
from mesh_pilot.net.rpc import Cardinality, open_channel, open_listeners, serve
from mesh_pilot.ops.tracing.settings import TraceSettings
from mesh_pilot.ops.tracing.traces import RevisionTraces
from mesh_pilot.world import World
from mesh_pilot.world.reducer import Published
from mesh_pilot.xds.ads.server import XdsServer
from mesh_pilot.xds.ads.statistics import PushTimes

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
KEY = ServiceKey("web.test", "shop")
NAME = "outbound|80||web.test"


class Plane:
    """A World, an xDS server on it, and clients that accept what they get."""

    def __init__(self) -> None:
        self.world = World()
        self.server = XdsServer(WorldCatalog(self.world), identifier="bench")
        self.number = 0
        self.change()

    def change(self) -> None:
        """Publish a change of endpoints."""
        self.number += 1
        before = trio.current_time()
        service = Upsert("bench", Service(KEY.host, KEY.namespace, (Port(80, "http", Protocol.HTTP),)))
        endpoint = Endpoint(f"10.0.{self.number // 250 % 250}.{self.number % 250}", 80, "http")
        revision = self.world.apply([service, Upsert("bench", Endpoints(KEY, (endpoint,)))])
        self.server.status.published(trio.current_time(), revision.number)
        if isinstance(self.server.status.observer, RevisionTraces):
            self.server.status.observer.published(Published(revision, before, trio.current_time()))

    async def client(self, address: str, number: int) -> None:
        kinds = (Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse)
        async with open_channel(address) as channel, channel.request(ADS, *kinds) as call:
            node = {"id": f"sidecar~10.1.0.1~web-{number}.shop~shop.svc.cluster.local"}
            await call.send_message(DiscoveryRequest(node=node, type_url=ENDPOINT, resource_names=[NAME]))
            while (answer := await call.recv_message()) is not None:
                ack = DiscoveryRequest(type_url=ENDPOINT, resource_names=[NAME], response_nonce=answer.nonce)
                ack.version_info = answer.version_info
                await call.send_message(ack)

    def acks(self) -> int:
        return self.server.status.totals.acks[ENDPOINT]

    async def wait_for(self, acks: int) -> None:
        while self.acks() < acks:
            await trio.lowlevel.checkpoint()


@contextmanager
def without_metrics() -> Iterator[None]:
    """The block runs without what is counted for a push."""
    with mock.patch.multiple(PushTimes, pushed=_nothing, waited=_nothing, converged=_nothing):
        yield


def _nothing(*_: object) -> None: ...


async def main(streams: int, changes: int, rounds: int) -> None:
    plane = Plane()
    least = dict.fromkeys(("without metrics", "with metrics", "with metrics and traces"), float("inf"))
    async with trio.open_nursery() as nursery:
        listeners = await open_listeners("127.0.0.1:0")
        server = await nursery.start(serve, plane.server.services(), listeners)
        for number in range(streams):
            nursery.start_soon(plane.client, server.addresses[0], number)
        await plane.wait_for(streams)

        async def seconds() -> float:
            began = time.process_time()
            for _ in range(changes):
                acks = plane.acks()
                plane.change()
                await plane.wait_for(acks + streams)
            return (time.process_time() - began) / changes / streams

        for _ in range(rounds):
            with without_metrics():
                least["without metrics"] = min(least["without metrics"], await seconds())
            least["with metrics"] = min(least["with metrics"], await seconds())
            traces = plane.server.status.observer = RevisionTraces(TraceSettings("http://localhost:4318"))
            least["with metrics and traces"] = min(least["with metrics and traces"], await seconds())
            plane.server.status.observer = None
            traces.finished(trio.current_time(), lambda _: True)
        nursery.cancel_scope.cancel()
    for name, each in least.items():
        print(f"{name}: {each * 1e6:.1f} µs CPU a response, ratio {each / least['without metrics']:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--changes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    trio.run(main, given.streams, given.changes, given.rounds)
