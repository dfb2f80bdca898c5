"""Metrics pushed at an interval to a receiver that may be away.

Nothing is kept for a receiver that does not answer: the next push has the counters in full. So memory is bounded by one
push, compressed, and an outage costs resolution, no counts.
"""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Awaitable, Callable

import attrs
import trio
from structlog.typing import FilteringBoundLogger

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.net.otlp.client import OtlpAnswer, OtlpClient, compressed, shown_receiver, signal_url
from mesh_pilot.net.rpc.errors import TlsError
from mesh_pilot.net.rpc.rate_limits import LogLimiter

INTERVAL_SECONDS = 60.0
"""OpenTelemetry's default."""
LEAST_SECONDS, MOST_SECONDS = 1.0, 3600.0
"""The shortest and longest interval."""
LIMIT_SECONDS = 300.0
"""The longest wait beyond the interval, while the receiver takes nothing."""
MOST_BYTES = 32 * 1024 * 1024
"""The most bytes of one push, compressed: some million series. The rest is left out."""
_COLLECT_SECONDS = 60.0

Hold = Callable[[bytes, int], None]
"""Takes a request, with the number of its data points."""
Collect = Callable[[Hold], Awaitable[None]]
"""Makes the requests of a push."""


@attrs.frozen
class PushSettings:
    """A receiver of metrics, and how often it gets them."""

    endpoint: str
    """URL of an OTLP receiver over HTTP: ``http://localhost:4318``."""
    interval_seconds: float = INTERVAL_SECONDS

    @property
    def url(self) -> str:
        return signal_url(self.endpoint, "/v1/metrics")


@attrs.frozen
class PushStatistics:
    """Counters of pushed metrics."""

    pushes_total: int
    """Pushes that the receiver took."""
    failures_total: int
    """Pushes that it did not take, or only in part of their requests."""
    points_total: int
    """Data points that it took."""
    points_rejected_total: int
    """Data points that it left out of those, and that were left out for their size."""
    last_success: float
    """Unix time; 0: before the first."""
    last_failure: str
    """Empty once it has taken a push again."""


class MetricsPush:
    """Pushes forever. State: the counts, and whether the last push failed."""

    def __init__(
        self,
        settings: PushSettings,
        collect: Collect,
        tls: Callable[[], ssl.SSLContext],
        *,
        log: FilteringBoundLogger,
        share: Callable[[], float] = random.random,
    ) -> None:
        """``tls`` gives the context for ``https``, or raises TlsError; ``share`` gives a number from 0
        to 1, for the first wait and for retries."""
        self._url = settings.url
        self._interval = settings.interval_seconds
        self._receiver = shown_receiver(settings.url)
        self._collect = collect
        self._tls = tls
        self._share = share
        self._log = log
        self._limiter = LogLimiter(seconds=600.0)
        self._pushes = self._failures = self._points = self._rejected = 0
        self._last_success = 0.0
        self._last_failure = ""

    def __repr__(self) -> str:
        state = f"failing: {self._last_failure}" if self._last_failure else f"{self._pushes} pushes"
        return f"<MetricsPush to {self._receiver}, {state}>"

    def statistics(self) -> PushStatistics:
        return PushStatistics(
            self._pushes, self._failures, self._points, self._rejected, self._last_success, self._last_failure
        )

    async def run(self) -> None:
        """Push until cancelled. Many that start at once begin spread over the interval."""
        await trio.sleep(self._interval * self._share())
        backoff = Backoff(self._interval, LIMIT_SECONDS, self._share)
        while True:
            began = trio.current_time()
            answer = await self._push()
            wait = self._interval - (trio.current_time() - began)
            if answer.reason:
                wait = max(wait, 0.0) + max(answer.wait_seconds, backoff.next_seconds())
            else:
                backoff.reset()
            await trio.sleep(max(wait, 0.0))

    async def _push(self) -> OtlpAnswer:
        """One push; the last answer to its requests."""
        # All is collected before the first is sent: whoever is asked does not wait for a slow receiver.
        held: list[tuple[bytes, int]] = []
        left_out = size = 0

        def hold(body: bytes, points: int) -> None:
            nonlocal left_out, size
            if size >= MOST_BYTES:
                left_out += points
                return
            held.append((compressed(body), points))
            size += len(held[-1][0])

        answer = OtlpAnswer("the metrics were not collected in time")
        with trio.move_on_after(_COLLECT_SECONDS):
            await self._collect(hold)
            answer = OtlpAnswer()
        if not answer.reason:
            answer = await self._send(held)
        self._note(answer, left_out)
        return answer

    async def _send(self, held: list[tuple[bytes, int]]) -> OtlpAnswer:
        answer, rejected, why = OtlpAnswer(), 0, ""
        try:
            tls = self._tls() if self._url.startswith("https:") else None
        except TlsError as error:
            return OtlpAnswer(str(error))
        async with OtlpClient(self._url, tls) as client:
            for body, points in held:
                answer = await client.post(body, is_gzip=True)
                if answer.reason:
                    break  # what follows would fare the same
                self._points += max(0, points - answer.rejected)
                rejected, why = rejected + answer.rejected, why or answer.why_rejected
        return attrs.evolve(answer, rejected=rejected, why_rejected=why)

    def _note(self, answer: OtlpAnswer, left_out: int) -> None:
        self._rejected += answer.rejected + left_out
        now = trio.current_time()
        if answer.reason:
            self._failures += 1
            self._last_failure = answer.reason
            if self._limiter.admit("failed", now) is not None:
                self._log.warning(
                    "metrics not pushed",
                    receiver=self._receiver,
                    reason=answer.reason,
                    effect="the next push has the counters in full",
                )
            return
        if self._last_failure:
            self._log.info("metrics are pushed again", receiver=self._receiver)
            self._last_failure = ""
        self._pushes += 1
        self._last_success = time.time()
        lost = {"data_points": answer.rejected, "reason": answer.why_rejected} if answer.rejected else {}
        if left_out:
            lost = {"data_points": left_out, "reason": f"a push has at most {MOST_BYTES >> 20} MiB"}
        if lost and self._limiter.admit("rejected", now) is not None:
            self._log.warning("metrics left out of a push", receiver=self._receiver, **lost)
