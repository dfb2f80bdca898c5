"""A process with many proxies that report their traffic, told what to do by lines on its standard input.

Not for people: ``traffic.py`` starts it. Each proxy has a connection with an ADS stream, as an Envoy or an agent has
it. ``open`` opens the streams of reports next to that, ``on`` has them report at a steady rate, spread over the
interval, and ``off`` ends that; each is answered by a line with the number of reports sent so far.
"""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack

import trio
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest
from envoy.service.load_stats.v3.lrs_pb2 import LoadStatsRequest

from mesh_pilot.model.resource import CLUSTER
from mesh_pilot.model.traffic import (
    REPORTS_PATH,
    Counter,
    RowKind,
    TrafficReport,
    TrafficRow,
    encode_report,
)
from mesh_pilot.net.rpc import Cardinality, Channel, ClientCall, open_channel

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
LRS = "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats"
EXTENSIONS = 700
"""Names of extensions in a node: with them it has the 60 KB of a stock Envoy's."""

Call = ClientCall[bytes, bytes]


def node(number: int, *, whole: bool) -> Node:
    """The node of a proxy; ``whole``: with the names of its extensions."""
    ip = f"10.200.{number // 250}.{number % 250 + 1}"
    found = Node(id=f"sidecar~{ip}~reporter-{number}.ns0~ns0.svc.cluster.local")
    found.metadata.update({"NAMESPACE": "ns0", "LABELS": {"app": f"app-{number % 50}"}})
    for extension in range(EXTENSIONS if whole else 0):
        name = f"envoy.filters.http.of_some_length_{extension}"
        found.extensions.add(name=name, category="envoy.filters.http", type_urls=[f"{name}.v3.Config"])
    return found


def load_report(of: Node, clusters: int, busy: int) -> bytes:
    """A load report of so many clusters, so many of them with numbers in two localities."""
    request = LoadStatsRequest(node=of)
    for number in range(clusters):
        host = f"svc-{number}.ns0.svc.cluster.local"
        stats = request.cluster_stats.add(cluster_name=f"outbound|8080||{host}", cluster_service_name=host)
        stats.load_report_interval.FromSeconds(10)
        for zone in "ab" if number < busy else "":
            locality = stats.upstream_locality_stats.add(
                total_successful_requests=1000, total_error_requests=3, total_issued_requests=1003
            )
            locality.locality.region, locality.locality.zone = "eu", zone
    data: bytes = request.SerializeToString()
    return data


def agent_report(busy: int) -> bytes:
    """An agent's report of what has changed."""
    counts = {Counter.REQUESTS: 2000, Counter.ERRORS: 4, Counter.CLIENT_ERRORS: 7, Counter.CONNECTIONS: 1}
    counts |= {Counter.ATTEMPTS: 2006, Counter.FAILED_ATTEMPTS: 6}
    return encode_report(
        TrafficReport(
            tuple(
                TrafficRow(RowKind.CLUSTER, f"outbound|8080||svc-{number}.ns0.svc.cluster.local", counts)
                for number in range(busy)
            )
        )
    )


class Proxies:
    """Mutable state: the channels, the streams of reports of each proxy, and how many reports were sent."""

    def __init__(self, stack: AsyncExitStack, form: str, clusters: int, busy: int, seconds: float) -> None:
        self._stack = stack
        self._is_stock = form == "stock"
        self._clusters, self._busy, self._seconds = clusters, busy, seconds
        self._channels: list[Channel] = []
        self._streams: list[tuple[Call, bytes]] = []
        self.sent = 0

    async def connect(self, address: str, count: int) -> None:
        """So many proxies, each with an ADS stream."""
        for number in range(count):
            channel = await self._stack.enter_async_context(open_channel(address, tls=None))
            self._channels.append(channel)
            first = DiscoveryRequest(type_url=CLUSTER, node=node(number, whole=self._is_stock))
            ads = await self._call(channel, ADS, first.SerializeToString())
            answer = await ads.recv_message()
            assert answer is not None

    async def open(self) -> None:
        """The stream of reports of each."""
        for number, channel in enumerate(self._channels):
            own = node(number, whole=self._is_stock)
            if self._is_stock:
                path, first = LRS, LoadStatsRequest(node=own).SerializeToString()
                report = load_report(own, self._clusters, self._busy)
            else:
                path, first = REPORTS_PATH, encode_report(TrafficReport((), node=own.SerializeToString()))
                report = agent_report(self._busy)
            call = await self._call(channel, path, first)
            assert await call.recv_message() is not None
            self._streams.append((call, report))

    async def _call(self, channel: Channel, path: str, first: bytes) -> Call:
        call = await self._stack.enter_async_context(channel.request(path, Cardinality.STREAM_STREAM, bytes, bytes))
        await call.send_message(first)
        return call

    async def report(self) -> None:
        """For ever, each proxy at its time."""
        began, number = trio.current_time(), 0
        while True:
            await trio.sleep_until(began + number * self._seconds / len(self._streams))
            call, message = self._streams[number % len(self._streams)]
            await call.send_message(message)
            self.sent += 1
            number += 1


async def main(address: str, form: str, count: str, clusters: str, busy: str, seconds: str) -> None:
    async with AsyncExitStack() as stack:
        proxies = Proxies(stack, form, int(clusters), int(busy), float(seconds))
        await proxies.connect(address, int(count))
        lines = trio.wrap_file(sys.stdin)
        print(0, flush=True)
        scope = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            async for line in lines:
                if line.strip() == "open":
                    await proxies.open()
                elif line.strip() == "on":
                    scope = trio.CancelScope()
                    nursery.start_soon(_within, scope, proxies)
                else:
                    scope.cancel()
                print(proxies.sent, flush=True)


async def _within(scope: trio.CancelScope, proxies: Proxies) -> None:
    with scope:
        await proxies.report()


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
