"""Spans as OTLP over HTTP, in JSON (OpenTelemetry, "OTLP Specification").

OpenTelemetry's SDK is not used: its exporter has a thread and an HTTP client of its own, and threads do not survive the
fork that makes workers. What is needed of the protocol is one message, which any receiver takes as JSON.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import attrs
import httpx
import structlog
import trio

from mesh_pilot import __version__
from mesh_pilot.model.json import Json
from mesh_pilot.net.rpc import http_client_tls
from mesh_pilot.net.rpc.rate_limits import LogLimiter
from mesh_pilot.ops.tracing.settings import TraceSettings
from mesh_pilot.ops.tracing.traces import RevisionTraces, Span, Value, shown_text
from mesh_pilot.world.reducer import Published
from mesh_pilot.xds.ads.status import StatusRegistry

log = structlog.get_logger(scope="ops")

EVERY_SECONDS = 1.0
"""How often finished traces are looked for, while there are open ones."""

TIMEOUT_SECONDS = 10.0

SPANS_AT_ONCE = 500

_HEADERS = {"content-type": "application/json"}

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
        self._receiver = urlsplit(settings.url).netloc.rpartition("@")[2]  # without a password
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
        verify = http_client_tls() if self._url.startswith("https:") else False
        async with httpx.AsyncClient(timeout=None, trust_env=False, verify=verify) as client:
            while True:
                await self._news.wait()
                self._news = trio.Event()
                while not self.traces.is_idle:
                    await trio.sleep(EVERY_SECONDS)
                    waiting = {each.revision for each in self._status.revisions.recent() if not each.is_over}
                    spans = self.traces.finished(trio.current_time(), waiting)
                    for start in range(0, len(spans), SPANS_AT_ONCE):
                        await self._send(client, spans[start : start + SPANS_AT_ONCE])

    async def _send(self, client: httpx.AsyncClient, spans: Sequence[Span]) -> None:
        body = encoded(spans, time.time() - trio.current_time())
        reason = "no answer in time"
        with trio.move_on_after(TIMEOUT_SECONDS):
            reason = await self._post(client, body)
        if reason:
            self._lost += len(spans)
            if self._limiter.admit("lost", trio.current_time()) is not None:
                log.warning("traces lost", receiver=self._receiver, spans=len(spans), reason=reason)
            return
        self._exported += len(spans)
        for span in spans:
            if not span.parent_id:
                log.debug("trace exported", trace_id=span.trace_id, revision=span.attributes["mesh_pilot.revision"])

    async def _post(self, client: httpx.AsyncClient, body: bytes) -> str:
        """Send spans; returns the reason why the receiver has not taken them, or an empty string."""
        try:
            # The answer's body is not read: it may be of any length.
            async with client.stream("POST", self._url, content=body, headers=_HEADERS) as reply:
                return "" if reply.is_success else f"status {reply.status_code}"
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # UnicodeError: a name that DNS cannot have
            return str(error) or type(error).__name__


def encoded(spans: Sequence[Span], offset: float) -> bytes:
    """An ``ExportTraceServiceRequest``; ``offset`` added to Trio's clock is Unix time."""
    resource: dict[str, Value] = {
        "service.name": "mesh-pilot",
        "service.version": __version__,
        "service.instance.id": socket.gethostname(),
    }
    scope = {"scope": {"name": "mesh-pilot"}, "spans": [_span(span, offset) for span in spans]}
    whole = {"resourceSpans": [{"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scope]}]}
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
        "attributes": _attributes(span.attributes),
    }
    if span.parent_id:
        found["parentSpanId"] = span.parent_id
    if span.sent_at is not None:
        found["events"] = [{"timeUnixNano": at(span.sent_at), "name": "sent"}]
    if span.error:
        found["status"] = {"code": _ERROR, "message": shown_text(span.error)}
    return found


def _attributes(values: Mapping[str, Value]) -> list[Json]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Value) -> dict[str, Json]:
    if isinstance(value, str):
        return {"stringValue": shown_text(value)}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"arrayValue": {"values": [{"stringValue": shown_text(each)} for each in value]}}
