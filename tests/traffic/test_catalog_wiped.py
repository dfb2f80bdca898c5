"""Consul loses all its data under load: services and configuration. Nobody notices, but the operator is told."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from tests.support.command import mesh_pilot
from tests.support.envoy import eventually
from tests.support.outage import GONE, ConsulMesh, consul_mesh

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(300)]

Ports = Callable[[int], list[int]]


async def wipe(at: ConsulMesh) -> None:
    """Consul is killed, and starts without its data."""
    await at.consul.kill()
    await trio.to_thread.run_sync(shutil.rmtree, at.consul.data)
    await at.consul.start()


async def admin(at: ConsulMesh, *arguments: str) -> tuple[int, str]:
    where = ("--state-dir", str(at.folder / "state"))
    done = await trio.to_thread.run_sync(lambda: mesh_pilot("admin", *arguments, *where))
    return done.code, done.out + done.err


async def test_services_and_configuration_are_wiped_and_come_back_elsewhere(tmp_path: Path, free_ports: Ports) -> None:
    async with consul_mesh(tmp_path, free_ports, "--consul-hold=1s") as at:
        await wipe(at)
        log = tmp_path / "plane.log"
        await eventually(lambda: "picture held" in log.read_text(), what="the catalog is held")
        await at.requests.go_on()
        code, text = await admin(at, "status")
        assert (code, text.startswith("consul: held since")) == (1, True)
        assert "mesh-pilot admin accept consul" in text

        await at.plane.kill()
        await at.plane.start()
        await at.connected()
        await at.join("newcomer")
        await at.requests.go_on()
        assert (await admin(at, "status"))[0] == 1, "held over a restart"

        await at.fill()
        await at.put_service("moved", at.two)
        await eventually(lambda: "held picture recovered" in log.read_text(), what="all is there again")
        assert (await admin(at, "status")) == (0, "every source confirms what is in force\n")
        assert at.requests.failures == []
        await at.change()
        await at.changed()
        assert at.failed(besides=GONE) == []


async def test_an_operator_says_that_the_wiped_catalog_was_meant(tmp_path: Path, free_ports: Ports) -> None:
    async with consul_mesh(tmp_path, free_ports, "--consul-hold=1s") as at:
        await wipe(at)
        await eventually(lambda: "picture held" in (tmp_path / "plane.log").read_text(), what="the catalog is held")
        assert at.requests.failures == []
        code, text = await admin(at, "accept", "consul")
        assert (code, text.split(":")[0]) == (0, "consul")
        await eventually(lambda: bool(at.requests.failures), what="the services are gone")
        await at.fill()
        await at.requests.go_on()
