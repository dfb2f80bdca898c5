"""The task that reads Envoy's counters every interval, and the stream on which it reports them, with the attempts of
Envoy's load reports.

Two things are on and off apart from each other. Envoy is read while some control plane wants reports, or none has said
that it does not: while all are away, increases are summed and reported later, so that only what is in an Envoy that
ends is lost. A stream is there while a control plane is connected that has the service.

A stream that is left is ended, and the end awaited, so that the control plane has taken all that was sent on it. Where
that fails, the latest reports may have got lost: they are not sent again, and the next says that it follows a
gap.
"""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import quote

import attrs
import trio

from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.envoy.admin import AdminError
from mesh_pilot.agent.envoy.child import since_boot
from mesh_pilot.agent.envoy.runner import EnvoyRunner
from mesh_pilot.agent.relay.planes import Connected, Planes
from mesh_pilot.agent.traffic.increases import Increases
from mesh_pilot.agent.traffic.load_reports import LoadReportService
from mesh_pilot.agent.traffic.statistics import FILTER
from mesh_pilot.base.backoff import Backoff
from mesh_pilot.base.protowire import WireError
from mesh_pilot.model.traffic import DEFAULT_SECONDS, REPORTS_PATH, TrafficReport, encode_report, read_answer
from mesh_pilot.net.rpc import Cardinality, ClientCall, GRPCError, Status, StreamTerminatedError

_PAGE = f"/stats?usedonly&filter={quote(FILTER, safe='')}"
_QUIET_SECONDS = 60.0
"""Between two reports, where nothing has changed: silence is not taken for absence."""
_END_SECONDS = 2.0
_UNCERTAIN_SECONDS = 45.0
"""The age of a message that has arrived if its connection was there: one that takes nothing for 40 s is given up."""
_LEAST_SECONDS = 0.5
MERGED_SECONDS = 8.0
"""The age at which an Envoy has taken over what its predecessor counted last, a part of which was reported: it does so
when it flushes its statistics, by default after 5 s."""


@attrs.define
class TrafficReporterStatistics:
    """Numbers for metrics and debug pages."""

    interval_seconds: float
    """Between two reports; 0: none are wanted."""
    connected: bool
    """True while a control plane takes reports."""
    statistics: int
    """Statistics of Envoy that are read."""
    reports_total: int
    rows_total: int
    reads_total: int
    """Looks at Envoy's statistics."""
    read_failures_total: int
    gaps_total: int
    """Reports that follow a gap."""


class TrafficReporter:
    """Mutable state: what has increased, the Envoy that is read, the stream, and the connection without the service."""

    def __init__(self, envoy: EnvoyRunner, planes: Planes, node: bytes) -> None:
        """``node``: Envoy's, encoded. Make it before Envoy is started."""
        self._envoy = envoy
        self._planes = planes
        self._node = node
        self._began = since_boot()
        self._increases = Increases()
        self._interval = Observable(DEFAULT_SECONDS)
        """Seconds between two reports; 0: none are wanted."""
        self.load_reports = LoadReportService(self._increases, self._interval)
        self._pid = 0
        """The process of the Envoy that is read; 0 before the first."""
        self._was_off = False
        self._is_ending = False
        self._closed = trio.Event()
        self._without: Connected | None = None
        self._call: ClientCall[bytes, bytes] | None = None
        self._happened = trio.Event()
        self._reported_at = self._rows_at = -float("inf")
        self._reports = self._rows = self._reads = self._failures = self._gaps = 0

    def __repr__(self) -> str:
        return f"<TrafficReporter every {self._interval.value:g} s, {'' if self._call else 'not '}connected>"

    def statistics(self) -> TrafficReporterStatistics:
        return TrafficReporterStatistics(
            self._interval.value,
            self._call is not None,
            self._increases.statistics,
            self._reports,
            self._rows,
            self._reads,
            self._failures,
            self._gaps,
        )

    async def run(self) -> None:
        """Read and report, forever. Cancelled, what was not reported is lost."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_stream)
            while True:
                self._happened = trio.Event()
                if self._interval.value:
                    await self._read()
                    await self._report()
                with trio.move_on_after(self._pause()):
                    await self._happened.wait()

    def _pause(self) -> float:
        """The time to the next look: earlier at an Envoy that is about to be readable for the first time."""
        child = self._envoy.current
        is_young = child is not None and child.facts.pid != self._pid and child.facts.epoch > 0
        rest = MERGED_SECONDS - child.age_seconds if child is not None and is_young else 0.0
        seconds = self._interval.value
        return min(seconds, rest) if seconds and rest > 0 else seconds or float("inf")

    async def end(self) -> None:
        """Report what is left, before Envoy ends, and close the stream."""
        call = self._call
        if call is None:
            return
        self._is_ending = True
        await self._read()
        await self._report()
        with trio.move_on_after(_END_SECONDS), suppress(GRPCError, StreamTerminatedError):
            await call.end()
            await self._closed.wait()

    # -- Envoy

    async def _read(self) -> None:
        """Read the Envoy that serves. What cannot be read now is in the next page."""
        child = self._envoy.current
        if child is None or not child.has_admin_file():
            return
        if child.facts.epoch > 0 and child.age_seconds < MERGED_SECONDS:
            return
        if child.facts.pid != self._pid:
            is_fresh = child.facts.epoch == 0 and child.facts.started >= self._began
            self._pid = child.facts.pid
            self._increases.begin(counts_first_page=is_fresh and not self._was_off)
            self._was_off = False
        try:
            page = (await (await child.admin()).get(_PAGE)).decode(errors="replace")
        except AdminError:
            self._failures += 1
            return
        if child.has_admin:  # else the answer may be that of its successor
            self._increases.read(page)
            self._reads += 1

    # -- the stream

    async def _report(self) -> None:
        """Send what has increased, if there is a stream."""
        call, now = self._call, trio.current_time()
        if call is None:
            return
        report = self._increases.take(min(now - self._reported_at, 1e6) if self._reports else self._interval.value)
        if report is None and now - self._reported_at >= _QUIET_SECONDS:
            report = TrafficReport((), self._interval.value)
        if report is None:
            return
        self._reported_at = now
        if report.rows:
            self._rows_at = now
        self._reports += 1
        self._rows += len(report.rows)
        self._gaps += report.follows_gap
        try:
            await call.send_message(encode_report(report))
        except (GRPCError, StreamTerminatedError):
            self._increases.lost()

    async def _keep_stream(self) -> None:
        """Have a stream at the control plane in use, as long as that has the service. For ever."""
        backoff = Backoff()
        while True:
            connected = await self._planes.current.wait_for(self._takes_reports)
            assert connected is not None, "one that takes reports"
            if not await self._stream(connected, backoff) and trio.current_time() - self._rows_at < _UNCERTAIN_SECONDS:
                self._increases.lost()
            if self._planes.current.value is connected:
                await trio.sleep(backoff.next_seconds())

    def _takes_reports(self, connected: Connected | None) -> bool:
        is_usable = connected is not None and connected is not self._without and connected.channel.lost is None
        return is_usable and not self._is_ending

    async def _stream(self, connected: Connected, backoff: Backoff) -> bool:
        """One stream, until it ends or another channel is in use; true if all that was sent on it has arrived."""
        metadata = dict(self._planes.call_metadata())
        self._closed = trio.Event()
        is_whole = False
        try:
            async with connected.channel.request(
                REPORTS_PATH, Cardinality.STREAM_STREAM, bytes, bytes, metadata=metadata
            ) as call:
                await call.send_message(encode_report(TrafficReport((), 0.0, node=self._node)))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._end_when_moved, connected, call, nursery.cancel_scope)
                    is_whole = await self._receive(call, connected, backoff)
                    nursery.cancel_scope.cancel()
        except (GRPCError, StreamTerminatedError):
            pass  # the connection is lost
        finally:
            self._call = None
            self._closed.set()
        return is_whole

    async def _end_when_moved(
        self, connected: Connected, call: ClientCall[bytes, bytes], scope: trio.CancelScope
    ) -> None:
        """End the stream once another channel is in use, and give it up if its end takes long."""
        await self._planes.current.wait_for(lambda now: now is not connected)
        self._call = None
        with suppress(GRPCError, StreamTerminatedError):
            await call.end()
        await trio.sleep(_END_SECONDS)
        scope.cancel()

    async def _receive(self, call: ClientCall[bytes, bytes], connected: Connected, backoff: Backoff) -> bool:
        """Take answers in until the last; true if the control plane ended the stream in order."""
        try:
            while (answer := await call.recv_message()) is not None:
                with suppress(WireError):  # of a later version: the interval stays
                    self._set_interval(read_answer(answer))
                backoff.reset()
                if self._call is None and self._interval.value and self._planes.current.value is connected:
                    self._increases.tell_all()
                    self._call = call
                    self._happened.set()
        except GRPCError as error:
            if error.status is Status.UNIMPLEMENTED:
                self._without = connected
                self._set_interval(0.0)
            return False
        except StreamTerminatedError:
            return False
        return True

    def _set_interval(self, seconds: float) -> None:
        """Between two reports. Where none were wanted, counts before are not known."""
        if seconds and not self._interval.value:
            self._pid, self._was_off = 0, True
        self._interval.set(max(seconds, _LEAST_SECONDS) if seconds else 0.0)
        self._happened.set()
