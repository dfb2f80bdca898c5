"""Requests to many hosts through a real Envoy, all the time, while its control plane and configuration change.

    async with hitless(tmp_path, free_ports, delta=True) as at:
        await at.plane.kill()
        at.move_all()
        await at.plane.start()
        await at.until_moved()

Leaving the block asserts that no request failed and that Envoy refused nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import httpx
import trio

from mesh_pilot.model.proxy import NodeType
from tests.support.echo import Backend, http_backend
from tests.support.envoy import RealEnvoy, eventually, real_envoy
from tests.support.manifests import at, manifest, service
from tests.support.plane_process import PlaneProcess
from tests.support.shop import CLIENT, EDGE

HOSTS = tuple(f"h{number}.test" for number in range(5))
VARIANTS = ("sotw", "delta")

PAUSE_SECONDS = 0.003
"""Between requests, so that the control plane has its share of the machine."""


@attrs.define
class Hitless:
    """What runs, what was asked, and what came of it."""

    folder: Path
    plane: PlaneProcess
    envoy: RealEnvoy
    backends: tuple[Backend, Backend]
    port: int
    """Where every host is served."""
    answers: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    """Replies by host and backend."""
    failures: list[str] = attrs.field(factory=list)
    round: int = 0
    """How often the routes have moved."""

    def write(self, name: str, text: str | None) -> None:
        """Put a file in place as an editor does: whole; None deletes it."""
        file = self.folder / "config" / name
        if text is None:
            file.unlink()
            return
        whole = self.folder / f".{name}.new"
        whole.write_text(text)
        whole.rename(file)

    def move_all(self) -> None:
        """Each host's route moves to a service made for it, at the other backend; the service it leaves goes."""
        self.round += 1
        backend = self.backends[self.round % 2]
        for host in HOSTS:
            target = f"{host.removesuffix('.test')}-{self.round}.test"
            text = service(target, self.port, at(backend)) + unretried(host, target)
            self.write(f"{host}.yaml", text)

    async def until_moved(self) -> None:
        """Wait until every host is answered by the backend of this round, and by no other."""
        name = self.backends[self.round % 2].name
        self.answers.clear()
        await eventually(
            lambda: self._all_by(name), seconds=60, what=f"answered by {name}: {self.answers}, {self.failures[:3]}"
        )

    def _all_by(self, name: str) -> bool:
        """True if the last replies were all this backend's: other replies start the count again."""
        if any(backend != name for _, backend in self.answers):
            self.answers.clear()
        return all(self.answers[host, name] > 4 for host in HOSTS)

    async def load(self, *, fresh: bool) -> None:
        """Requests to all hosts in turn, on a connection that is kept or on new ones."""
        more = {"connection": "close"} if fresh else {}
        async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
            while True:
                for host in HOSTS:
                    await trio.sleep(PAUSE_SECONDS)
                    try:
                        reply = await client.get(f"http://127.0.0.1:{self.port}/", headers={"host": host, **more})
                    except httpx.HTTPError as error:
                        self.failures.append(f"{host}: {error!r}")
                        continue
                    if reply.status_code == 200:
                        self.answers[host, reply.json()["name"]] += 1
                    else:
                        self.failures.append(f"{host}: {reply.status_code} {reply.text}")


def unretried(host: str, target: str) -> str:
    """A route after which every failure is seen, for sidecars and for the gateway."""
    http = [{"retries": {"attempts": 0}, "route": [{"destination": {"host": target}}]}]
    spec = {"hosts": [host], "gateways": ["mesh", "edge"], "http": http}
    return manifest("VirtualService", host.removesuffix(".test"), spec)


@asynccontextmanager
async def hitless(
    folder: Path,
    free_ports: Callable[[int], list[int]],
    *,
    delta: bool,
    kind: NodeType = NodeType.SIDECAR,
    services: bool = False,
    flags: Sequence[str] = (),
) -> AsyncIterator[Hitless]:
    """A control plane in a separate process, an Envoy, two backends, and requests while the block runs.

    The hosts themselves are services for sidecars, and with ``services`` for the gateway too. ``flags`` are more of the
    control plane's.
    """
    (folder / "config").mkdir()
    port, *addresses = free_ports(4)
    plane = PlaneProcess(folder / "plane.log", addresses, f"--config-dir={folder / 'config'}", *flags)
    async with http_backend("even") as even, http_backend("odd") as odd:
        node = EDGE if kind is NodeType.ROUTER else CLIENT
        async with (
            real_envoy(plane.grpc, folder, node, delta=delta, reconnects_soon=True) as envoy,
            trio.open_nursery() as nursery,
        ):
            running = Hitless(folder, plane, envoy, (even, odd), port)
            if kind is NodeType.ROUTER:
                server = {"port": {"number": port, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}
                gateway = {"selector": {"istio": "edge"}, "servers": [server]}
                running.write("edge.yaml", manifest("Gateway", "edge", gateway))
            if kind is NodeType.SIDECAR or services:
                running.write("hosts.yaml", "".join(service(host, port, at(even)) for host in HOSTS))
            running.move_all()
            await plane.start()
            try:
                await envoy.wait_live()
                await eventually(envoy.takes_traffic, what="Envoy's workers run")
                nursery.start_soon(lambda: running.load(fresh=False))
                nursery.start_soon(lambda: running.load(fresh=True))
                await running.until_moved()
                yield running
                running.answers.clear()
                await eventually(lambda: running.answers.total() > 50, what="requests are answered to the end")
                assert not running.failures, f"{len(running.failures)} failed: {running.failures[:5]}"
                assert await envoy.rejected() == {}
            finally:
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    await plane.kill()
