"""The merged page over mutual TLS, on a port that strangers may reach.

The agent ends TLS itself, not Envoy: so the page is there when Envoy is not, which is when it is wanted most, and the
port has the limits of all ports of ours. A stranger costs one of its connections for the time of a handshake, and at
the limit makes room for others first.
"""

from __future__ import annotations

import attrs
import structlog
import trio

from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.identity.identity import WorkloadIdentity
from mesh_pilot.agent.status.asgi import GET, METRICS_PATHS, Receive, Send, answer, answer_method, answer_metrics
from mesh_pilot.agent.status.exports import MetricsExports
from mesh_pilot.agent.status.scraping import MergedMetrics
from mesh_pilot.base.backoff import Backoff
from mesh_pilot.net.http.connection import PEER_IDENTITIES, HttpLimits, Message
from mesh_pilot.net.http.server import HttpServer
from mesh_pilot.net.rpc import AddressError, TlsError, open_listeners
from mesh_pilot.net.rpc.rate_limits import LogLimiter

log = structlog.get_logger(scope="agent")

_LIMITS = HttpLimits(connections=50, head_bytes=8 * 1024, body_bytes=0)
_SHOWN = 200


@attrs.frozen
class SecureMetricsStatistics:
    """Numbers of the port."""

    port: int
    """0: it is off."""
    is_serving: bool
    reason: str
    """Why it does not serve though there is one."""
    scrapes_total: int
    refused_total: int
    """Requests of workloads that are not among the principals."""
    failed_handshakes_total: int
    """Connections without a certificate of the mesh, without TLS, or too slow; and what is not a request."""
    connections_open: int
    connections_displaced_total: int
    """Connections closed for others at the limit."""


class SecureMetrics:
    """Serves the port while ``exports`` names one. State: the counts, and the server of the port."""

    def __init__(self, exports: Observable[MetricsExports], metrics: MergedMetrics, identity: WorkloadIdentity) -> None:
        self._exports = exports
        self._metrics = metrics
        self._identity = identity
        self._server: HttpServer | None = None
        self._is_serving = False
        self._reason = ""
        self._scrapes = self._refused = self._failed = self._displaced = 0
        self._limiter = LogLimiter(seconds=600.0)

    def __repr__(self) -> str:
        return f"<SecureMetrics on port {self._exports.value.port}{' serving' if self._is_serving else ''}>"

    def statistics(self) -> SecureMetricsStatistics:
        own = self._server.statistics() if self._server is not None else None
        return SecureMetricsStatistics(
            port=self._exports.value.port,
            is_serving=self._is_serving,
            reason=self._reason,
            scrapes_total=self._scrapes,
            refused_total=self._refused,
            failed_handshakes_total=self._failed + (own.malformed + own.timeouts if own else 0),
            connections_open=own.connections_open if own else 0,
            connections_displaced_total=self._displaced + (own.displaced + own.refused if own else 0),
        )

    async def run(self) -> None:
        """Serve the port that is named, forever."""
        while True:
            port = self._exports.value.port
            async with trio.open_nursery() as nursery:
                if port:
                    nursery.start_soon(self._keep_serving, port)
                await self._until_another_than(port)
                nursery.cancel_scope.cancel()

    async def _until_another_than(self, port: int) -> None:
        await self._exports.wait_for(lambda now: now.port != port)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        callers: tuple[str, ...] = scope["extensions"].get(PEER_IDENTITIES, ())
        principals = self._exports.value.principals
        if not callers or (principals is not None and principals.isdisjoint(callers)):
            self._refused += 1
            named = ", ".join(callers)[:_SHOWN] or "a certificate without a SPIFFE id"
            if self._limiter.admit(callers, trio.current_time()) is not None:
                log.warning("metrics refused", caller=named, reason="it is not among the principals")
            await answer(send, 403, f"{named} is not among the principals that may read metrics here\n")
        elif scope["path"] not in METRICS_PATHS:
            await answer(send, 404, f"no such page: metrics are at {METRICS_PATHS[1]}\n")
        elif scope["method"] not in GET:
            await answer_method(send, GET)
        else:
            self._scrapes += 1
            await answer_metrics(self._metrics, scope, send)

    async def _keep_serving(self, port: int) -> None:
        backoff = Backoff()
        try:
            while True:
                self._waits("there is no certificate yet")
                await self._identity.material.wait_for(lambda held: held is not None)
                try:
                    tls = self._identity.server_tls()
                    listeners = await open_listeners(f":{port}")
                except (AddressError, TlsError) as error:
                    self._waits(str(error))
                    if self._limiter.admit("port", trio.current_time()) is not None:
                        advice = "free the port, or choose another; it is tried again"
                        log.error("metrics are not served over TLS", port=port, reason=str(error), advice=advice)
                    await trio.sleep(backoff.next_seconds())
                    continue
                self._server = server = HttpServer(self, port="secure metrics", limits=_LIMITS, tls=tls)
                server.keeps_connections = False  # each scrape is judged by the certificates of now
                self._is_serving, self._reason = True, ""
                log.info("metrics are served over TLS", port=port)
                await server.serve(listeners, trio.Event(), grace_seconds=0)
        finally:
            self._waits("")
            if self._server is not None:
                own = self._server.statistics()
                self._failed += own.malformed + own.timeouts
                self._displaced += own.displaced + own.refused
                self._server = None

    def _waits(self, reason: str) -> None:
        self._is_serving, self._reason = False, reason
