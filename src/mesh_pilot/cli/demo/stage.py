"""Everything that the demo runs: a control plane on a copy of the sample, three backends, two real Envoys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import trio

from mesh_pilot.bootstrap import ControlPlane, control_plane
from mesh_pilot.cli.consul_process import ConsulProcess, running_consul
from mesh_pilot.cli.demo.backends import Backend, run_backend
from mesh_pilot.cli.demo.sample import Sample, copy_sample
from mesh_pilot.cli.demo.traffic import Door
from mesh_pilot.cli.envoy_bootstrap import DRAIN_FLAGS, EnvoyNode, envoy_bootstrap
from mesh_pilot.cli.envoy_process import EnvoyProcess, running_envoy
from mesh_pilot.model.proxy import Interception, NodeType
from mesh_pilot.model.resource import ROUTE
from mesh_pilot.settings import Settings
from mesh_pilot.sources.consul import Agent, ConsulSettings
from mesh_pilot.xds.status import TypeStatus
from mesh_pilot.xds.subscription import Phase

SIDECAR = EnvoyNode("shop-1", "shop", "127.0.0.2", labels={"app": "shop"}, interception=Interception.NONE)
GATEWAY = EnvoyNode("edge-1", "shop", "127.0.0.3", NodeType.ROUTER, labels={"istio": "edge"})

CONSUL_HOST = "reviews.service.consul"
"""What the sample's service is called where it is in Consul."""

BACKENDS = {9101: "v1", 9102: "v2-a", 9103: "v2-b"}
"""The backends by their ports in the sample."""


@attrs.frozen
class Stage:
    """What runs."""

    sample: Sample
    plane: ControlPlane
    backends: Mapping[str, Backend]
    envoys: Mapping[str, EnvoyProcess]
    """``sidecar`` (State of the World) and ``gateway`` (Delta)."""
    doors: tuple[Door, ...]

    def route_versions(self) -> dict[str, str]:
        """By proxy, the version of the routes that it has accepted."""
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

    ``with_consul``: the backends are registered in a Consul, instead of standing in a file. Raises ConsulProcessError.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="mesh-pilot-demo-")))
        sample = copy_sample(folder / "mesh")
        nursery = await stack.enter_async_context(trio.open_nursery())
        stack.callback(nursery.cancel_scope.cancel)
        backends = {}
        for port, name in BACKENDS.items():
            backends[name] = await nursery.start(run_backend, name, sample.ports[port])
        consul: tuple[ConsulSettings, ...] = ()
        if with_consul:
            agent = await stack.enter_async_context(running_consul(folder))
            sample.take_services_from(CONSUL_HOST)
            await _register(agent, sample)
            consul = (ConsulSettings(agent=Agent(agent.address), namespace="shop"),)
        plane = await stack.enter_async_context(control_plane(_settings(sample, consul)))
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


def _settings(sample: Sample, consul: tuple[ConsulSettings, ...]) -> Settings:
    anywhere = "127.0.0.1:0"
    return Settings(
        config_dirs=(sample.config,),
        consul=consul,
        mesh_config=sample.mesh,
        grpc_addr=anywhere,
        http_addr=anywhere,
        monitoring_addr=anywhere,
        shutdown_seconds=1.0,
    )
