"""The application's health over time: whose probes count, when they run, and what is reported."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import attrs
import pytest
import structlog
import trio
import trio.testing

from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.health.checks import CheckRunner
from mesh_pilot.agent.health.monitor import DRAINING, SETTLE_SECONDS, HealthMonitor
from mesh_pilot.agent.health.probe import Check
from mesh_pilot.agent.relay.subscriptions import ApplicationHealth
from mesh_pilot.api.istio.mesh.v1alpha1 import ProxyConfig
from mesh_pilot.api.istio.networking.v1alpha3 import ExecHealthCheckConfig, ReadinessProbe, TcpHealthCheckConfig
from tests.support.agents import agent_settings

HEALTHY, DOWN = ApplicationHealth(True), ApplicationHealth(False, "down")


@attrs.define
class Scene:
    """A monitor that runs, and all that it sees and says."""

    proxy_config: Observable[bytes | None]
    ready: Observable[bool] = attrs.field(factory=lambda: Observable(True))
    result: ApplicationHealth = HEALTHY
    reports: list[ApplicationHealth] = attrs.field(factory=list)
    checks: list[tuple[float, Check]] = attrs.field(factory=list)
    monitor: HealthMonitor = attrs.field(init=False)

    async def run(self, check: Check, seconds: float) -> ApplicationHealth:
        self.checks.append((trio.current_time() - self.began, check))
        await trio.sleep(self.takes)
        return self.result

    async def report(self, health: ApplicationHealth) -> None:
        self.reports.append(health)

    began: float = 0.0
    takes: float = 0.0


@asynccontextmanager
async def scene(
    probes: Sequence[dict[str, Any]] = (),
    proxy_config: bytes | None = None,
    group: str = "",
    is_ready: bool = True,
    annotated: Mapping[str, Any] = MappingProxyType({}),
) -> AsyncIterator[Scene]:
    made = Scene(Observable(proxy_config), Observable(is_ready), began=trio.current_time())
    settings = agent_settings(probes=probes, auto_register_group=group, annotated_proxy_config=annotated)
    runner: Any = made
    assert hasattr(CheckRunner, "run")
    made.monitor = HealthMonitor(settings, made.proxy_config, made.ready, made.report, runner=runner)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.monitor.run)
        yield made
        nursery.cancel_scope.cancel()


def sent(probe: ReadinessProbe | None) -> bytes:
    return bytes(ProxyConfig(readiness_probe=probe))


TCP = {"tcpSocket": {"port": 80}}


async def test_without_probes_the_application_is_healthy_and_nothing_is_reported(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with scene() as seen:
        await trio.sleep(100)
        assert seen.monitor.health.value == HEALTHY
        assert seen.reports == []
        await seen.monitor.drain()
        assert seen.reports == []


async def test_a_probe_runs_after_its_delay_once_in_a_period_and_changes_are_reported(
    autojump_clock: trio.testing.MockClock,
) -> None:
    timing = {"initialDelaySeconds": 7, "periodSeconds": 5, "failureThreshold": 2, "timeoutSeconds": 4}
    async with scene([{**TCP, **timing}]) as seen:
        seen.takes = 3.0
        await trio.sleep(6)
        assert seen.monitor.health.value is None
        assert not seen.monitor.statistics().is_decided
        await trio.sleep(7)
        assert [when for when, _ in seen.checks] == [7, 12]
        assert seen.reports == [HEALTHY]
        seen.result = DOWN
        await trio.sleep(5)  # of two failures, the first is at 15 s
        assert seen.reports == [HEALTHY]
        await trio.sleep(3)
        assert seen.reports == [HEALTHY, DOWN]
        assert seen.monitor.health.value == DOWN
        seen.result = HEALTHY
        await trio.sleep(5)
        assert seen.reports == [HEALTHY, DOWN, HEALTHY]
        seen.takes = 11.0  # longer than the period: the next follows at once, never two at a time
        del seen.checks[:]
        await trio.sleep(40)
        times = [when for when, _ in seen.checks]
        assert all(later - earlier >= 5 for earlier, later in pairwise(times))
        assert len(times) == 4


async def test_nothing_is_said_before_envoy_is_ready_for_the_first_time(autojump_clock: trio.testing.MockClock) -> None:
    async with scene([TCP], is_ready=False) as seen:
        await trio.sleep(100)
        assert (seen.checks, seen.reports, seen.monitor.health.value) == ([], [], None)
        seen.ready.set(True)
        await trio.sleep(1)
        assert seen.reports == [HEALTHY]


async def test_an_envoy_that_is_not_ready_any_more_makes_the_application_unhealthy(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with scene([TCP]) as seen:
        await trio.sleep(1)
        seen.ready.set(False)
        await trio.sleep(10)
        assert seen.reports == [HEALTHY, ApplicationHealth(False, "Envoy is not ready")]
        assert len(seen.checks) == 1


async def test_the_control_planes_probe_is_followed_when_it_changes(autojump_clock: trio.testing.MockClock) -> None:
    tcp = ReadinessProbe(tcp_socket=TcpHealthCheckConfig(port=80))
    async with scene() as seen:
        await trio.sleep(1)
        assert seen.monitor.health.value == HEALTHY
        seen.proxy_config.set(sent(tcp))
        await trio.sleep(1)
        assert seen.reports == [HEALTHY] or seen.monitor.health.value == HEALTHY
        seen.result = DOWN
        seen.proxy_config.set(sent(ReadinessProbe(tcp_socket=TcpHealthCheckConfig(port=81), period_seconds=1)))
        await trio.sleep(0.5)
        assert seen.monitor.health.value == DOWN
        assert seen.reports[-1] == DOWN
        count = len(seen.checks)
        await trio.sleep(10)
        assert len(seen.checks) == count + 10  # that of port 80 runs no more
        with structlog.testing.capture_logs() as logs:
            for bad in (ReadinessProbe(exec=ExecHealthCheckConfig()), ReadinessProbe()):
                seen.proxy_config.set(sent(bad))
                await trio.sleep(1)
            seen.proxy_config.set(b"\xff")
            await trio.sleep(1)
        assert [line["effect"] for line in logs] == ["the probe before it continues"] * 3
        assert len(seen.checks) == count + 13
        seen.proxy_config.set(sent(None))
        await trio.sleep(10)
        assert seen.monitor.health.value == HEALTHY
        assert seen.reports[-1] == HEALTHY  # it was told of the illness
        assert len(seen.checks) == count + 13


async def test_an_annotated_probe_runs_unless_the_control_plane_has_one(autojump_clock: trio.testing.MockClock) -> None:
    async with scene(annotated={"readinessProbe": TCP}) as seen:
        await trio.sleep(1)
        seen.proxy_config.set(sent(None))  # as istiod, which sends nothing but roots
        await trio.sleep(20)
        assert {check.port for _, check in seen.checks} == {80}  # type: ignore[union-attr]  # it is of TCP
        count = len(seen.checks)
        seen.proxy_config.set(sent(ReadinessProbe(tcp_socket=TcpHealthCheckConfig(port=81))))
        await trio.sleep(20)
        assert {check.port for _, check in seen.checks[count:]} == {81}  # type: ignore[union-attr]  # it is of TCP


async def test_the_settings_probes_win_and_a_bad_one_counts_as_healthy(autojump_clock: trio.testing.MockClock) -> None:
    encoded = sent(ReadinessProbe(tcp_socket=TcpHealthCheckConfig(port=99)))
    with structlog.testing.capture_logs() as logs:
        async with scene([TCP, {"httpGet": {}}], encoded) as seen:
            await trio.sleep(25)
            assert {check.port for _, check in seen.checks} == {80}  # type: ignore[union-attr]  # it is of TCP
            assert seen.monitor.health.value == HEALTHY
        async with scene([{"tcpSocket": {"port": 0}}]) as seen:
            await trio.sleep(1)
            assert seen.monitor.health.value == HEALTHY
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["bad probe", "bad probe"]


@pytest.mark.parametrize(("probes", "group"), [([TCP], ""), ((), "web")])
async def test_a_drain_is_reported_and_is_the_last_word(
    autojump_clock: trio.testing.MockClock, probes: Sequence[dict[str, Any]], group: str
) -> None:
    async with scene(probes, group=group) as seen:
        await trio.sleep(1)
        seen.result = DOWN
        before = trio.current_time()
        await seen.monitor.drain()
        assert trio.current_time() == before + SETTLE_SECONDS
        await trio.sleep(30)
        seen.result = HEALTHY
        await trio.sleep(30)
        assert seen.reports[-1] == DRAINING


async def test_a_control_plane_that_cannot_be_told_delays_no_drain_for_long(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene([TCP]) as seen:
        await trio.sleep(1)

        async def never(health: ApplicationHealth) -> None:
            await trio.sleep_forever()

        monkeypatch.setattr(seen.monitor, "_report", never)
        with trio.fail_after(10):
            await seen.monitor.drain()
