"""Everything that the demo runs: a control plane on a copy of the sample, three backends, two real Envoys."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from importlib.resources import as_file, files
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory

import attrs
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import DRAIN_FLAGS, EnvoyNode, envoy_bootstrap
from mesh_pilot.app.control_plane import ControlPlane, control_plane
from mesh_pilot.app.settings import Settings
from mesh_pilot.cli.demo.consul_process import ConsulProcess, free_ports, running_consul
from mesh_pilot.cli.demo.envoy_process import EnvoyProcess, running_envoy
from mesh_pilot.cli.demo.traffic import Backend, Door, run_backend
from mesh_pilot.consul.source import Agent, ConsulRegistry, ConsulSettings
from mesh_pilot.model.proxy import Interception, NodeType
from mesh_pilot.model.resource import ROUTE
from mesh_pilot.sources.base.contract import Registry
from mesh_pilot.xds.ads.messages import Phase
from mesh_pilot.xds.ads.status import TypeStatus

SIDECAR = EnvoyNode("shop-1", "shop", "127.0.0.2", labels={"app": "shop"}, interception=Interception.NONE)
GATEWAY = EnvoyNode("edge-1", "shop", "127.0.0.3", NodeType.ROUTER, labels={"istio": "edge"})

CONSUL_HOST = "reviews.service.consul"
"""The name of the sample's service in Consul."""

BACKENDS = {9101: "v1", 9102: "v2-a", 9103: "v2-b"}
"""The backends by their ports in the sample."""


@attrs.frozen
class Stage:
    """The running processes."""

    sample: Sample
    plane: ControlPlane
    backends: Mapping[str, Backend]
    envoys: Mapping[str, EnvoyProcess]
    """``sidecar`` (State of the World) and ``gateway`` (Delta)."""
    doors: tuple[Door, ...]

    def route_versions(self) -> dict[str, str]:
        """The version of the routes that each proxy has accepted, by proxy."""
        return {name: status.subscription.acked_version for name, status in self._routes().items()}

    def routes_taken_since(self, before: Mapping[str, str]) -> dict[str, datetime] | None:
        """When each Envoy accepted routes that are not those of ``before``; None while one of them has not."""
        times = {
            name: status.acked_at
            for name, status in self._routes().items()
            if status.subscription.phase is Phase.ACKED and status.subscription.acked_version != before.get(name)
        }
        found = {name: at for name, at in times.items() if at is not None}
        return found if len(found) == len(self.envoys) else None

    def _routes(self) -> dict[str, TypeStatus]:
        names = {f"{SIDECAR.name}.{SIDECAR.namespace}": "sidecar", f"{GATEWAY.name}.{GATEWAY.namespace}": "gateway"}
        return {
            names[connection.proxy.name]: status
            for connection in self.plane.state.xds.status.connections()
            if connection.proxy is not None and connection.proxy.name in names
            for status in connection.types
            if status.type_url == ROUTE
        }


@asynccontextmanager
async def stage(*, with_consul: bool = False) -> AsyncIterator[Stage]:
    """Start it all, on the loopback and on free ports; it takes traffic when the block begins and is gone after it.

    ``with_consul``: the backends are registered in a Consul instead of a file. Raises ConsulProcessError.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="mesh-pilot-demo-")))
        sample = copy_sample(folder / "mesh")
        nursery = await stack.enter_async_context(trio.open_nursery())
        stack.callback(nursery.cancel_scope.cancel)
        backends = {}
        for port, name in BACKENDS.items():
            backends[name] = await nursery.start(run_backend, name, sample.ports[port])
        registries: tuple[Registry, ...] = ()
        if with_consul:
            agent = await stack.enter_async_context(running_consul(folder))
            sample.take_services_from(CONSUL_HOST)
            await _register(agent, sample)
            registries = (ConsulRegistry((ConsulSettings(agent=Agent(agent.address), namespace="shop"),)),)
        plane = await stack.enter_async_context(control_plane(_settings(sample, registries)))
        await plane.wait_ready()
        envoys = {}
        for name, node, delta in (("sidecar", SIDECAR, False), ("gateway", GATEWAY, True)):
            bootstrap = envoy_bootstrap(node, plane.addresses.grpc, delta=delta)
            envoys[name] = await stack.enter_async_context(
                running_envoy(bootstrap, folder, name=name, flags=DRAIN_FLAGS)
            )
        for envoy in envoys.values():
            await envoy.wait_live()
        doors = (
            Door("sidecar", f"127.0.0.1:{sample.ports[9080]}", sample.host),
            Door("gateway", f"127.0.0.1:{sample.ports[9000]}", "shop.example.com"),
        )
        yield Stage(sample, plane, backends, envoys, doors)


async def _register(agent: ConsulProcess, sample: Sample) -> None:
    """Put the backends into Consul, as the sample's file has them."""
    for port, name in BACKENDS.items():
        meta = {"protocol": "http", "service_port": str(sample.ports[9080]), "version": name.partition("-")[0]}
        await agent.register("reviews", f"reviews-{name}", sample.ports[port], meta)


def _settings(sample: Sample, registries: tuple[Registry, ...]) -> Settings:
    anywhere = "127.0.0.1:0"
    return Settings(
        config_dirs=(sample.config,),
        registries=registries,
        mesh_config=sample.mesh,
        grpc_addr=anywhere,
        secure_grpc_addr=anywhere,
        http_addr=anywhere,
        monitoring_addr=anywhere,
        shutdown_seconds=1.0,
    )


@attrs.define
class Sample:
    """A copied sample. Edits are atomic: a temporary file, renamed over the old one."""

    folder: Path
    ports: dict[int, int]
    """The ports in the sample, and their replacements in the copy."""

    host: str = "reviews.shop.internal"
    """The name of the service."""

    @property
    def config(self) -> Path:
        return self.folder / "config"

    @property
    def mesh(self) -> Path:
        return self.folder / "mesh.yaml"

    @property
    def traffic(self) -> Path:
        return self.config / "traffic.yaml"

    def take_services_from(self, host: str) -> None:
        """Leave the service itself to a registry that calls it by another host; the rules for it stay."""
        (self.config / "services.yaml").unlink()
        text = self.traffic.read_text(encoding="utf-8")
        self.traffic.write_text(text.replace(self.host, host), encoding="utf-8")
        self.host = host

    def edit(self, file: Path, *changes: tuple[str, str]) -> None:
        """Replace texts in a file, each of which must be there."""
        text = file.read_text(encoding="utf-8")
        for old, new in changes:
            if old not in text:
                raise ValueError(f"{file.name} has no {old!r}")
            text = text.replace(old, new, 1)
        fresh = file.with_name(f".{file.name}.new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(file)


def copy_sample(folder: Path) -> Sample:
    """Copy the sample that is part of the package to ``folder``, with its ports replaced by free ones."""
    with as_file(files("mesh_pilot.cli") / "samples" / "demo") as original:
        copytree(original, folder, dirs_exist_ok=True)
    texts = {path: path.read_text(encoding="utf-8") for path in (folder / "config").glob("*.yaml")}
    written = sorted({int(port) for text in texts.values() for port in _PORT.findall(text)})
    ports = dict(zip(written, free_ports(len(written)), strict=True))
    for path, text in texts.items():
        path.write_text(_PORT.sub(lambda found: str(ports[int(found[0])]), text), encoding="utf-8")
    return Sample(folder, ports)


_PORT = re.compile(r"\b9[01]\d\d\b")
"""Every port of the sample is between 9000 and 9199, and nothing else there looks so."""
