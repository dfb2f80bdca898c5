"""Two datacenters of Consul, each a network behind a gateway that is found in Consul: real Consul agents and Envoys.

Mutual TLS passes through the gateways each way; requests go over to the other datacenter and back.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.consul.client.settings import ConsulTiming
from mesh_pilot.consul.source import Agent, ConsulRegistry, ConsulSettings
from mesh_pilot.model.proxy import Interception, NodeType
from mesh_pilot.model.service import Locality
from tests.support.binaries import require_binary
from tests.support.consul import TTL, Consul, real_consul
from tests.support.echo import Backend
from tests.support.envoy import RealEnvoy
from tests.support.fleet import Fleet, fleet
from tests.support.manifests import manifest

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(300)]

HOST = "web.service.consul"
NETWORKS = "networks: {n-one: {endpoints: [{fromRegistry: one}]}, n-two: {endpoints: [{fromRegistry: two}]}}"
TIMING = ConsulTiming(retry_seconds=0.05, pace_seconds=0.05)

POLICIES = manifest("PeerAuthentication", "default", "mtls: {mode: STRICT}") + manifest(
    "DestinationRule",
    "web",
    "host: $host\ntrafficPolicy: {outlierDetection: {consecutive5xxErrors: 3, interval: 600s}}",
    host=HOST,
)


def application(datacenter: str, port: int, app: Backend) -> str:
    """The inbound side of `web` in a datacenter."""
    return manifest(
        "Sidecar",
        f"web-{datacenter}",
        """
        workloadSelector: {labels: {app: web, in: $datacenter}}
        ingress: [{port: {number: $port, name: http, protocol: HTTP}, defaultEndpoint: "$app"}]
        egress: [{hosts: ["~/*"]}]
        """,
        datacenter=datacenter,
        port=port,
        app=f"{app.host}:{app.port}",
    )


def gateway(datacenter: str, port: int) -> str:
    return manifest(
        "Gateway",
        f"between-{datacenter}",
        """
        selector: {app: gateway, in: $datacenter}
        servers:
        - {port: {number: $port, name: tls, protocol: TLS}, hosts: ["*.consul"], tls: {mode: AUTO_PASSTHROUGH}}
        """,
        datacenter=datacenter,
        port=port,
    )


class Datacenter:
    """One of the two: its Consul, the addresses of its Envoys, and the ports there."""

    def __init__(self, name: str, consul: Consul, number: int, ports: list[int]) -> None:
        self.name = name
        self.consul = consul
        self.app: Backend | None = None
        self.gateway: RealEnvoy | None = None
        self.workload, self.client, self.between = (f"127.0.{number}.{last}" for last in (1, 2, 3))
        self.inbound, self.passing = ports

    async def register(self, port: int) -> None:
        """Put its `web` and its gateway into the catalog; `port`: where clients call `web`."""
        meta = {"protocol": "http", "service_port": str(port), "tls_mode": "istio", "service_account": "web"}
        await self.consul.register(
            "web", address=self.workload, port=self.inbound, meta={**meta, "namespace": "shop"}, Check=TTL
        )
        await self.consul.register(
            "gateway",
            address=self.between,
            port=self.passing,
            meta={"gateway_port": str(self.passing), "protocol": "tcp"},
        )

    async def start(self, mesh: Fleet, *, delta: bool) -> None:
        """Its Envoys: that of `web`, the gateway, and the client."""
        network = {"NETWORK": f"n-{self.name}"}
        labels = {"in": self.name}
        place = Locality(self.name)
        between = EnvoyNode(
            f"gateway-{self.name}",
            "shop",
            self.between,
            NodeType.ROUTER,
            locality=place,
            labels={"app": "gateway", **labels},
            metadata={**network, "REQUESTED_NETWORK_VIEW": network["NETWORK"]},
        )
        self.gateway = await mesh.envoy(between, delta=delta)
        for name, address in (("web", self.workload), ("client", self.client)):
            node = EnvoyNode(
                f"{name}-{self.name}",
                "shop",
                address,
                locality=place,
                labels={"app": name, **labels},
                interception=Interception.NONE,
                metadata={**network, "CLUSTER_ID": self.name, "SERVICE_ACCOUNT": name},
            )
            await mesh.envoy(node, delta=delta)

    def outbound(self, port: int) -> str:
        """Where its client calls services."""
        return manifest(
            "Sidecar",
            f"client-{self.name}",
            """
            workloadSelector: {labels: {app: client, in: $datacenter}}
            egress: [{port: {number: $port, name: http, protocol: HTTP}, bind: $address, hosts: ["*/*"]}]
            """,
            datacenter=self.name,
            port=port,
            address=self.client,
        )


@pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
async def test_each_datacenter_takes_over_for_the_other_through_the_gateway_that_is_registered_there(
    tmp_path: Path, free_ports: Callable[[int], list[int]], delta: bool
) -> None:
    require_binary("consul")
    port, *ports = free_ports(5)
    networks = tmp_path / "networks" / "networks.yaml"
    networks.parent.mkdir()
    networks.write_text(NETWORKS)
    async with (
        real_consul(tmp_path, free_ports(4), name="first", config={"datacenter": "one"}) as first,
        real_consul(tmp_path, free_ports(4), name="second", config={"datacenter": "two"}) as second,
    ):
        one, two = Datacenter("one", first, 4, ports[:2]), Datacenter("two", second, 5, ports[2:])
        registry = ConsulRegistry(
            (
                ConsulSettings(agent=Agent(first.address), merges_others=True, timing=TIMING),
                ConsulSettings(agent=Agent(second.address), remote=True, merged=True, timing=TIMING),
            )
        )
        async with fleet(tmp_path, POLICIES, networks_config=networks, registries=(registry,), guard=None) as mesh:
            config = POLICIES
            for datacenter in (one, two):
                app = datacenter.app = await mesh.backend(datacenter.name)
                await datacenter.register(port)
                config += application(datacenter.name, datacenter.inbound, app)
                config += gateway(datacenter.name, datacenter.passing) + datacenter.outbound(port)
            await mesh.apply(config)
            for datacenter in (one, two):
                await datacenter.start(mesh, delta=delta)
            for near, far in ((one, two), (two, one)):
                url = f"http://{near.client}:{port}/"
                await mesh.until_answered_by({near.name}, url, host=HOST)
                assert far.app is not None
                far.app.seen.clear()
                async with mesh.load(url, host=HOST) as load:
                    await near.consul.check("web", "fail")
                    await mesh.until_answered_by({far.name}, url, host=HOST)
                    await near.consul.check("web", "pass")
                    await mesh.until_answered_by({near.name}, url, host=HOST)
                assert load.failures == []
                # The gateway passed the connections on as they are: they are the client's.
                shown = [seen["headers"]["x-forwarded-client-cert"] for seen in far.app.seen]
                assert shown
                assert all("URI=spiffe://cluster.local/ns/shop/sa/client" in each for each in shown)
                assert far.gateway is not None
                assert await far.gateway.counted(r"^cluster\.outbound_.*\.upstream_cx_total$") > 0
            await mesh.assert_all_taken()
