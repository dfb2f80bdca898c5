"""The agent's HTTP port, 15020: readiness, merged metrics, rewritten probes, and pages for whoever looks for a fault.

Readiness, metrics and probes are for everyone who can connect. What changes something, or tells more (names of the
mesh, paths of files), is for programs on this machine: those that come from the loopback to the loopback. 127.0.0.6 is
none of them, because Envoy forwards strangers' requests from there.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime

import structlog
import trio

from mesh_pilot import __version__
from mesh_pilot.agent.base.handover import Handover
from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.bootstrap.configured import LOCAL_METRICS
from mesh_pilot.agent.health.checks import ApplicationAddress, CheckRunner
from mesh_pilot.agent.relay.subscriptions import NameRow
from mesh_pilot.agent.settings import AgentError, AgentSettings
from mesh_pilot.agent.status.agent_metrics import Parts, fields_of
from mesh_pilot.agent.status.app_probes import PREFIX, AppProbes
from mesh_pilot.agent.status.asgi import (
    GET,
    METRICS_PATHS,
    Receive,
    Send,
    answer,
    answer_method,
    answer_metrics,
    headers_of,
)
from mesh_pilot.agent.status.exports import MetricsExports
from mesh_pilot.agent.status.scraping import MergedMetrics, ScrapeError, ScrapeTarget, application_targets
from mesh_pilot.model.proxy import NodeType
from mesh_pilot.net.http.connection import HttpLimits, Message
from mesh_pilot.net.http.server import HttpServer
from mesh_pilot.net.rpc import AddressError, open_listeners

log = structlog.get_logger(scope="agent")

_GRACE_SECONDS = 2.0
_LIMITS = HttpLimits(connections=100)
_PASSED_BY = ("127.0.0.6", "::6")
_JSON = "application/json"
_DEBUG_INDEX = """\
/debug/state           what every part of the agent says, as text
/debug/statistics      the same in JSON
/debug/ndsz            the table of names, as the control plane sent it, in JSON
"""


class StatusServer:
    """Serves the port. ``parts`` are asked for their statistics when somebody looks."""

    def __init__(
        self,
        settings: AgentSettings,
        parts: Parts,
        *,
        ready: Observable[bool],
        name_table: Observable[dict[str, NameRow] | None],
        quit: Callable[[], None],
        why_not_ready: Callable[[], str] = lambda: "Envoy is not ready",
        metrics_filter: Callable[[], str] = lambda: "",
        exports: Callable[[], MetricsExports] = MetricsExports,
    ) -> None:
        """``ready`` and ``why_not_ready``: of Envoy. ``quit`` ends the agent as SIGTERM does. ``metrics_filter``: see
        ``MergedMetrics``. ``exports``: where metrics may go."""
        self._settings = settings
        self._ready = ready
        self._name_table = name_table
        self._quit = quit
        self._why_not_ready = why_not_ready
        self._was_ready = False
        self.is_draining = False
        """Set once the agent is about to end: not ready any more."""
        self.stop = trio.Event()
        self.stopped = trio.Event()
        runner = CheckRunner(ApplicationAddress.of(settings.node))
        self._probes = AppProbes(settings.app_probers, runner, settings.ports.status)
        self._server = HttpServer(self, port="status", limits=_LIMITS)
        self._parts = {**parts, "http": self._server.statistics, "app_probes": self._probes.statistics}
        admin = f"127.0.0.1:{settings.ports.admin}"
        self._exports = exports
        self.metrics = MergedMetrics(admin, self._scraped(), self._parts, metrics_filter)
        self._parts["metrics"] = self.metrics.statistics

    def keep_connections(self, keeps: bool) -> None:
        """True if connections outlive an answer; not so shortly before the end, so that no request meets their end."""
        self._server.keeps_connections = keeps

    async def open(self, handover: Handover | None = None) -> Sequence[trio.SocketListener]:
        """Listen, or take what the version before listened on. Raises AgentError where the port is taken."""
        address = f":{self._settings.ports.status}"
        try:
            return await (handover.listeners("status", address) if handover else open_listeners(address))
        except AddressError as error:
            raise AgentError(
                f"{error}; another agent may run here: stop it, or choose another with --status-port"
            ) from None

    async def run(self, listeners: Sequence[trio.SocketListener]) -> None:
        """Answer until cancelled, or until ``stop``, and what was asked before that; the listeners are closed then."""
        await self._server.serve(listeners, self.stop, grace_seconds=_GRACE_SECONDS)
        self.stopped.set()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        path, method = scope["path"], scope["method"]
        handler = _PAGES.get(path)
        if path in self._probes:
            handler = GET, StatusServer._app_health
        if handler is None:
            text = "no such page\n"
            if path.startswith(PREFIX):
                text = f"no probe of this path is in ISTIO_KUBE_APP_PROBERS: {path}\n"
            await answer(send, 404, text)
            return
        methods, page = handler
        if page in _LOCAL and not _is_local(scope):
            await answer(send, 403, "only for programs on this machine, at 127.0.0.1 or ::1\n")
        elif method not in methods:
            await answer_method(send, methods)
        else:
            await page(self, scope, send)

    # -- pages

    async def _readiness(self, scope: Message, send: Send) -> None:
        reason = "draining" if self.is_draining else ""
        if not (reason or self._ready.value):
            reason = self._why_not_ready() or "Envoy is not ready"
        if bool(reason) is self._was_ready:
            self._was_ready = not reason
            if reason:
                log.warning("proxy not ready", reason=reason)
            else:
                log.info("proxy ready")
        await answer(send, 503 if reason else 200, f"{reason or 'ready'}\n")

    async def _merged_metrics(self, scope: Message, send: Send) -> None:
        if self._exports().local_only and not _is_local(scope):
            await answer(send, 403, f"only for programs on this machine, at 127.0.0.1 or ::1 ({LOCAL_METRICS})\n")
        else:
            await answer_metrics(self.metrics, scope, send)

    async def _app_health(self, scope: Message, send: Send) -> None:
        found = await self._probes.answer(scope["path"], headers_of(scope))
        await answer(send, found.status, found.body)

    async def _quitquitquit(self, scope: Message, send: Send) -> None:
        await answer(send, 200, "OK")
        log.info("asked to quit", by="/quitquitquit")
        self._quit()

    async def _debug(self, scope: Message, send: Send) -> None:
        await answer(send, 200, _DEBUG_INDEX)

    async def _state(self, scope: Message, send: Send) -> None:
        node = self._settings.node
        lines = [f"mesh-pilot agent {__version__}, {node.id}"]
        for part, statistics in self._all_statistics().items():
            lines.append(f"\n{part}")
            fields = statistics.items() if isinstance(statistics, dict) else [("value", statistics)]
            lines += [f"  {name}: {value if isinstance(value, str) else json.dumps(value)}" for name, value in fields]
        await answer(send, 200, "\n".join(lines) + "\n")

    async def _statistics(self, scope: Message, send: Send) -> None:
        await answer(send, 200, json.dumps(self._all_statistics(), indent=1) + "\n", _JSON)

    async def _names(self, scope: Message, send: Send) -> None:
        names = self._name_table.value
        if names is None:
            await answer(send, 404, "{}", _JSON)
            return
        # The JSON form of Istio's NameTable.
        table = {
            host: {"ips": row.addresses, "registry": row.registry, "shortname": row.short_name}
            | {"namespace": row.namespace}
            for host, row in names.items()
        }
        await answer(send, 200, json.dumps({"table": table}) + "\n", _JSON)

    def _all_statistics(self) -> dict[str, object]:
        found: dict[str, object] = {}
        for name, statistics in self._parts.items():
            try:
                found[name] = _plain(statistics())
            except Exception as error:  # a part's error hides no other part
                found[name] = f"cannot be told: {type(error).__name__} {error}"
        return found

    def _scraped(self) -> Sequence[ScrapeTarget]:
        # Gateways have no application next to them; those that forward to 15020 must not show one.
        if self._settings.node.type is not NodeType.SIDECAR:
            return ()
        try:
            return application_targets(self._settings.scrape, self._settings.ports)
        except ScrapeError as error:
            effect = "the page has the metrics of Envoy and the agent only"
            log.warning("bad scrape settings", reason=str(error), effect=effect)
            return ()


_PAGES: Mapping[str, tuple[tuple[str, ...], Callable[[StatusServer, Message, Send], Awaitable[None]]]] = {
    "/healthz/ready": (GET, StatusServer._readiness),
    **dict.fromkeys(METRICS_PATHS, (GET, StatusServer._merged_metrics)),
    "/quitquitquit": (("POST",), StatusServer._quitquitquit),
    "/debug": (GET, StatusServer._debug),
    "/debug/": (GET, StatusServer._debug),
    "/debug/state": (GET, StatusServer._state),
    "/debug/statistics": (GET, StatusServer._statistics),
    "/debug/ndsz": (GET, StatusServer._names),
}
_LOCAL = (
    StatusServer._quitquitquit,
    StatusServer._debug,
    StatusServer._state,
    StatusServer._statistics,
    StatusServer._names,
)
"""Pages for programs on this machine."""


def _is_local(scope: Message) -> bool:
    """True for a client on this machine that is not a browser on another's behalf."""
    client, server, headers = scope["client"], scope["server"], headers_of(scope)
    if client is None or server is None or client[0] in _PASSED_BY or "origin" in headers:
        return False
    # A page in a browser here may have a name that leads here, too; it cannot have an address for its name.
    if not _is_address_or_localhost(headers.get("host", "")):
        return False
    return all(ipaddress.ip_address(name[0].partition("%")[0]).is_loopback for name in (client, server))


def _is_address_or_localhost(authority: str) -> bool:
    host = authority.rpartition("]")[0].removeprefix("[") or authority.partition(":")[0]
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


def _plain(value: object) -> object:
    """A value of statistics as JSON can have it."""
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    if isinstance(value, Mapping) or hasattr(value, "__attrs_attrs__"):
        return {name: _plain(each) for name, each in fields_of(value)}
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return [_plain(each) for each in value]
    return str(value)
