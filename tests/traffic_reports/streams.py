"""Streams of reports in memory: the server's side of a call, and what a client does with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import trio
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.load_stats.v3.lrs_pb2 import LoadStatsRequest, LoadStatsResponse

from mesh_pilot.model.traffic import REPORTS_PATH, TrafficReport, TrafficRow, encode_report, read_answer
from mesh_pilot.net.rpc import GRPCError, Peer
from mesh_pilot.traffic.load_reports import SERVICE
from mesh_pilot.traffic.server import TrafficServer

LRS_PATH = f"/{SERVICE}/StreamLoadStats"
PATIENCE = 60.0


def node(name: str = "web-1", namespace: str = "shop", **labels: str) -> Node:
    """A sidecar's node, with a part of what makes Envoy's large."""
    found = Node(id=f"sidecar~10.0.0.1~{name}.{namespace}~{namespace}.svc.cluster.local")
    found.metadata.update({"LABELS": labels or {"app": name.partition("-")[0]}, "NAMESPACE": namespace})
    for number in range(300):
        found.extensions.add(name=f"envoy.filters.http.number_{number}", category="envoy.filters.http")
    return found


def loads(of: Node | None = None, **clusters: dict[str, int]) -> bytes:
    """A load report, of clusters by name, each with the numbers of one locality; without any it is idle."""
    request = LoadStatsRequest(node=of)
    for name, numbers in clusters.items():
        stats = request.cluster_stats.add(cluster_name=name)
        stats.load_report_interval.FromSeconds(10)
        if numbers:
            locality = stats.upstream_locality_stats.add()
            locality.locality.zone = "a"
            for field, number in numbers.items():
                setattr(locality, f"total_{field}", number)
    data: bytes = request.SerializeToString()
    return data


def agents(*rows: TrafficRow, of: Node | None = None, follows_gap: bool = False) -> bytes:
    """An agent's report."""
    encoded = of.SerializeToString() if of is not None else b""
    return encode_report(TrafficReport(rows, follows_gap=follows_gap, node=encoded))


class Call:
    """A call in memory: what the server uses of ``net.rpc.ServerStream``, and the client's end of it."""

    def __init__(self, path: str, address: str = "10.0.0.1:4000", spiffe_ids: tuple[str, ...] = ()) -> None:
        self.path = path
        self.peer = Peer(address=address, tls=bool(spiffe_ids), spiffe_ids=spiffe_ids)
        self.metadata: dict[str, str] = {}
        self.retire: Callable[[], None] = lambda: None
        self.error: GRPCError | None = None
        """How the server ended the stream; None: well, or not yet."""
        self.ended = trio.Event()
        self.scope = trio.CancelScope()
        self._requests, self._inbox = trio.open_memory_channel[bytes](100)
        self._outbox, self._responses = trio.open_memory_channel[bytes](100)

    def when_retiring(self, callback: Callable[[], None]) -> None:
        self.retire = callback

    async def recv_message(self) -> bytes | None:
        try:
            return await self._inbox.receive()
        except trio.EndOfChannel:
            return None

    async def send_message(self, message: bytes) -> None:
        await self._outbox.send(message)

    async def run(self, server: TrafficServer) -> None:
        """Serve it to its end."""
        handler = cast(Any, server).__mapping__()[self.path]
        with self.scope:
            try:
                await handler.func(self)
            except GRPCError as error:
                self.error = error
        self.ended.set()

    # -- the client

    async def send(self, *messages: bytes) -> None:
        """Send messages, and return when the server has nothing more to do but wait."""
        for message in messages:
            await self._requests.send(message)
        await trio.testing.wait_all_tasks_blocked()

    async def interval(self) -> float:
        """The seconds between two reports, as the server answers."""
        with trio.fail_after(PATIENCE):
            answer = await self._responses.receive()
        if self.path == REPORTS_PATH:
            return read_answer(answer)
        response = LoadStatsResponse.FromString(answer)
        assert response.send_all_clusters
        assert not response.report_endpoint_granularity
        return response.load_reporting_interval.ToMilliseconds() / 1000

    def half_close(self) -> None:
        self._requests.close()

    async def wait_ended(self) -> GRPCError | None:
        """How the server ended it."""
        with trio.fail_after(PATIENCE):
            await self.ended.wait()
        return self.error


@asynccontextmanager
async def streams(server: TrafficServer) -> AsyncIterator[Callable[..., Call]]:
    """Opens calls of a path at a server; all that are open break at the end of the block."""
    async with trio.open_nursery() as nursery:

        def opened(path: str = LRS_PATH, **more: Any) -> Call:
            call = Call(path, **more)
            nursery.start_soon(call.run, server)
            return call

        yield opened
        nursery.cancel_scope.cancel()
