"""A small mesh for tests of traffic: our control plane on a folder of YAML, real Envoys, our own backends.

    async with fleet(tmp_path, config, mesh) as mesh:
        envoy = await mesh.envoy(EnvoyNode("web", interception=Interception.NONE), delta=True)
        reply = await mesh.get(f"http://127.0.0.1:{port}/", host="reviews.example.com")

Whatever it started is gone when the block is left.
"""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import httpx
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.app.control_plane import ControlPlane, control_plane
from mesh_pilot.app.settings import Settings
from tests.support.certificates import CertificateFiles
from tests.support.echo import Backend, http_backend, tcp_backend
from tests.support.envoy import RealEnvoy, eventually, real_envoy


@attrs.define
class Load:
    """Requests one after another, as fast as they are answered."""

    answers: Counter[str] = attrs.field(factory=Counter)
    """Replies by the name of the backend that gave them."""
    failures: list[str] = attrs.field(factory=list)
    """What went wrong: anything but a 200."""


class Fleet:
    """What runs, and what a test does with it."""

    def __init__(self, folder: Path, plane: ControlPlane, stack: AsyncExitStack, client: httpx.AsyncClient) -> None:
        self.folder = folder
        self.plane = plane
        self.client = client
        self.plane_address = plane.addresses.grpc
        """Where Envoys started from now on find their control plane."""
        self.envoys: list[RealEnvoy] = []
        self._stack = stack

    def write(self, config: str, name: str = "config.yaml") -> None:
        """Put a file in place as an editor does: whole."""
        _write(self.folder / "config" / name, config)

    async def apply(self, config: str, name: str = "config.yaml") -> None:
        """Write a file that says something new, and return when the control plane has read it; all of it must do."""
        before = self.plane.state.reducer.statistics().revisions
        self.write(config, name)
        await eventually(lambda: self.plane.state.reducer.statistics().revisions > before, what=f"{name} is read")
        self.assert_nothing_refused()

    def assert_nothing_refused(self) -> None:
        """The control plane has refused no object."""
        refused = [f"{r.origin}: {'; '.join(map(str, r.problems))}" for r in self.plane.state.world.rejections()]
        assert refused == [], "\n".join(refused)

    async def backend(self, name: str, **options: Any) -> Backend:
        return await self._stack.enter_async_context(http_backend(name, **options))

    async def tcp_backend(self, name: str, **options: Any) -> Backend:
        return await self._stack.enter_async_context(tcp_backend(name, **options))

    async def envoy(
        self, node: EnvoyNode, *, delta: bool = False, flags: Sequence[str] = (), sds: Path | None = None
    ) -> RealEnvoy:
        """A live Envoy, which must have taken all it was sent; ``flags`` are more of its own."""
        name = f"{node.name}-envoy"
        envoy = await self._stack.enter_async_context(
            real_envoy(self.plane_address, self.folder, node, delta=delta, name=name, flags=flags, sds=sds)
        )
        with trio.fail_after(60):
            await envoy.wait_live()
        await eventually(envoy.takes_traffic, what="Envoy's workers run")
        self.envoys.append(envoy)
        return envoy

    async def get(
        self, url: str, *, host: str = "", headers: Mapping[str, str] | None = None, method: str = "GET", **more: Any
    ) -> httpx.Response:
        """The reply to a request; ``more`` is what httpx takes."""
        named = {"host": host} if host else {}
        return await self.client.request(method, url, headers={**named, **(headers or {})}, **more)

    async def https(
        self,
        port: int,
        host: str,
        path: str = "/",
        *,
        ca: Path,
        own: CertificateFiles | None = None,
        address: str = "127.0.0.1",
        **more: Any,
    ) -> httpx.Response:
        """The reply over its own connection, with the host as SNI, its certificate verified by ``ca``."""
        context = ssl.create_default_context(cafile=str(ca))
        if own is not None:
            context.load_cert_chain(own.certificate, own.key)
        async with httpx.AsyncClient(verify=context, timeout=60, trust_env=False) as client:
            url = f"https://{address}:{port}{path}"
            return await client.get(url, headers={"host": host}, extensions={"sni_hostname": host}, **more)

    async def names(
        self, url: str, *, host: str, count: int = 20, headers: dict[str, str] | None = None
    ) -> Counter[str]:
        """Who answers ``count`` requests."""
        found: Counter[str] = Counter()
        for _ in range(count):
            reply = await self.get(url, host=host, headers=headers)
            found[reply.json()["name"] if reply.status_code == 200 else str(reply.status_code)] += 1
        return found

    async def until_answered_by(self, names: set[str], url: str, *, host: str) -> None:
        """Wait until exactly these backends answer."""

        async def only() -> bool:
            return set(await self.names(url, host=host, count=12)) == names

        await eventually(only, what=f"{url} answered by {sorted(names)} only")

    @asynccontextmanager
    async def load(self, url: str, *, host: str) -> AsyncIterator[Load]:
        """Load while the block runs, over one connection that is kept, and one that is new each time."""
        load = Load()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask, load, url, host, False)
            nursery.start_soon(self._ask, load, url, host, True)
            await eventually(lambda: sum(load.answers.values()) > 10, what="load is answered")
            yield load
            before = sum(load.answers.values())
            await eventually(lambda: sum(load.answers.values()) > before + 10, what="load is answered to the end")
            nursery.cancel_scope.cancel()

    async def _ask(self, load: Load, url: str, host: str, fresh: bool) -> None:
        headers = {"host": host, **({"connection": "close"} if fresh else {})}
        while True:
            try:
                reply = await self.client.get(url, headers=headers)
            except httpx.HTTPError as error:
                load.failures.append(repr(error))
                continue
            if reply.status_code == 200:
                load.answers[reply.json()["name"]] += 1
            else:
                load.failures.append(f"{reply.status_code} {reply.text}")

    async def assert_all_taken(self) -> None:
        """The control plane refuses no config any more, and no Envoy has refused anything that it was sent."""
        with suppress(AssertionError):  # Consul tells of what belongs together in parts.
            await eventually(lambda: not self.plane.state.world.rejections(), seconds=10)
        self.assert_nothing_refused()
        for envoy in self.envoys:
            assert await envoy.rejected() == {}, envoy.log.read_text()[-2000:]


@asynccontextmanager
async def fleet(
    folder: Path,
    config: str = "",
    *,
    mesh: str = "",
    grpc_addr: str = "127.0.0.1:0",
    secrets: Path | None = None,
    trust_local: bool = True,
    **more: Any,
) -> AsyncIterator[Fleet]:
    """A control plane that serves ``config``, ready; no Envoy yet. ``more`` are Settings."""
    (folder / "config").mkdir()
    if config:
        _write(folder / "config" / "config.yaml", config)
    _write(folder / "mesh.yaml", mesh or "{}")
    anywhere = "127.0.0.1:0"
    settings = Settings(
        config_dirs=(folder / "config",),
        mesh_config=folder / "mesh.yaml",
        secrets_dir=secrets,
        grpc_addr=grpc_addr,
        secure_grpc_addr=anywhere,
        trust_local=trust_local,
        http_addr=anywhere,
        monitoring_addr=anywhere,
        shutdown_seconds=1.0,
        debounce_after=0.02,
        **more,
    )
    async with AsyncExitStack() as stack:
        plane = await stack.enter_async_context(control_plane(settings))
        with trio.fail_after(60):
            await plane.wait_ready()
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=60, trust_env=False))
        yield Fleet(folder, plane, stack, client)


def _write(path: Path, text: str) -> None:
    whole = path.with_name(f".{path.name}.new")
    whole.write_text(text, encoding="utf-8")
    whole.rename(path)
