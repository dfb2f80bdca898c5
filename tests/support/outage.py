"""A mesh in Consul, called through three real Envoys without a pause, whose parts a test takes away and brings back.

    async with consul_mesh(tmp_path, free_ports) as at:
        await at.plane.kill()
        await at.consul.kill()
        await at.plane.start()           # from its state folder
        newcomer = await at.join("newcomer")

Envoys: ``sotw`` and ``delta``, sidecars, and ``edge``, a gateway. Services of Consul: ``steady``; ``moved``; ``gone``;
and ``edited``, a host of an Istio object in Consul's KV store. Requests go to each host at each Envoy, over a
connection that is kept and over new ones. Leaving the block asserts that none failed that had to be answered.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.proxy import Interception, NodeType
from tests.support.consul import Cable, Consul, cable, real_consul
from tests.support.echo import Backend, http_backend
from tests.support.envoy import RealEnvoy, eventually, real_envoy
from tests.support.plane_process import PlaneProcess

PREFIX = "mesh-pilot/config"
SERVICES = ("steady", "moved", "gone")
EDITED = "edited.test"
HOSTS = (*(f"{name}.service.consul" for name in SERVICES), EDITED)
GONE = "gone.service.consul"
MOVED = "moved.service.consul"

PAUSE_SECONDS = 0.02
"""Between requests of one client, so that all that runs has its share of the machine."""

SENT = r"^((cluster_manager\.cluster|listener_manager\.listener)_(added|modified|removed)|.*\.config_reload)$"
"""The statistics of Envoy that count what it was sent and what was not the same as before."""

TAKEN = r"^(cluster_manager\.cds|listener_manager\.lds|cluster\..*|http\..*\.rds\..*)\.update_success$"
"""Those that count responses, with the same or with another content."""


class RestartingConsul:
    """A real Consul server with its data on disk, at fixed ports."""

    def __init__(self, folder: Path, ports: Sequence[int]) -> None:
        self.ports = ports
        self.data = folder / "consul-data"
        self._folder = folder
        self._stack = AsyncExitStack()
        self.agent: Consul | None = None

    @property
    def running(self) -> Consul:
        assert self.agent is not None, "Consul does not run"
        return self.agent

    async def start(self) -> None:
        """Until it has a leader."""
        arguments = ("-server", "-bootstrap-expect=1", "-data-dir", str(self.data))
        config = {"performance": {"raft_multiplier": 1}}
        agent = real_consul(self._folder, self.ports, arguments=arguments, config=config)
        self.agent = await self._stack.enter_async_context(agent)

    async def kill(self) -> None:
        if self.agent is not None:
            await self.agent.kill()
            await self._stack.aclose()
            self.agent = None


@attrs.define
class Requests:
    """State: what came of the requests so far."""

    hosts: tuple[str, ...]
    answers: Counter[tuple[str, str, str]] = attrs.field(factory=Counter)
    """By Envoy, host and backend."""
    failures: list[tuple[str, str, str]] = attrs.field(factory=list)
    """Envoy, host, and what was wrong."""

    async def run(self, envoy: str, address: str, *, fresh: bool) -> None:
        """Requests to all hosts in turn, until cancelled."""
        more = {"connection": "close"} if fresh else {}
        async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
            while True:
                for host in self.hosts:
                    await trio.sleep(PAUSE_SECONDS)
                    try:
                        reply = await client.get(f"http://{address}/", headers={"host": host, **more})
                    except httpx.HTTPError as error:
                        self.failures.append((envoy, host, repr(error)))
                        continue
                    if reply.status_code == 200:
                        self.answers[envoy, host, reply.json()["name"]] += 1
                    else:
                        self.failures.append((envoy, host, f"{reply.status_code} {reply.text}"))

    async def go_on(self, count: int = 4) -> None:
        """Wait until each host that had an answer at an Envoy has had more of them."""
        wanted = {(envoy, host) for envoy, host, _ in self.answers if host != GONE}
        self.answers.clear()

        def answered() -> bool:
            found = Counter[tuple[str, str]]()
            for (envoy, host, _), number in self.answers.items():
                found[envoy, host] += number
            return all(found[pair] >= count for pair in wanted)

        await eventually(answered, what=f"answers from all of {wanted}; failures: {self.failures[:3]}")


@attrs.define
class ConsulMesh:
    """What runs, and what a test does with it."""

    folder: Path
    plane: PlaneProcess
    consul: RestartingConsul
    line: Cable
    """Between the control plane and Consul."""
    port: int
    """Of the services, at the sidecars; the gateway's is the next field."""
    edge_port: int
    one: Backend
    two: Backend
    requests: Requests
    envoys: dict[str, RealEnvoy]
    _stack: AsyncExitStack
    _nursery: trio.Nursery

    # -- data

    async def put_service(self, name: str, backend: Backend) -> None:
        meta = {"protocol": "http", "service_port": str(self.port)}
        await self.consul.running.register(name, address=backend.host, port=backend.port, meta=meta)

    async def put_object(self, kind: str, name: str, spec: Mapping[str, Any]) -> None:
        await self.consul.running.put(f"{PREFIX}/{kind}/default/{name}", _yaml(kind, spec))

    async def put_route(self, host: str, destination: str) -> None:
        """A route after which every failure is seen, at sidecars and at the gateway."""
        http = [{"retries": {"attempts": 0}, "route": [{"destination": {"host": destination}}]}]
        spec = {"hosts": [host], "gateways": ["mesh", "default/edge"], "http": http}
        await self.put_object("VirtualService", host.partition(".")[0], spec)

    async def fill(self) -> None:
        """Everything that is there at first, all of it answered by the first backend."""
        for name in SERVICES:
            await self.put_service(name, self.one)
            await self.put_route(f"{name}.service.consul", f"{name}.service.consul")
        await self.put_service("other", self.two)
        entry = {"hosts": [EDITED], "location": "MESH_INTERNAL", "resolution": "STATIC"}
        entry["ports"] = [{"number": self.port, "name": "http", "protocol": "HTTP"}]
        entry["endpoints"] = [{"address": self.two.host, "ports": {"http": self.two.port}}]
        await self.put_object("ServiceEntry", "edited", entry)
        await self.put_route(EDITED, "steady.service.consul")
        server = {"port": {"number": self.edge_port, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}
        await self.put_object("Gateway", "edge", {"selector": {"istio": "edge"}, "servers": [server]})
        for number, name in enumerate(("sotw", "delta", "newcomer", "latecomer"), 1):
            await self.put_object("Sidecar", name, self._sidecar(name, f"127.0.1.{number}"))

    def _sidecar(self, name: str, address: str) -> dict[str, Any]:
        port = {"number": self.port, "name": "http", "protocol": "HTTP"}
        return {
            "workloadSelector": {"labels": {"app": name}},
            "egress": [{"port": port, "bind": address, "hosts": ["*/*"]}],
        }

    async def change(self) -> None:
        """What an hour brings: a service moves, a route is edited, a service goes."""
        await self.put_service("moved", self.two)
        await self.put_route(EDITED, "other.service.consul")
        await self.consul.running.deregister("gone")

    # -- Envoys

    async def join(self, name: str, *, delta: bool = True) -> RealEnvoy:
        """A new Envoy, until it has everything and takes traffic; from then on it is asked, too."""
        if name == "edge":
            node = EnvoyNode("edge", "default", "127.0.2.9", NodeType.ROUTER, labels={"istio": "edge"})
            address = f"127.0.0.1:{self.edge_port}"
        else:
            number = ("sotw", "delta", "newcomer", "latecomer").index(name) + 1
            node = EnvoyNode(name, "default", f"127.0.2.{number}", labels={"app": name}, interception=Interception.NONE)
            address = f"127.0.1.{number}:{self.port}"
        envoy = await self._stack.enter_async_context(
            real_envoy(self.plane.grpc, self.folder, node, delta=delta, name=name, reconnects_soon=True)
        )
        with trio.fail_after(60):
            await envoy.wait_live()
        await eventually(envoy.takes_traffic, what=f"the workers of {name} run")
        self.envoys[name] = envoy
        for fresh in (False, True):
            self._nursery.start_soon(lambda f=fresh: self.requests.run(name, address, fresh=f))
        mine = self.requests.answers
        await eventually(
            lambda: all(any(key[:2] == (name, host) for key in mine) for host in HOSTS if host != GONE),
            what=f"{name} answers; failures: {self.requests.failures[:3]}",
        )
        return envoy

    async def connected(self) -> None:
        """Wait until all Envoys are connected to the control plane."""
        for name, envoy in self.envoys.items():
            await eventually(envoy.connected, what=f"{name} is connected")

    async def counters(self, regex: str) -> dict[str, dict[str, int]]:
        """Statistics of all Envoys."""
        return {name: await envoy.stats(regex) for name, envoy in self.envoys.items()}

    async def changed(self) -> None:
        """Wait until all Envoys do what `change` says, and nothing else."""
        wanted = {MOVED: "two", EDITED: "two", HOSTS[0]: "one"}

        def is_so() -> bool:
            for _, host, name in list(self.requests.answers):
                if host in wanted and wanted[host] != name:
                    self.requests.answers.clear()
                    return False
            return all(
                self.requests.answers[envoy, host, name] > 4 for envoy in self.envoys for host, name in wanted.items()
            )

        self.requests.answers.clear()
        await eventually(is_so, seconds=90, what=f"the change arrives: {self.requests.answers}")

    def failed(self, *, besides: str = "") -> list[tuple[str, str, str]]:
        return [failure for failure in self.requests.failures if failure[1] != besides]


def _yaml(kind: str, spec: Mapping[str, Any]) -> str:
    return json.dumps({"apiVersion": "networking.istio.io/v1", "kind": kind, "spec": spec}, indent=1)


@asynccontextmanager
async def consul_mesh(
    folder: Path, free_ports: Callable[[int], list[int]], *arguments: str
) -> AsyncIterator[ConsulMesh]:
    """Everything runs and is filled; ``arguments`` are more of ``mesh-pilot discovery``. Its state is in ``state``."""
    port, edge_port, *ports = free_ports(9)
    (folder / "mesh.yaml").write_text("outboundTrafficPolicy: {mode: REGISTRY_ONLY}\n")
    consul = RestartingConsul(folder, ports[3:7])
    async with AsyncExitStack() as stack:
        await consul.start()
        stack.push_async_callback(consul.kill)
        line = await stack.enter_async_context(cable(ports[3]))
        plane = PlaneProcess(
            folder / "plane.log",
            ports[:3],
            f"--consul-server-url={line.address}",
            f"--consul-config-prefix={PREFIX}",
            f"--mesh-config={folder / 'mesh.yaml'}",
            f"--state-dir={folder / 'state'}",
            *arguments,
        )
        one = await stack.enter_async_context(http_backend("one"))
        two = await stack.enter_async_context(http_backend("two"))
        nursery = await stack.enter_async_context(trio.open_nursery())
        requests = Requests(HOSTS)
        at = ConsulMesh(folder, plane, consul, line, port, edge_port, one, two, requests, {}, stack, nursery)
        await at.fill()
        await plane.start()
        try:
            await at.join("sotw", delta=False)
            await at.join("delta")
            await at.join("edge")
            requests.failures.clear()
            await requests.go_on()
            yield at
            await requests.go_on()
            for name, envoy in at.envoys.items():
                assert await envoy.rejected() == {}, name
        finally:
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await plane.kill()
