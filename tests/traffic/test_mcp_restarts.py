"""Control planes in a row, as processes that are killed in turn, while a real Envoy at their end carries traffic.

The first reads files, the second has everything from the first, by each path. No request may fail; where nothing
changed Envoy must notice nothing, and what changed while somebody was dead must arrive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import attrs
import httpx
import pytest
import trio

from mesh_pilot.app.control_plane import control_plane
from mesh_pilot.sources.mcp.source import McpServer, McpSource, mcp_dialects
from mesh_pilot.xds.mcp.collections import COLLECTIONS, XDS_COLLECTIONS
from mesh_pilot.xds.mcp.identity import PlaneIdentity
from mesh_pilot.xds.mcp.wire import SotwDialect
from tests.support.echo import http_backend
from tests.support.envoy import RealEnvoy, eventually, http_client, real_envoy
from tests.support.manifests import at, manifest, service
from tests.support.plane_process import PlaneProcess as Process
from tests.support.planes import settings
from tests.support.shop import CLIENT

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(400)]

Ports = Callable[[int], list[int]]

UPDATES = r"(cluster_manager\.cluster_(added|modified|removed)|listener_manager\.listener_(added|modified|removed))$"
ROUTE_UPDATES = r"\.rds\..*config_reload$"


class Plane(Protocol):
    """A control plane that can be started and killed, at one address."""

    grpc: str

    async def start(self) -> None:
        """Until it is ready."""

    async def kill(self) -> None:
        """At once, with no time for anything."""


class Here:
    """A control plane in this process, that speaks in just one way to the one before it."""

    def __init__(self, nursery: trio.Nursery, port: int, source: Callable[[], McpSource]) -> None:
        self.grpc = f"127.0.0.1:{port}"
        self._nursery = nursery
        self._source = source
        self._scope = trio.CancelScope()
        self._over = trio.Event()

    async def start(self) -> None:
        with trio.fail_after(60):
            await self._nursery.start(self._run)

    async def kill(self) -> None:
        self._scope.cancel()
        await self._over.wait()

    async def _run(self, *, task_status: trio.TaskStatus[None]) -> None:
        self._over = trio.Event()
        with trio.CancelScope() as self._scope:
            async with control_plane(settings(grpc_addr=self.grpc), more_sources=[self._source()]) as plane:
                await plane.wait_ready()
                task_status.started()
                await trio.sleep_forever()
        self._over.set()


@attrs.define
class Row:
    """What runs, and how often Envoy was told something."""

    folder: Path
    first: Plane
    second: Plane
    envoy: RealEnvoy
    client: httpx.AsyncClient
    url: str
    answers: Counter[str] = attrs.field(factory=Counter)
    failures: list[str] = attrs.field(factory=list)

    def write(self, name: str, text: str) -> None:
        new = self.folder / ".new"
        new.write_text(text)
        new.rename(self.folder / name)

    def leads_to(self, host: str, port: int) -> None:
        """Have first.test answered by another service."""
        destination = {"host": host, "port": {"number": port}}
        spec = {"hosts": ["first.test"], "http": [{"route": [{"destination": destination}]}]}
        self.write("route.yaml", manifest("VirtualService", "first", spec))

    async def load(self) -> None:
        """Requests to first.test, one after the other, half of them on new connections."""
        number = 0
        while True:
            number += 1
            headers = {"host": "first.test", **({"connection": "close"} if number % 2 else {})}
            try:
                reply = await self.client.get(self.url, headers=headers)
            except httpx.HTTPError as error:
                self.failures.append(repr(error))
                continue
            if reply.status_code == 200:
                self.answers[reply.json()["name"]] += 1
            else:
                self.failures.append(f"{reply.status_code} {reply.text}")

    async def until_answered_by(self, name: str) -> None:
        """Until the next requests are answered by it."""
        self.answers.clear()
        await eventually(lambda: self.answers[name] > 5, what=f"answered by {name}, not {self.answers}")

    async def told(self) -> tuple[int, int]:
        """How often Envoy took a change of clusters and listeners, and of routes."""
        return await self.envoy.counted(UPDATES), await self.envoy.counted(ROUTE_UPDATES)


@asynccontextmanager
async def row(folder: Path, ports: Ports, path: str, *, delta: bool) -> AsyncIterator[tuple[Row, int]]:
    """Two planes and an Envoy with two services, for the length of the block; gives also the services' port."""
    config = folder / "config"
    config.mkdir()
    port, *others = ports(8)
    first = Process(folder / "first.log", others[:3], f"--config-dir={config}")
    identity = PlaneIdentity()
    aggregated = mcp_dialects(identity, COLLECTIONS)[1:]
    server = McpServer(address=first.grpc)
    async with (
        http_backend("one") as one,
        http_backend("two") as two,
        http_client() as client,
        trio.open_nursery() as nursery,
    ):
        second: Plane
        match path:
            case "aggregated":
                second = Here(nursery, others[3], lambda: McpSource("mcp", server, aggregated))
            case "state of the world":
                whole = attrs.evolve(server, collections=XDS_COLLECTIONS)
                node = identity.xds_node()
                second = Here(nursery, others[3], lambda: McpSource("xds", whole, (SotwDialect(node),)))
            case scheme:
                source = f"--mcp-server={scheme}{first.grpc}"
                second = Process(folder / "second.log", others[3:6], source)
        (config / "services.yaml").write_text(
            service("first.test", port, at(one)) + service("second.test", port, at(two))
        )
        try:
            await first.start()
            await second.start()
            async with real_envoy(second.grpc, folder, CLIENT, delta=delta) as envoy:
                with trio.fail_after(60):
                    await envoy.wait_live()
                await eventually(envoy.takes_traffic, what="Envoy's workers run")
                made = Row(config, first, second, envoy, client, f"http://127.0.0.1:{port}/")
                yield made, port
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await first.kill()
                if isinstance(second, Process):
                    await second.kill()
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("path", "delta"),
    [("mcp://", True), ("xds://", False), ("aggregated", True), ("state of the world", False)],
)
async def test_each_may_be_killed_and_started_again(tmp_path: Path, free_ports: Ports, path: str, delta: bool) -> None:
    async with row(tmp_path, free_ports, path, delta=delta) as (mesh, port), trio.open_nursery() as nursery:
        nursery.start_soon(mesh.load)
        await mesh.until_answered_by("one")
        mesh.failures.clear()  # of the time before the listener was there
        told = await mesh.told()

        await mesh.first.kill()
        await mesh.until_answered_by("one")
        await mesh.first.start()
        await mesh.until_answered_by("one")
        assert await mesh.told() == told, "the first one is back as it was, and nobody is told"

        await mesh.first.kill()
        mesh.leads_to("second.test", port)
        await mesh.until_answered_by("one")
        await mesh.first.start()
        await mesh.until_answered_by("two")
        told, (things, routes) = await mesh.told(), told
        assert told == (things, routes + 1), "just the one change"

        await mesh.second.kill()
        await mesh.until_answered_by("two")
        await mesh.second.start()
        await eventually(mesh.envoy.connected, what="Envoy finds it again")
        await mesh.until_answered_by("two")
        assert await mesh.told() == told, "the second one is back as it was, and Envoy has it all already"

        await mesh.second.kill()
        mesh.leads_to("first.test", port)
        await mesh.until_answered_by("two")
        await mesh.second.start()
        await mesh.until_answered_by("one")

        await mesh.first.kill()
        await mesh.second.kill()
        mesh.leads_to("second.test", port)
        await mesh.until_answered_by("one")
        async with trio.open_nursery() as starting:
            starting.start_soon(mesh.second.start)
            starting.start_soon(mesh.first.start)
        await mesh.until_answered_by("two")

        assert mesh.failures == []
        assert await mesh.envoy.rejected() == {}
        nursery.cancel_scope.cancel()
