"""Runs the probes of the application, and says what they found.

The probes are those of the settings, else the one in the control plane's ProxyConfig; without any, the application
counts as healthy. A check fails while Envoy is no longer ready, as in Istio's agent: no client reaches the application.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import attrs
import structlog
import trio

from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.health.checks import ApplicationAddress, CheckRunner
from mesh_pilot.agent.health.decision import ProbeDecision, overall
from mesh_pilot.agent.health.probe import ProbeError, ProbeSettings, parse_probe, readiness_probe
from mesh_pilot.agent.relay.subscriptions import ApplicationHealth
from mesh_pilot.agent.settings import AgentSettings
from mesh_pilot.base.protowire import WireError

log = structlog.get_logger(scope="agent")

DRAINING = ApplicationHealth(False, "draining: the agent is about to stop")
DRAIN_SECONDS = 5.0
"""The longest wait until the control plane has been told."""
SETTLE_SECONDS = 1.0
"""Time for control planes to tell callers."""
_NOT_READY = ApplicationHealth(False, "Envoy is not ready")
_NO_PROBES = ApplicationHealth(True)


@attrs.frozen
class HealthStatistics:
    """The application's health, and the checks made."""

    probes: int
    is_healthy: bool
    is_decided: bool
    """False while no probe has had enough results."""
    reason: str
    checks_total: int
    check_failures_total: int
    changes_total: int
    """Changes of the application's health."""


class HealthMonitor:
    """Keeps ``health`` current: what probes say, ``None`` while they have not decided."""

    def __init__(
        self,
        settings: AgentSettings,
        proxy_config: Observable[bytes | None],
        ready: Observable[bool],
        report: Callable[[ApplicationHealth], Awaitable[None]],
        *,
        runner: CheckRunner | None = None,
    ) -> None:
        """``ready``: of Envoy. ``report`` tells the control plane."""
        self.health: Observable[ApplicationHealth | None] = Observable(None)
        self._settings = settings
        self._proxy_config = proxy_config
        self._ready = ready
        self._report = report
        self._runner = runner or CheckRunner(ApplicationAddress.of(settings.node))
        self._probes: tuple[ProbeSettings, ...] = ()
        self._is_draining = False
        self._checks = self._failures = self._changes = 0

    def statistics(self) -> HealthStatistics:
        health = self.health.value
        return HealthStatistics(
            probes=len(self._probes),
            is_healthy=health is None or health.is_healthy,
            is_decided=health is not None,
            reason=health.reason if health is not None else "",
            checks_total=self._checks,
            check_failures_total=self._failures,
            changes_total=self._changes,
        )

    async def run(self) -> None:
        """Probe and report, forever, once Envoy is ready for the first time: until then others keep what they know."""
        await self._ready.wait_for(bool)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._report_changes)
            if self._settings.probes:
                self._probes = tuple(_parsed(self._settings.probes))
                await self._run_probes()
            else:
                await self._follow_control_plane()

    async def drain(self) -> None:
        """Tell the control plane that no more requests are wanted here, whatever probes say from now on.

        Returns when callers are likely to know, after some seconds at most.
        """
        self._is_draining = True
        if self._probes or self._settings.auto_register_group:
            with trio.move_on_after(DRAIN_SECONDS):
                await self._report(DRAINING)
            await trio.sleep(SETTLE_SECONDS)

    async def _report_changes(self) -> None:
        has_reported = False
        async for health in self.health.changes():
            # Without probes nobody asked, unless they have gone since; while undecided, the control plane keeps what
            # it knows.
            if (self._probes or has_reported) and health is not None and not self._is_draining:
                await self._report(health)
                has_reported = True

    async def _follow_control_plane(self) -> None:
        """Run the control plane's probe, with what it is changed to from then on."""
        async with trio.open_nursery() as nursery:
            running: trio.CancelScope | None = None
            async for encoded in self._proxy_config.changes():
                probes = self._sent(encoded)
                if running is not None and probes == self._probes:
                    continue
                if running is not None:
                    running.cancel()
                self._probes = probes
                running = trio.CancelScope()
                nursery.start_soon(self._run_probes, running)

    def _sent(self, encoded: bytes | None) -> tuple[ProbeSettings, ...]:
        """The probes of a ProxyConfig; those in force if it has one that cannot be run."""
        try:
            found = None if encoded is None else readiness_probe(encoded)
            if found is None:
                found = self._settings.annotated_proxy_config.get("readinessProbe")
            return () if found is None else (parse_probe(found, "readinessProbe"),)
        except (ProbeError, WireError) as error:
            effect = "the probe before it continues" if self._probes else "the application counts as healthy"
            log.warning("bad probe", of="the control plane's ProxyConfig", reason=str(error), effect=effect)
            return self._probes

    async def _run_probes(self, scope: trio.CancelScope | None = None) -> None:
        with scope or trio.CancelScope():
            if not self._probes:
                self._set(_NO_PROBES)
                return
            decisions = [ProbeDecision(each.success_threshold, each.failure_threshold) for each in self._probes]
            async with trio.open_nursery() as nursery:
                for probe, decision in zip(self._probes, decisions, strict=True):
                    nursery.start_soon(self._run_probe, probe, decision, decisions)

    async def _run_probe(self, probe: ProbeSettings, mine: ProbeDecision, every: Sequence[ProbeDecision]) -> None:
        """Check once in a period, forever; a check that takes longer than the period delays the next."""
        await trio.sleep(probe.initial_delay)
        due = trio.current_time()
        while True:
            self._checks += 1
            result = await self._runner.run(probe.check, probe.timeout) if self._ready.value else _NOT_READY
            self._failures += not result.is_healthy
            if mine.record(result) and (together := overall(every)) is not None:
                self._set(together)
            due = max(due + probe.period, trio.current_time())
            await trio.sleep_until(due)

    def _set(self, health: ApplicationHealth) -> None:
        before = self.health.value
        if health == before:
            return
        self._changes += 1
        if not health.is_healthy and not self._is_draining:
            log.warning("application unhealthy", reason=health.reason, effect="callers are told to go elsewhere")
        elif health.is_healthy and self._probes:
            log.info("application healthy")
        self.health.set(health)


def _parsed(probes: Sequence[Mapping[str, Any]]) -> list[ProbeSettings]:
    """The probes that can be run; a line about each other."""
    found = []
    for number, probe in enumerate(probes):
        try:
            found.append(parse_probe(probe, f"probes[{number}]"))
        except ProbeError as error:
            effect = "the application's health does not depend on it"
            log.warning("bad probe", of="the settings", reason=str(error), effect=effect)
    return found
