"""Workloads that get no requests before their first report of health, and whose agents may never send one.

Our agent runs the probe of a WorkloadGroup, Istio's agent only the ``readinessProbe`` of its ProxyConfig. Without
that probe Istio's agent never reports, and all requests to the workload fail.
"""

from __future__ import annotations

from collections.abc import Iterator

import structlog
import trio

from mesh_pilot.model.config import ConfigKey
from mesh_pilot.replicas.registration.records import RegisteredWorkload

log = structlog.get_logger(scope="registration")

PATIENCE_SECONDS = 30.0
"""The time within which an agent that checks its application has reported once."""


class AwaitedReports:
    """Mutable state: the workloads that have not reported since they connected, and since when."""

    def __init__(self) -> None:
        self._waiting: dict[ConfigKey, tuple[RegisteredWorkload, float]] = {}
        self._news = trio.Event()

    def __repr__(self) -> str:
        return f"<AwaitedReports of {len(self._waiting)} workloads>"

    def joined(self, workload: RegisteredWorkload) -> None:
        """A workload has connected that becomes an endpoint with its first good report."""
        self._waiting.setdefault(workload.key, (workload, trio.current_time()))
        self._news.set()

    def done(self, key: ConfigKey) -> None:
        """It has reported, or has left."""
        self._waiting.pop(key, None)

    def take_overdue(self, now: float) -> Iterator[RegisteredWorkload]:
        """The workloads that have been silent for too long, each once."""
        for key, (workload, since) in list(self._waiting.items()):
            if now - since >= PATIENCE_SECONDS:
                del self._waiting[key]
                yield workload

    async def run(self) -> None:
        """Log those that stay silent, until cancelled."""
        while True:
            self._news = trio.Event()
            if not self._waiting:
                await self._news.wait()
            await trio.sleep(PATIENCE_SECONDS)
            for workload in self.take_overdue(trio.current_time()):
                log.warning(
                    "workload gets no requests: its agent has not reported its health",
                    entry=f"{workload.key.namespace}/{workload.key.name}",
                    group=workload.group,
                    advice="give the agent a readinessProbe in its PROXY_CONFIG, or remove the group's probe",
                )
