"""The observer of one stream: writes the log, and tells the registry and those who learn of answers and workloads."""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import RESOURCE_TYPES
from mesh_pilot.xds.ads.context import SessionContext
from mesh_pilot.xds.ads.messages import Nack, Response
from mesh_pilot.xds.ads.status import Connection
from mesh_pilot.xds.ads.stream import StreamObserver
from mesh_pilot.xds.ads.waits import Convergence, NackPauses
from mesh_pilot.xds.ads.warming_follower import WarmingFollower

log = structlog.get_logger(scope="xds")

MAX_NAMES_LOGGED = 10
"""Resources and configs in a log line about a NACK."""

MAX_REASON_LOGGED = 2000
"""Characters of the client's reason in it."""


class SessionObserver(StreamObserver):
    """Adds the times that the stream does not know. State: the fields of its log lines."""

    def __init__(
        self,
        context: SessionContext,
        connection: Connection,
        warming: WarmingFollower,
        pauses: NackPauses,
        convergence: Convergence,
        release: Callable[[], None],
    ) -> None:
        """``release`` ends the pauses, as there is something new for the client."""
        self.log = log.bind(stream=connection.id, peer=connection.peer)
        self._context = context
        self._answers = context.answers
        self._connection = connection
        self._warming = warming
        self._pauses = pauses
        self._convergence = convergence
        self._release = release
        self._began = trio.current_time()

    def connected(self, proxy: Proxy) -> None:
        connection = self._connection
        self.log = self.log.bind(proxy=proxy.id)
        connection.connected(proxy)
        if proxy.agent:
            self._log_presence("agent connected", version=proxy.agent, variant=str(connection.variant))
            return
        assert connection.stream is not None
        self._answers.joined(connection.id, proxy, connection.stream, self._release)
        self._log_presence("proxy connected", version=proxy.version, variant=str(connection.variant))

    def disconnected(self) -> None:
        """The stream ended: write it to the log, if there ever was a proxy."""
        self._answers.left(self._connection.id)
        if self._context.registry.observer is not None:
            self._context.registry.observer.left(self._connection.id, trio.current_time())
        if self._connection.proxy is not None:
            event = "agent disconnected" if self._connection.is_agent else "proxy disconnected"
            self._log_presence(event, after=round(trio.current_time() - self._began, 3))

    def _log_presence(self, event: str, **fields: object) -> None:
        """Write a line at ``info``, or at ``debug`` if there are too many."""
        suppressed = self._context.presence_log.admit(event, trio.current_time())
        if suppressed is None:
            self.log.debug(event, **fields)
        else:
            self.log.info(event, **fields, **({"suppressed": suppressed} if suppressed else {}))

    def sent(self, response: Response) -> None:
        self._connection.sent(response)
        self._warming.sent(response)
        self._answers.sent(self._connection.id, response.type_url)
        self.log.debug(
            "push",
            type=RESOURCE_TYPES[response.type_url].short,
            resources=len(response.resources),
            removed=len(response.removed),
            version=response.version,
        )

    def acked(self, type_url: str, nonce: str, version: str) -> None:
        self._pauses.accepted(type_url)
        self._connection.acked(type_url, nonce, version)
        if self._context.registry.observer is not None:
            self._context.registry.observer.answered(self._connection.id, type_url, trio.current_time(), None)
        self._answers.accepted(self._connection.id, type_url)
        self.log.debug("ACK", type=RESOURCE_TYPES[type_url].short, version=version)

    def warms(self, report: str | None) -> None:
        self._warming.reported(report)

    def reported(self, error: str | None) -> None:
        self._context.workloads.reported(self._connection.id, error)

    def ignored(self, type_url: str) -> None:
        self._context.registry.totals.stale_requests[type_url] += 1

    def unserved(self, type_url: str) -> None:
        write = self.log.info if self._context.registry.unserved(type_url) else self.log.debug
        write("type not served: answered with no resources, the stream continues", type=type_url)

    def rejected(self, nack: Nack) -> None:
        self._connection.rejected(nack)
        if self._context.registry.observer is not None:
            self._context.registry.observer.answered(
                self._connection.id, nack.type_url, trio.current_time(), nack.reason
            )
        self._convergence.refused()
        count = self._pauses.refused(nack.type_url)
        if not self._answers.refused(self._connection.id, nack):
            self._pauses.pause(nack.type_url, count)
        suppressed = self._context.nack_log.admit((nack.proxy.id, nack.type_url, nack.names[:1]), trio.current_time())
        if suppressed is None:
            return
        more = {"suppressed": suppressed} if suppressed else {}
        self.log.warning(
            "NACK: what the proxy had before is kept",
            type=RESOURCE_TYPES[nack.type_url].short,
            resources=list(nack.names[:MAX_NAMES_LOGGED]),
            reason=nack.reason[:MAX_REASON_LOGGED],
            configs=[str(key) for key in nack.configs[:MAX_NAMES_LOGGED]],
            in_a_row=count,
            **more,
        )
