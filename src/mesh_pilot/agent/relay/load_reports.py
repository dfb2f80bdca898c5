"""Envoy's load reports (LRS), passed to the control plane that is in use.

Unlike ADS, no state ties a stream of load reports to one control plane, so Envoy's stream stays open when that changes,
and without any: Envoy would try again every 5 s and log a warning each time. What it reports then is lost;
the agent's own counts are not. Reports are cut down on the way: each repeats the whole node, some 60 KB of names of
extensions, and names all clusters. Both are found by field numbers; nothing is decoded.
Source: Envoy's ``service/load_stats/v3/lrs.proto``, ``config/endpoint/v3/load_report.proto``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import attrs
import trio

from mesh_pilot.agent.bootstrap.static_resources import OWN_CLUSTERS
from mesh_pilot.agent.identity.secret_service import check_peer
from mesh_pilot.agent.relay.planes import Connected, Planes
from mesh_pilot.base.backoff import Backoff
from mesh_pilot.base.protowire import LEN, VARINT, WireError, field, fields, read_varint
from mesh_pilot.net.rpc import Cardinality, ClientCall, GRPCError, Handler, ServerStream, Status, StreamTerminatedError

_END_SECONDS = 2.0
"""Time for the end of a stream that is left."""

LOAD_STATS_PATH = "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats"

_CLUSTER_STATS = 2
"""``LoadStatsRequest.cluster_stats``; what else is there is the node."""
_NAME, _LOCALITIES, _DROPPED, _DROPPED_BY_CATEGORY = 1, 2, 3, 5
"""The fields of ``ClusterStats`` that count."""
_OWN = frozenset(name.encode() for name in OWN_CLUSTERS)


def shortened(report: bytes) -> bytes:
    """A report with nothing but the clusters of the mesh that had traffic; empty without any. Raises WireError."""
    return b"".join(
        [
            field(_CLUSTER_STATS, report[start:end])
            for number, kind, start, end in fields(report)
            if number == _CLUSTER_STATS and kind == LEN and _counts(memoryview(report)[start:end])
        ]
    )


def _counts(cluster: memoryview) -> bool:
    """True for a ``ClusterStats`` with numbers that is not of Envoy and its agent alone."""
    has_numbers = False
    for number, kind, start, end in fields(cluster):
        if number == _NAME and bytes(cluster[start:end]) in _OWN:
            return False
        has_numbers |= number in (_LOCALITIES, _DROPPED_BY_CATEGORY) and end > start
        has_numbers |= number == _DROPPED and kind == VARINT and read_varint(cluster, start)[0] > 0
    return has_numbers


@attrs.define
class LoadReportStatistics:
    """Numbers for metrics and debug pages."""

    streams: int = 0
    """Envoy's streams that are open."""
    reports_total: int = 0
    passed_total: int = 0
    """Reports of them that had traffic, and were passed to a control plane."""
    lost_total: int = 0
    """Reports with traffic that came while no control plane took them."""


@attrs.define(eq=False)
class _Uplink:
    """The stream at a control plane that one of Envoy's has; None while it has none."""

    call: ClientCall[bytes, bytes] | None = None


class LoadReportRelay:
    """The LoadReportingService that Envoy is told of.

    Mutable state: counts, and the connection on which the control plane does not have the service.
    """

    def __init__(self, planes: Planes) -> None:
        self._planes = planes
        self._without: Connected | None = None
        self._counts = LoadReportStatistics()

    def __repr__(self) -> str:
        return f"<LoadReportRelay {self._counts.streams} streams>"

    def __mapping__(self) -> Mapping[str, Handler]:
        return {LOAD_STATS_PATH: Handler(self._serve, Cardinality.STREAM_STREAM, bytes, bytes)}

    def statistics(self) -> LoadReportStatistics:
        return attrs.evolve(self._counts)

    async def _serve(self, call: ServerStream[bytes, bytes]) -> None:
        """One stream of Envoy's, until that ends it."""
        check_peer(call.peer)
        self._counts.streams += 1
        unreadable = ""
        try:
            first = await call.recv_message()
            if first is None:
                return
            uplink = _Uplink()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_linked, call, first, uplink)
                unreadable = await self._pass_on(call, uplink)
                nursery.cancel_scope.cancel()
        finally:
            self._counts.streams -= 1
        if unreadable:
            raise GRPCError(Status.INVALID_ARGUMENT, f"the report {unreadable}")

    async def _pass_on(self, call: ServerStream[bytes, bytes], uplink: _Uplink) -> str:
        """Send reports up; those without traffic are left out. Returns why one cannot be read, or at Envoy's end."""
        with suppress(StreamTerminatedError):  # Envoy is gone
            while (report := await call.recv_message()) is not None:
                self._counts.reports_total += 1
                try:
                    short = shortened(report)
                except WireError as error:
                    return str(error)
                if short:
                    await self._send(short, uplink)
        return ""

    async def _send(self, report: bytes, uplink: _Uplink) -> None:
        if uplink.call is not None:
            with suppress(GRPCError, StreamTerminatedError):  # whoever receives learns why
                await uplink.call.send_message(report)
                self._counts.passed_total += 1
                return
        self._counts.lost_total += 1

    async def _keep_linked(self, call: ServerStream[bytes, bytes], first: bytes, uplink: _Uplink) -> None:
        """Have a stream at the control plane in use, as long as that has the service. For ever."""
        backoff = Backoff()
        while True:
            connected = await self._planes.current.wait_for(self._takes_reports)
            assert connected is not None, "one that takes reports"
            await self._link(call, connected, first, uplink, backoff)
            if self._planes.current.value is connected:
                await trio.sleep(backoff.next_seconds())

    def _takes_reports(self, connected: Connected | None) -> bool:
        return connected is not None and connected is not self._without and connected.channel.lost is None

    async def _end_when_moved(
        self, connected: Connected, upstream: ClientCall[bytes, bytes], uplink: _Uplink, scope: trio.CancelScope
    ) -> None:
        """End the stream once another channel is in use, and give it up if its end takes long."""
        await self._planes.current.wait_for(lambda now: now is not connected)
        uplink.call = None
        with suppress(GRPCError, StreamTerminatedError):
            await upstream.end()
        await trio.sleep(_END_SECONDS)
        scope.cancel()

    async def _link(
        self,
        call: ServerStream[bytes, bytes],
        connected: Connected,
        first: bytes,
        uplink: _Uplink,
        backoff: Backoff,
    ) -> None:
        """One stream at a control plane, until it ends or another channel is in use; its answers go to Envoy."""
        metadata = dict(self._planes.call_metadata())
        try:
            async with connected.channel.request(
                LOAD_STATS_PATH, Cardinality.STREAM_STREAM, bytes, bytes, metadata=metadata
            ) as upstream:
                await upstream.send_message(first)
                uplink.call = upstream
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._end_when_moved, connected, upstream, uplink, nursery.cancel_scope)
                    await self._take_answers(call, connected, upstream, backoff)
                    nursery.cancel_scope.cancel()
        except (GRPCError, StreamTerminatedError):
            pass  # the connection is lost
        finally:
            uplink.call = None

    async def _take_answers(
        self,
        call: ServerStream[bytes, bytes],
        connected: Connected,
        upstream: ClientCall[bytes, bytes],
        backoff: Backoff,
    ) -> None:
        """Give Envoy the control plane's answers until the last."""
        try:
            while (answer := await upstream.recv_message()) is not None:
                backoff.reset()
                await call.send_message(answer)
        except GRPCError as error:
            if error.status is Status.UNIMPLEMENTED:
                self._without = connected
        except StreamTerminatedError:
            pass  # the connection is lost, or Envoy is gone
