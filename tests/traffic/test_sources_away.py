"""A control plane returns while what it reads from is away: a folder, Kubernetes, an MCP server, an issuer of keys."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import httpx
import pytest
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.proxy import NodeType
from tests.support.away import Away, source_away
from tests.support.echo import Backend, http_backend
from tests.support.envoy import RealEnvoy, eventually, real_envoy
from tests.support.galley import Classes
from tests.support.manifests import manifest
from tests.support.outage import SENT, Requests
from tests.support.plane_process import PlaneProcess
from tests.support.protos import compiled, message_classes
from tests.support.tokens import Issuer, key_server

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(300)]

Ports = Callable[[int], list[int]]

HOST = "web.test"


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Classes:
    return dict(message_classes(compiled(tmp_path_factory.getbasetemp())))


def edge(number: int) -> EnvoyNode:
    return EnvoyNode(f"edge-{number}", "shop", f"127.0.2.{number}", NodeType.ROUTER, labels={"istio": "edge"})


@attrs.define
class Edge:
    """A source, a control plane that reads it, and a gateway that is asked without a pause."""

    folder: Path
    source: Away
    plane: PlaneProcess
    port: int
    backends: tuple[Backend, Backend]
    requests: Requests
    envoys: list[RealEnvoy]
    _stack: AsyncExitStack

    def lead_to(self, backend: Backend) -> None:
        """The service and the route for its host are replaced: the host is answered by this backend."""
        host = f"{backend.name}.test"
        entry = {
            "hosts": [host],
            "location": "MESH_INTERNAL",
            "resolution": "STATIC",
            "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}],
            "endpoints": [{"address": backend.host, "ports": {"http": backend.port}}],
        }
        self.source.put("ServiceEntry", backend.name, entry)
        http = [{"retries": {"attempts": 0}, "route": [{"destination": {"host": host}}]}]
        self.source.put("VirtualService", "web", {"hosts": [HOST], "gateways": ["edge"], "http": http})

    async def join(self) -> RealEnvoy:
        """One more gateway, at the same port as the others, until it has answered."""
        node = edge(len(self.envoys))
        envoy = await self._stack.enter_async_context(
            real_envoy(
                self.plane.grpc, self.folder, node, delta=bool(self.envoys), name=node.name, reconnects_soon=True
            )
        )
        with trio.fail_after(60):
            await envoy.wait_live()
        await eventually(envoy.takes_traffic, what="Envoy's workers run")
        self.envoys.append(envoy)
        return envoy

    async def until_answered_by(self, backend: Backend) -> None:
        """Wait until requests are answered by this backend only."""
        self.requests.answers.clear()

        def only() -> bool:
            if any(name != backend.name for _, _, name in self.requests.answers):
                self.requests.answers.clear()
            return self.requests.answers.total() > 10

        await eventually(only, what=f"answered by {backend.name}: {self.requests.failures[:3]}")

    async def has_answered(self, envoy: RealEnvoy) -> None:
        """Wait until this one of the gateways has answered requests."""

        async def is_so() -> bool:
            return await envoy.counted(r"^http\.outbound_.*downstream_rq_2xx$") > 3

        await eventually(is_so, what="it answers")


@asynccontextmanager
async def edge_of(source: Away, folder: Path, free_ports: Ports) -> AsyncIterator[Edge]:
    port, *ports = free_ports(4)
    plane = PlaneProcess(folder / "plane.log", ports, f"--state-dir={folder / 'state'}", *source.flags)
    async with (
        http_backend("one") as one,
        http_backend("two") as two,
        trio.open_nursery() as nursery,
        AsyncExitStack() as stack,
    ):
        at = Edge(folder, source, plane, port, (one, two), Requests((HOST,)), [], stack)
        server = {"port": {"number": port, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}
        source.put("Gateway", "edge", {"selector": {"istio": "edge"}, "servers": [server]})
        at.lead_to(one)
        await plane.start()
        try:
            await at.join()
            for fresh in (True, False):
                nursery.start_soon(lambda f=fresh: at.requests.run("edge", f"127.0.0.1:{port}", fresh=f))
            await at.until_answered_by(one)
            at.requests.failures.clear()  # of the time before the listener was there
            yield at
            await at.requests.go_on()
            assert at.requests.failures == []
            for envoy in at.envoys:
                assert await envoy.rejected() == {}
        finally:
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await plane.kill()


@pytest.mark.parametrize("kind", ["files", "kubernetes", "mcp"])
async def test_the_plane_returns_without_its_only_source(
    tmp_path: Path, free_ports: Ports, classes: Classes, kind: str
) -> None:
    async with source_away(kind, tmp_path, free_ports, classes) as source, edge_of(source, tmp_path, free_ports) as at:
        first = at.envoys[0]
        before = await first.stats(SENT)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(at.plane.kill)
            nursery.start_soon(source.go)
        await at.plane.start()
        await eventually(first.connected, what="Envoy is back")
        await at.requests.go_on()
        assert await first.stats(SENT) == before
        await at.has_answered(await at.join())
        at.lead_to(at.backends[1])
        await at.plane.kill()
        await at.plane.start()
        await at.has_answered(await at.join())
        await at.until_answered_by(at.backends[0])
        await source.come()
        await at.until_answered_by(at.backends[1])


async def test_tokens_are_checked_while_the_issuer_of_their_keys_is_away(tmp_path: Path, free_ports: Ports) -> None:
    (tmp_path / "config").mkdir()
    port, *ports = free_ports(4)
    plane = PlaneProcess(
        tmp_path / "plane.log", ports, f"--state-dir={tmp_path / 'state'}", f"--config-dir={tmp_path / 'config'}"
    )
    url = f"http://127.0.0.1:{port}/"
    async with AsyncExitStack() as stack:
        keys = await stack.enter_async_context(key_server())
        app = await stack.enter_async_context(http_backend("app"))
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=30, trust_env=False))
        found, by_url = Issuer(f"{keys.address}/realm"), Issuer("by-url")
        keys.documents["/realm/.well-known/openid-configuration"] = json.dumps(
            {"jwks_uri": f"{keys.address}/realm/keys"}
        )
        keys.documents["/realm/keys"], keys.documents["/keys"] = found.jwks, by_url.jwks
        rules = [{"issuer": found.name}, {"issuer": by_url.name, "jwksUri": f"{keys.address}/keys"}]
        server = {"port": {"number": port, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}
        entry = {
            "hosts": ["app.test"],
            "resolution": "STATIC",
            "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}],
            "endpoints": [{"address": app.host, "ports": {"http": app.port}}],
        }
        http = [{"route": [{"destination": {"host": "app.test"}}]}]
        text = (
            manifest("Gateway", "edge", {"selector": {"istio": "edge"}, "servers": [server]})
            + manifest("ServiceEntry", "app", entry)
            + manifest("VirtualService", "app", {"hosts": ["app.test"], "gateways": ["edge"], "http": http})
            + manifest("RequestAuthentication", "tokens", {"jwtRules": rules})
        )
        (tmp_path / "config" / "all.yaml").write_text(text)

        async def statuses() -> list[int]:
            tokens = (found.token(), by_url.token(), Issuer(found.name).token(), Issuer("by-url").token())
            found_statuses = []
            for token in tokens:
                headers = {"host": "app.test", "authorization": f"Bearer {token}", "connection": "close"}
                found_statuses.append((await client.get(url, headers=headers)).status_code)
            return found_statuses

        async def checks() -> bool:
            try:
                return await statuses() == [200, 200, 401, 401]
            except httpx.HTTPError:
                return False

        stack.push_async_callback(plane.kill)
        await plane.start()
        async with real_envoy(plane.grpc, tmp_path, edge(1), name="first") as envoy:
            with trio.fail_after(60):
                await envoy.wait_live()
            await eventually(checks, what="tokens are checked")
        keys.documents.clear()
        for kill in range(2):
            await plane.kill()
            await plane.start()
            async with real_envoy(plane.grpc, tmp_path, edge(2 + kill), name=f"new-{kill}") as envoy:
                with trio.fail_after(60):
                    await envoy.wait_live()
                await eventually(checks, what="a new Envoy checks tokens by the keys of before")
        log = (tmp_path / "plane.log").read_text()
        assert "Traceback" not in log
