"""The smallest mesh in which routes do something: a service in two versions, a client's Envoy next to no application.

    async with shop(tmp_path, port, "- route: [...]", delta=True) as at:
        reply = await at.ask("/")

The service is ``reviews.example.com`` with the subsets v1 and v2, one backend each, on ``port`` of the loopback.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.proxy import Interception, NodeType
from tests.support.echo import Backend
from tests.support.envoy import RealEnvoy
from tests.support.fleet import Fleet, fleet
from tests.support.manifests import NAMESPACE, routes, service, subsets, version

HOST = "reviews.example.com"
CLIENT = EnvoyNode("web", NAMESPACE, "127.0.0.2", labels={"app": "web"}, interception=Interception.NONE)
"""A sidecar without interception: it listens on the loopback at the ports of the services."""
EDGE = EnvoyNode("edge", NAMESPACE, "127.0.0.3", NodeType.ROUTER, labels={"istio": "edge"})

TO_V1 = "[{destination: {host: reviews.example.com, subset: v1}}]"
TO_V2 = "[{destination: {host: reviews.example.com, subset: v2}}]"


@attrs.frozen
class Shop:
    """What runs, and how to ask it."""

    mesh: Fleet
    envoy: RealEnvoy
    port: int
    v1: Backend
    v2: Backend

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def ask(
        self, path: str = "/", *, host: str = HOST, headers: Mapping[str, str] | None = None, **more: Any
    ) -> httpx.Response:
        return await self.mesh.get(self.url + path, host=host, headers=headers, **more)

    async def name(self, path: str = "/", **more: Any) -> str:
        """Who answers a request; the status where nobody does."""
        reply = await self.ask(path, **more)
        return str(reply.json()["name"]) if reply.status_code == 200 else str(reply.status_code)


def reviews(port: int, v1: Backend, v2: Backend) -> str:
    """The service and its subsets."""
    return service(HOST, port, version("v1", v1), version("v2", v2)) + subsets(HOST, "v1", "v2")


@asynccontextmanager
async def shop(
    folder: Path, port: int, http: str = "", *, delta: bool = False, more: str = "", mesh: str = "", **values: object
) -> AsyncIterator[Shop]:
    """Run it with these ``http`` rules for the service; every Envoy must have taken all that it was sent.

    ``more`` are further manifests, ``mesh`` mesh settings, ``values`` what ``$name`` stands for in the rules.
    """
    async with fleet(folder, mesh=mesh) as running:
        v1, v2 = await running.backend("v1"), await running.backend("v2")
        await running.apply(reviews(port, v1, v2) + (routes(HOST, http, **values) if http else "") + more)
        envoy = await running.envoy(CLIENT, delta=delta)
        yield Shop(running, envoy, port, v1, v2)
        await running.assert_all_taken()
