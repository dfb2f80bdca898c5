"""Services with several endpoints, and a client's Envoy that chooses among them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import httpx

from tests.support.echo import Backend
from tests.support.envoy import eventually
from tests.support.fleet import Fleet, fleet
from tests.support.manifests import routes

EJECT = "{consecutive5xxErrors: 1, interval: 0.1s, baseEjectionTime: 60s, maxEjectionPercent: 100}"


@attrs.frozen
class Mesh:
    """A client's Envoy and the services behind one port."""

    fleet: Fleet
    port: int

    async def ask(self, host: str, path: str = "/", **more: object) -> httpx.Response:
        return await self.fleet.get(f"http://127.0.0.1:{self.port}{path}", host=host, **more)

    async def names(self, host: str, count: int = 20, path: str = "/", **more: object) -> list[str]:
        """Who answers each of these requests; the status where nobody does."""
        replies = [await self.ask(host, path, **more) for _ in range(count)]
        return [r.json()["name"] if r.status_code == 200 else str(r.status_code) for r in replies]

    async def until_only(self, host: str, name: str) -> None:
        """Wait until a host's requests are answered by one endpoint alone.

        Envoy lets a second change of its endpoints' health within a second wait for the end of that second.
        """

        async def only() -> bool:
            return set(await self.names(host, 8)) == {name}

        await eventually(only, what=f"{host} answered by {name} alone")


def unretried(host: str, *gateways: str) -> str:
    """A VirtualService after which every failure is seen."""
    return routes(
        host, f"- {{retries: {{attempts: 0}}, route: [{{destination: {{host: {host}}}}}]}}", gateways=gateways
    )


@asynccontextmanager
async def backends(folder: Path, *names: str, mesh: str = "") -> AsyncIterator[tuple[Fleet, list[Backend]]]:
    """A control plane, and a backend of each name on its own loopback address."""
    async with fleet(folder, mesh=mesh) as running:
        yield running, [await running.backend(name, host=f"127.0.1.{i}") for i, name in enumerate(names, 1)]
        await running.assert_all_taken()
