"""Spans as OTLP over HTTP, in JSON: one message, which any receiver takes (OpenTelemetry, "OTLP Specification")."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

import attrs
import structlog
import trio

from mesh_pilot.model.json import Json
from mesh_pilot.net.otlp.client import OtlpClient, shown_receiver
from mesh_pilot.net.otlp.values import attributes
from mesh_pilot.net.rpc.rate_limits import LogLimiter
from mesh_pilot.ops.tracing.settings import TraceSettings
from mesh_pilot.ops.tracing.traces import RevisionTraces, Span, Value, shown_text
from mesh_pilot.world.reducer import Published
from mesh_pilot.xds.ads.status import StatusRegistry

log = structlog.get_logger(scope="ops")

EVERY_SECONDS = 1.0
"""The interval at which finished traces are looked for, while there are open ones."""

SPANS_AT_ONCE = 500

_INTERNAL, _ERROR = 1, 2
"""The kind of all spans; the status code of those that failed."""


@attrs.frozen
class TraceStatistics:
    exported: int
    """Spans that the receiver took."""
    lost: int
    """Spans that it did not take."""


class TraceExporter:
    """Sends the traces of a control plane. State: the open traces, the counts, and whether there may be any."""

    def __init__(self, settings: TraceSettings, status: StatusRegistry, *, leads: bool) -> None:
        """``leads``: this is the worker that publishes."""
        self.traces = RevisionTraces(settings, leads=leads)
        self._url = settings.url
        self._settings = settings.receiver
        self._receiver = shown_receiver(settings.url)
        self._status = status
        self._news = trio.Event()
        self._exported = 0
        self._lost = 0
        self._limiter = LogLimiter()

    def __repr__(self) -> str:
        return f"<TraceExporter to {self._receiver}, {self._exported} spans exported, {self._lost} lost>"

    def statistics(self) -> TraceStatistics:
        return TraceStatistics(self._exported, self._lost + self.traces.lost)

    def published(self, published: Published) -> None:
        """A revision was published."""
        self.traces.published(published)
        self._news.set()

    async def run(self) -> None:
        """Send traces until cancelled; those that are not sent by then are lost."""
        tls = self._settings.tls() if self._url.startswith("https:") else None
        async with OtlpClient(self._url, tls) as client:
            while True:
                await self._news.wait()
                self._news = trio.Event()
                while not self.traces.is_idle:
                    await trio.sleep(EVERY_SECONDS)
                    waiting = {each.revision for each in self._status.revisions.recent() if not each.is_over}
                    spans = self.traces.finished(trio.current_time(), waiting)
                    for start in range(0, len(spans), SPANS_AT_ONCE):
                        await self._send(client, spans[start : start + SPANS_AT_ONCE])

    async def _send(self, client: OtlpClient, spans: Sequence[Span]) -> None:
        body = encoded(spans, time.time() - trio.current_time(), self._settings.resource())
        answer = await client.post(body)
        lost = len(spans) if answer.reason else min(answer.rejected, len(spans))
        if lost:
            self._lost += lost
            if self._limiter.admit("lost", trio.current_time()) is not None:
                reason = answer.reason or answer.why_rejected
                log.warning("traces lost", receiver=self._receiver, spans=lost, reason=reason)
        self._exported += len(spans) - lost
        if answer.reason:
            return
        for span in spans:
            if not span.parent_id:
                log.debug("trace exported", trace_id=span.trace_id, revision=span.attributes["mesh_pilot.revision"])


def encoded(spans: Sequence[Span], offset: float, resource: Mapping[str, Value]) -> bytes:
    """An ``ExportTraceServiceRequest``; ``offset`` added to Trio's clock is Unix time."""
    scope = {"scope": {"name": "mesh-pilot"}, "spans": [_span(span, offset) for span in spans]}
    whole = {"resourceSpans": [{"resource": {"attributes": attributes(resource)}, "scopeSpans": [scope]}]}
    return json.dumps(whole).encode()


def _span(span: Span, offset: float) -> dict[str, Json]:
    def at(seconds: float) -> str:
        return str(int((seconds + offset) * 1e9))

    found: dict[str, Json] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": span.name,
        "kind": _INTERNAL,
        "startTimeUnixNano": at(span.began),
        "endTimeUnixNano": at(span.ended),
        "attributes": [*attributes(_shown(span.attributes))],
    }
    if span.parent_id:
        found["parentSpanId"] = span.parent_id
    if span.sent_at is not None:
        found["events"] = [{"timeUnixNano": at(span.sent_at), "name": "sent"}]
    if span.error:
        found["status"] = {"code": _ERROR, "message": shown_text(span.error)}
    return found


def _shown(values: Mapping[str, Value]) -> dict[str, Value]:
    """Attributes whose texts are cut."""

    def shown(value: Value) -> Value:
        if isinstance(value, str):
            return shown_text(value)
        return tuple(map(shown_text, value)) if isinstance(value, tuple) else value

    return {key: shown(value) for key, value in values.items()}
