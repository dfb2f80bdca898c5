"""Probes of the application that others make through the agent: ``/app-health/NAME/livez``, ``readyz``, ``startupz``.

So are the lifecycle handlers of a Pod's containers: ``/app-lifecycle/NAME/prestopz``, ``poststartz``.

Whoever probes an application from outside (Consul's agent, a monitor, a kubelet) has no certificate of the mesh, so
Envoy would refuse it under mutual TLS. The agent's port is not redirected into Envoy, and the agent asks for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs
import structlog
import trio

from mesh_pilot.agent.health.checks import CheckFailure, CheckRunner, HttpAnswer
from mesh_pilot.agent.health.probe import ExecCheck, HttpCheck, ProbeError, ProbeSettings, parse_probe

log = structlog.get_logger(scope="agent")

PREFIX = "/app-health/"
_PATH = re.compile(r"/app-health/[^/]+/(livez|readyz|startupz)|/app-lifecycle/[^/]+/(prestopz|poststartz)")
_AT_ONCE = 20
"""Probes at a time; others wait, within their own timeouts."""


@attrs.frozen
class AppProbeStatistics:
    """Counters of the probes that others made through the agent."""

    probes: int
    answers_total: Mapping[str, int]
    """Answers by result: ``healthy`` or ``unhealthy``."""


class AppProbes:
    """The probes by path. Those that cannot be run have a line in the log, and are not served."""

    def __init__(self, probes: Mapping[str, Any], runner: CheckRunner, status_port: int) -> None:
        self._probes = dict(_parsed(probes))
        self._runner = runner
        self._status_port = status_port
        self._places = trio.CapacityLimiter(_AT_ONCE)
        self._answers = {"healthy": 0, "unhealthy": 0}

    def statistics(self) -> AppProbeStatistics:
        return AppProbeStatistics(len(self._probes), dict(self._answers))

    def __contains__(self, path: str) -> bool:
        return path in self._probes

    async def answer(self, path: str, headers: Mapping[str, str]) -> HttpAnswer:
        """The application's answer to the probe of a path: its status over HTTP, else 200 or 500.

        ``headers`` are those of the request; an application over HTTP gets them.
        """
        probe = self._probes[path]
        seconds = probe.timeout
        answer = HttpAnswer(500, f"{probe.check.default_name}: nothing within {seconds:g} s\n".encode())
        with trio.move_on_after(seconds):
            async with self._places:
                if isinstance(probe.check, HttpCheck):
                    answer = await self._get(probe.check, headers)
                else:
                    health = await self._runner.run(probe.check, seconds)
                    answer = HttpAnswer(200) if health.is_healthy else HttpAnswer(500, f"{health.reason}\n".encode())
        self._answers["healthy" if 200 <= answer.status < 400 else "unhealthy"] += 1
        return answer

    async def _get(self, check: HttpCheck, headers: Mapping[str, str]) -> HttpAnswer:
        passed = dict(headers)
        host = passed.get("host", "")
        if host.endswith(ours := f":{self._status_port}"):
            host = f"{host.removesuffix(ours)}:{check.port}"  # as the application knows itself
        own = {name.lower() for name, _ in check.headers}
        if host and "host" not in own:
            check = attrs.evolve(check, headers=(*check.headers, ("host", host)))
        try:
            return await self._runner.get(check, passed)
        except CheckFailure as failure:
            return HttpAnswer(500, f"{check.default_name}: {failure}\n".encode())


def _parsed(probes: Mapping[str, Any]) -> list[tuple[str, ProbeSettings]]:
    found = []
    for key, settings in probes.items():
        path = key if key.startswith("/") else PREFIX + key
        try:
            if not _PATH.fullmatch(path):
                raise ProbeError(
                    f"{key} is not a path of the form /app-health/NAME/livez, .../readyz or .../startupz, nor"
                    " /app-lifecycle/NAME/prestopz or .../poststartz"
                )
            probe = parse_probe(settings, key)
            if isinstance(probe.check, ExecCheck):
                raise ProbeError(f"{key} has a command; httpGet, tcpSocket and grpc can be served")
            found.append((path, probe))
        except ProbeError as error:
            log.warning("bad probe", of="ISTIO_KUBE_APP_PROBERS", reason=str(error), effect="the path answers 404")
    return found
