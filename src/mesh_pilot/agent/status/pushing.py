"""The merged metrics as OTLP, pushed to a receiver: what Envoy, the application and the agent count, each a scope.

A page is read piece by piece, and other tasks run between the pieces: Envoy's may have a hundred thousand lines.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from ssl import SSLContext

import structlog
import trio

from mesh_pilot import __version__
from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.agent.status.exports import MetricsExports
from mesh_pilot.agent.status.samples import Family, Lines
from mesh_pilot.agent.status.scraping import MergedMetrics, ScrapeTarget
from mesh_pilot.base.process_age import process_age
from mesh_pilot.base.reading import as_object
from mesh_pilot.net.otlp.data_points import DataPoints, Starts
from mesh_pilot.net.otlp.push import Hold, MetricsPush, PushStatistics
from mesh_pilot.net.otlp.values import Value

_IDLE = PushStatistics(0, 0, 0, 0, 0.0, "")
_AGENT = "mesh-pilot"
_AT_ONCE = 200
"""Lines that are converted before other tasks have their turn: a few milliseconds."""


class AgentPush:
    """Pushes while ``exports`` names a receiver. State: the current push, and the starts of the pages of others."""

    def __init__(
        self,
        exports: Observable[MetricsExports],
        metrics: MergedMetrics,
        resource: Callable[[], Mapping[str, Value]],
        tls: Callable[[Path | None], SSLContext],
    ) -> None:
        """``resource``: attributes of this workload; ``tls``: for https, by the file of roots."""
        self._exports = exports
        self._metrics = metrics
        self._resource = resource
        self._tls = tls
        self._push: MetricsPush | None = None
        self._starts: dict[str, Starts] = {}
        self._began = time.time() - process_age()

    def __repr__(self) -> str:
        return f"<AgentPush {self._push!r}>"

    def statistics(self) -> PushStatistics:
        return self._push.statistics() if self._push is not None else _IDLE

    async def run(self) -> None:
        """Push forever, to the receiver that is named."""
        while True:
            exports = self._exports.value
            async with trio.open_nursery() as nursery:
                if exports.push is not None:
                    tls = partial(self._tls, exports.roots)
                    self._push = MetricsPush(exports.push, self.collect, tls, log=structlog.get_logger(scope="agent"))
                    nursery.start_soon(self._push.run)
                await self._until_another_than(exports)
                nursery.cancel_scope.cancel()
            self._push = None

    async def _until_another_than(self, exports: MetricsExports) -> None:
        named = exports.push, exports.roots
        await self._exports.wait_for(lambda now: (now.push, now.roots) != named)

    async def collect(self, hold: Hold) -> None:
        """Make the requests of one push."""
        points = DataPoints(self._resource(), time.time(), __version__)
        lines, of, held = Lines(), "", 0

        def keep(bodies: Iterable[bytes]) -> None:
            nonlocal held
            for body in bodies:
                hold(body, points.sent - held)
                held = points.sent

        async def take(target: ScrapeTarget | None, data: bytes) -> None:
            nonlocal lines, of
            page, source = (target.url, target.source) if target is not None else (_AGENT, _AGENT)
            if page != of:
                lines, of = Lines(), page
                start = self._starts.setdefault(page, Starts()) if target is not None else self._began
                keep(points.scope(source, start))
            for number, found in enumerate(lines.read(data)):
                if number % _AT_ONCE == _AT_ONCE - 1:
                    await trio.lowlevel.checkpoint()
                if isinstance(found, Family):
                    keep(points.family(found.name, found.kind, found.help))
                else:
                    keep(points.add(found))
            await trio.lowlevel.checkpoint()

        await self._metrics.collect(take)
        keep(points.end())


def resource_of(node: EnvoyNode) -> dict[str, Value]:
    """The attributes of a workload: OpenTelemetry's names, then those of the labels of Kuma and Istio."""
    labels = {str(name): str(value) for name, value in {**node.labels, **as_object(node.metadata, "LABELS")}.items()}
    names = ("service.istio.io/canonical-name", "app.kubernetes.io/name", "app")
    service = next((labels[name] for name in names if labels.get(name)), node.name)
    versions = ("service.istio.io/canonical-revision", "app.kubernetes.io/version", "version")
    dataplane = f"{node.name}.{node.namespace}"
    found = {
        "service.name": service,
        "service.namespace": node.namespace,
        "service.instance.id": dataplane,
        "service.version": next((labels[name] for name in versions if labels.get(name)), ""),
        "host.name": socket.gethostname(),
        "mesh": _text(node, "MESH_ID"),
        "dataplane": dataplane,
        "namespace": node.namespace,
        "workload": _text(node, "WORKLOAD_NAME") or service,
        "service_account": _text(node, "SERVICE_ACCOUNT"),
        "cluster": _text(node, "CLUSTER_ID"),
        "revision": labels.get("istio.io/rev", ""),
    }
    return {name: value for name, value in found.items() if value}


def _text(node: EnvoyNode, name: str) -> str:
    value = node.metadata.get(name, "")
    return value if isinstance(value, str) else ""
