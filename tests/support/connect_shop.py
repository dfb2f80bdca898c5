"""A shop of three services in a real Consul's mesh, which move to proxies of ours one by one under load.

    async with connect_shop(tmp_path, free_ports) as shop:
        await shop.start_with_connect()
        async with shop.load() as load:
            await shop.move("db")

Each instance has its own loopback address, where its proxy listens; its application listens on 127.0.0.1 alone.
``web`` calls ``api`` and ``db``, ``api`` calls ``db``. Intentions let ``web`` call ``api`` below ``/via``, ``api`` call
``db`` for ``/items``, and nobody else anybody.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.cli.demo.envoy_process import running_envoy
from mesh_pilot.consul.client.settings import ConsulTiming
from mesh_pilot.consul.source import Agent, ConsulRegistry, ConsulSettings
from mesh_pilot.model.proxy import Interception
from tests.support.binaries import require_binary
from tests.support.consul import Consul
from tests.support.envoy import RealEnvoy, eventually
from tests.support.fleet import Fleet, fleet

Ports = Callable[[int], list[int]]

APP = Path(__file__).parents[2] / "samples" / "migrate-consul" / "shop.py"
CALLS: Mapping[str, tuple[str, ...]] = {"web": ("api", "db"), "api": ("db",), "db": ()}
GOOD = "/via/api/via/db/items"
BAD = ("/via/db/items", "/via/api/via/db/admin", "/via/api/secret")
"""What no intention allows: web to db, and two paths that the permissions of layer 7 do not have."""

STRICT = """
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
"""


@attrs.define
class Instance:
    """An instance of a service with its application and its proxy."""

    service: str
    generation: int
    ip: str
    port: int
    """Of its application on 127.0.0.1."""
    upstreams: Mapping[str, int]
    """The ports at its address where its application finds others."""
    sidecar: int
    proxy: RealEnvoy | None = None
    scopes: list[trio.CancelScope] = attrs.field(factory=list)

    @property
    def id(self) -> str:
        return f"{self.service}-{self.generation}"


@attrs.define
class Load:
    answers: Counter[tuple[str, ...]] = attrs.field(factory=Counter)
    failures: list[str] = attrs.field(factory=list)


class Shop:
    """What runs, and what a test does with it."""

    def __init__(
        self, folder: Path, ports: Ports, consul: Consul, grpc: int, mesh: Fleet, nursery: trio.Nursery
    ) -> None:
        self.folder, self.ports, self.consul, self.grpc, self.mesh = folder, ports, consul, grpc, mesh
        self.nursery = nursery
        self.current: dict[str, Instance] = {}
        self.service_ports = dict(zip(CALLS, ports(3), strict=True))

    async def start_with_connect(self) -> None:
        """All three services in Consul's own mesh."""
        consul = self.consul
        await consul.ask("PUT", "/v1/config", json=_entry("proxy-defaults", "global", Config={"protocol": "http"}))
        for entry in _intentions():
            await consul.ask("PUT", "/v1/config", json=entry)
        for number, service in enumerate(CALLS, 2):
            instance = self.instance(service, 1, f"127.0.0.{number}")
            await self.start_app(instance)
            await self.register(instance, {}, sidecar=instance.sidecar)
            instance.proxy = await self.start_connect_proxy(instance)
            self.current[service] = instance
        await self.until(GOOD, 200)

    def instance(self, service: str, generation: int, ip: str) -> Instance:
        app, sidecar, *ports = self.ports(2 + len(CALLS[service]))
        own = dict(zip(CALLS[service], ports, strict=True))
        if generation > 1:  # proxies of ours are called by the ports of services, at their own address
            own = {name: self.service_ports[name] for name in CALLS[service]}
        return Instance(service, generation, ip, app, own, sidecar)

    async def start_app(self, instance: Instance) -> None:
        upstreams = [f"{name}={instance.ip}:{port}" for name, port in instance.upstreams.items()]
        command = [sys.executable, str(APP), instance.id, str(instance.port), *upstreams]
        scope = await self.nursery.start(self._run, command)
        instance.scopes.append(scope)
        await eventually(lambda: _listens("127.0.0.1", instance.port), what=f"{instance.id} listens")

    async def _run(self, command: list[str], *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        with trio.CancelScope() as scope:
            process = await trio.lowlevel.open_process(command, stdin=subprocess.DEVNULL, start_new_session=True)
            try:
                task_status.started(scope)
                await trio.sleep_forever()
            finally:
                process.kill()
                with trio.CancelScope(shield=True):
                    await process.wait()

    async def register(self, instance: Instance, meta: Mapping[str, str], *, sidecar: int) -> None:
        """Put it into Consul; ``sidecar``: where Consul's proxies call it, 0: nowhere."""
        upstreams = [
            {"DestinationName": name, "LocalBindAddress": instance.ip, "LocalBindPort": port}
            for name, port in instance.upstreams.items()
        ]
        proxy = {"Upstreams": upstreams, "LocalServiceAddress": "127.0.0.1", "LocalServicePort": instance.port}
        checks = [{"AliasService": instance.id}]
        connect = {"SidecarService": {"Port": sidecar, "Address": instance.ip, "Proxy": proxy, "Checks": checks}}
        await self.consul.register(
            instance.service,
            id=instance.id,
            address=instance.ip,
            port=instance.port,
            meta={"service_port": str(self.service_ports[instance.service]), **meta},
            **({"Connect": connect} if sidecar else {}),
        )

    async def start_connect_proxy(self, instance: Instance) -> RealEnvoy:
        """Consul's own Envoy, as `consul connect envoy` starts it."""
        command = [
            *(
                str(require_binary("consul", "CONSUL_NEW")),
                "connect",
                "envoy",
                f"-sidecar-for={instance.id}",
                "-bootstrap",
            ),
            *(f"-http-addr=127.0.0.1:{self.consul.port}", f"-grpc-addr=127.0.0.1:{self.grpc}"),
            *("-ignore-envoy-compatibility", "-admin-bind=127.0.0.1:0"),
        ]
        made = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        assert made.returncode == 0, made.stderr.decode()
        return await self._envoy(
            instance, running_envoy(json.loads(made.stdout), self.folder, name=f"{instance.id}-connect")
        )

    async def _envoy(self, instance: Instance, running: Any) -> RealEnvoy:
        scope, envoy = await self.nursery.start(self._hold, running)
        instance.scopes.append(scope)
        with trio.fail_after(60):
            await envoy.wait_live()
        return envoy

    async def _hold(self, running: Any, *, task_status: Any) -> None:
        with trio.CancelScope() as scope:
            async with running as process:
                envoy = RealEnvoy(process.process, process.admin, process.log, process.client)
                task_status.started((scope, envoy))
                await trio.sleep_forever()

    # -- requests

    async def ask(self, path: str) -> tuple[int, tuple[str, ...]]:
        """The status of a request to web, and who took part."""
        web = self.current["web"]
        reply = await self.mesh.client.get(f"http://127.0.0.1:{web.port}{path}")
        return reply.status_code, tuple(reply.json())

    async def until(self, path: str, status: int, by: set[str] | None = None) -> None:
        seen: Any = None

        async def is_so() -> bool:
            nonlocal seen
            seen = await self.ask(path)
            return seen[0] == status and (by is None or set(seen[1]) == by)

        with suppress(AssertionError):
            await eventually(is_so, seconds=40)
            return
        raise AssertionError(f"{path}: {seen}, not {status} by {by}")

    # -- moving

    async def start_moved(self, service: str) -> Instance:
        """A second instance, with a proxy of ours that nobody calls yet."""
        number = 2 + list(CALLS).index(service)
        instance = self.instance(service, 2, f"127.0.0.{10 + number}")
        await self.start_app(instance)
        await self.register(instance, {"tls_mode": "consul-connect"}, sidecar=0)
        self.mesh.write(_egress(instance), f"{instance.id}.yaml")
        metadata = {"SERVICE_ACCOUNT": service}
        node = EnvoyNode(
            instance.id, "default", instance.ip, labels={"app": instance.id}, interception=Interception.NONE,
            metadata=metadata,
        )  # fmt: skip
        instance.proxy = await self.mesh.envoy(node)
        proxy = instance.proxy

        wanted = {f"consul-connect:service/{service}", *(["consul-connect:caller"] if CALLS[service] else [])}

        async def is_ready() -> bool:
            secrets = await proxy.dynamic("Secret")
            has = {name for name, secret in secrets.items() if "tls_certificate" in secret}
            return wanted <= has and await _listens(instance.ip, instance.port)

        await eventually(is_ready, what=f"{instance.id} has a leaf and listens")
        return instance

    async def put_in(self, instance: Instance) -> None:
        """Let both meshes call it: ours by its proxy's own certificate, Consul's as a sidecar."""
        await self.register(instance, {"tls_mode": "istio"}, sidecar=instance.port)

    async def take_out(self, instance: Instance) -> None:
        """Out of the catalog; its proxy ends once nobody calls it."""
        await self.consul.deregister(f"{instance.id}-sidecar-proxy")
        await self.consul.deregister(instance.id)

    async def end(self, instance: Instance) -> None:
        for scope in reversed(instance.scopes):
            scope.cancel()

    async def move(self, service: str) -> None:
        """One service moves: a new instance with a proxy of ours next to it takes the place of the old one."""
        old, new = self.current[service], await self.start_moved(service)
        await self.put_in(new)
        self.current[service] = new

        async def answers() -> bool:
            return new.id in (await self.ask(GOOD))[1]

        await eventually(answers, what=f"{new.id} answers")
        await self.take_out(old)
        await self.until_only()
        await self.end(old)

    async def until_only(self) -> None:
        """Wait until requests are answered by the present instances alone, many times over."""
        present = {each.id for each in self.current.values()}

        async def only() -> bool:
            found = [await self.ask(GOOD) for _ in range(20)]
            return all(status == 200 and set(by) == present for status, by in found)

        await eventually(only, what=f"answered by {sorted(present)} alone")

    async def check_intentions(self) -> None:
        """What intentions allow is answered, what they deny is refused, as often as it is asked."""
        for _ in range(3):
            assert (await self.ask(GOOD))[0] == 200
            for path in BAD:
                status, by = await self.ask(path)
                assert status == 403, f"{path}: {status} by {by}"

    async def check_hops(self) -> None:
        """Every connection of a proxy to another one was mutual TLS, and none takes another."""
        for name, instance in self.current.items():
            proxy = instance.proxy
            assert proxy is not None
            for other in CALLS[name]:
                stats = await proxy.stats(rf"cluster\..*\b{other}\.")
                shaken = _sum(stats, "ssl.handshake")
                assert shaken > 0, f"{instance.id} to {other}: {stats}"
                assert _sum(stats, "tlsMode-disabled.total_match_count") == 0, stats
                assert shaken >= _sum(stats, "upstream_cx_total") - _sum(stats, "upstream_cx_connect_fail"), stats
            at = instance.port if instance.generation == 2 else instance.sidecar
            with pytest.raises(httpx.TransportError):
                await self.mesh.client.get(f"http://{instance.ip}:{at}/items")
            with pytest.raises(OSError):
                await trio.open_tcp_stream(instance.ip, instance.port if instance.generation == 1 else instance.sidecar)

    @asynccontextmanager
    async def load(self) -> AsyncIterator[Load]:
        """Requests one after another, each over its own connection, while the block runs."""
        load = Load()
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(self._load, load)
            await eventually(lambda: load.answers.total() > 10, what="load is answered")
            yield load
            before = load.answers.total()
            await eventually(lambda: load.answers.total() > before + 20, what="load is answered to the end")
            nursery.cancel_scope.cancel()

    async def _load(self, load: Load) -> None:
        while True:
            try:
                status, by = await self.ask(GOOD)
            except (httpx.HTTPError, ValueError) as error:
                load.failures.append(repr(error))
                continue
            if status == 200:
                load.answers[by] += 1
            else:
                load.failures.append(f"{status} {by}")


def _sum(stats: Mapping[str, int], end: str) -> int:
    return sum(value for name, value in stats.items() if name.endswith(end))


def _entry(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"Kind": kind, "Name": name, **more}


def _intentions() -> list[dict[str, Any]]:
    def allowing(source: str, prefix: str) -> dict[str, Any]:
        permissions = [
            {"Action": "allow", "HTTP": {"PathPrefix": prefix}},
            {"Action": "deny", "HTTP": {"PathPrefix": "/"}},
        ]
        return {"Name": source, "Permissions": permissions}

    return [
        _entry("service-intentions", "*", Sources=[{"Name": "*", "Action": "deny"}]),
        _entry("service-intentions", "api", Sources=[allowing("web", "/via")]),
        _entry("service-intentions", "db", Sources=[allowing("api", "/items")]),
    ]


def _egress(instance: Instance) -> str:
    listeners = "".join(
        f"""
  - port: {{number: {port}, name: http-{name}, protocol: HTTP}}
    bind: {instance.ip}
    hosts: ["./{name}.service.consul"]"""
        for name, port in instance.upstreams.items()
    )
    return f"""
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: {instance.id}, namespace: default}}
spec:
  workloadSelector: {{labels: {{app: {instance.id}}}}}
  egress:{listeners or ' [{hosts: ["~/*"]}]'}
"""


async def _listens(host: str, port: int) -> bool:
    try:
        await (await trio.open_tcp_stream(host, port)).aclose()
    except OSError:
        return False
    return True


@asynccontextmanager
async def connect_shop(folder: Path, ports: Ports, consul: Consul, grpc: int) -> AsyncIterator[Shop]:
    """A plane of ours next to a Consul with Connect; the shop is yet to start."""
    settings = ConsulSettings(
        agent=Agent(consul.address), mesh=True, connect=True, timing=ConsulTiming(hold_seconds=0.3)
    )
    async with (
        fleet(folder, STRICT, registries=(ConsulRegistry((settings,)),), guard=None) as mesh,
        trio.open_nursery() as nursery,
    ):
        yield Shop(folder, ports, consul, grpc, mesh, nursery)
        nursery.cancel_scope.cancel()
