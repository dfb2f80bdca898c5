"""Traffic through real Envoys while control planes go, Envoys start without one, and control planes come back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.support.echo import Backend, http_backend
from tests.support.envoy import RealEnvoy, eventually, real_envoy
from tests.support.hitless import HOSTS, Hitless
from tests.support.manifests import at, service
from tests.support.plane_process import PlaneProcess
from tests.support.relayed import Relayed, relayed
from tests.support.shop import CLIENT

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(300)]


@asynccontextmanager
async def under_load(
    folder: Path,
    plane: PlaneProcess,
    relay: Relayed,
    backends: tuple[Backend, Backend],
    port: int,
    name: str,
    delta: bool,
) -> AsyncIterator[Hitless]:
    """An Envoy on the relay, with requests all the time; none may fail."""
    async with (
        real_envoy(relay.address, folder, CLIENT, delta=delta, name=name, reconnects_soon=True) as envoy,
        trio.open_nursery() as nursery,
    ):
        running = Hitless(folder, plane, envoy, backends, port)
        yield running
        nursery.cancel_scope.cancel()


async def start_load(running: Hitless, nursery: trio.Nursery) -> None:
    await running.envoy.wait_live()
    await eventually(running.envoy.takes_traffic, what="Envoy's workers run")
    nursery.start_soon(lambda: running.load(fresh=False))
    nursery.start_soon(lambda: running.load(fresh=True))


async def assert_good(running: Hitless, envoy: RealEnvoy) -> None:
    running.answers.clear()
    await eventually(lambda: running.answers.total() > 50, what="requests are answered to the end")
    assert not running.failures, f"{len(running.failures)} failed: {running.failures[:5]}"
    assert await envoy.rejected() == {}


@pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
async def test_planes_killed_envoy_restarted_and_planes_back_with_other_configuration_fail_no_request(
    tmp_path: Path, free_ports: Callable[[int], list[int]], delta: bool
) -> None:
    (tmp_path / "config").mkdir()
    port, *addresses = free_ports(4)
    plane = PlaneProcess(tmp_path / "plane.log", addresses, f"--config-dir={tmp_path / 'config'}")
    try:
        async with (
            http_backend("even") as even,
            http_backend("odd") as odd,
            relayed(tmp_path, plane.grpc, node=CLIENT) as relay,
        ):
            backends = (even, odd)
            async with under_load(tmp_path, plane, relay, backends, port, "first", delta) as first:
                first.write("hosts.yaml", "".join(service(host, port, at(even)) for host in HOSTS))
                first.move_all()
                await plane.start()
                async with trio.open_nursery() as nursery:
                    await start_load(first, nursery)
                    await first.until_moved()
                    await plane.kill()
                    await eventually(lambda: relay.relay.statistics().offline == 1, what="served from disk")
                    await assert_good(first, first.envoy)
                    first.move_all()
                    await plane.start()
                    await first.until_moved()
                    await assert_good(first, first.envoy)
                    await eventually(lambda: kept_moved(relay), what="kept")
                    await plane.kill()
                    nursery.cancel_scope.cancel()
            async with under_load(tmp_path, plane, relay, backends, port, "second", delta) as second:
                second.round = first.round
                async with trio.open_nursery() as nursery:
                    await start_load(second, nursery)
                    assert relay.relay.statistics().offline == 1
                    await second.until_moved()
                    await assert_good(second, second.envoy)
                    second.move_all()
                    await plane.start()
                    await second.until_moved()
                    await eventually(lambda: relay.relay.statistics().offline == 0, what="served by the plane")
                    await assert_good(second, second.envoy)
                    nursery.cancel_scope.cancel()
    finally:
        await plane.kill()


def kept_moved(relay: Relayed) -> bool:
    """True if all that was accepted has been written."""
    return not relay.relay._writer._waiting
