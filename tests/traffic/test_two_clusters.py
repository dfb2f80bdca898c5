"""Two clusters and a gateway between their networks: real Envoys, mutual TLS, failover, an API server that dies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.kubernetes.source import ClusterSettings, KubernetesRegistry
from mesh_pilot.model.proxy import Interception, NodeType
from tests.support.cluster_doubles import ClusterDouble
from tests.support.echo import Backend
from tests.support.envoy import eventually
from tests.support.fleet import fleet
from tests.support.manifests import manifest

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(300)]

HOST = "web.shop.svc.cluster.local"
EAST, WEST, BETWEEN = "127.0.0.4", "127.0.0.14", "127.0.0.13"

POLICIES = manifest("PeerAuthentication", "default", "mtls: {mode: STRICT}") + manifest(
    "DestinationRule",
    "web",
    """
    host: $host
    trafficPolicy:
      outlierDetection: {consecutive5xxErrors: 1, interval: 1s, baseEjectionTime: 180s, maxEjectionPercent: 100}
      loadBalancer: {localityLbSetting: {failoverPriority: [topology.istio.io/network, topology.istio.io/cluster]}}
    """,
    host=HOST,
)


def workload(cluster: str, target: int, app: Backend) -> str:
    """The inbound side of the pods of a cluster, before their apps."""
    return manifest(
        "Sidecar",
        f"web-{cluster}",
        """
        workloadSelector: {labels: {app: web, in: $cluster}}
        ingress: [{port: {number: $target, name: http, protocol: HTTP}, defaultEndpoint: "$app"}]
        egress: [{hosts: ["~/*"]}]
        """,
        cluster=cluster,
        target=target,
        app=f"{app.host}:{app.port}",
    )


def between(port: int) -> str:
    servers = (
        "{port: {number: $port, name: tls, protocol: TLS}, hosts: ['*.cluster.local'], tls: {mode: AUTO_PASSTHROUGH}}"
    )
    return manifest("Gateway", "between", f"selector: {{istio: eastwest}}\nservers: [{servers}]", port=port)


def node(name: str, ip: str, cluster: str, network: str, **more: str) -> EnvoyNode:
    metadata = {"SERVICE_ACCOUNT": name.partition("-")[0], "CLUSTER_ID": cluster, "NETWORK": network, **more}
    labels = {"app": name.partition("-")[0], "in": cluster}
    return EnvoyNode(name, "shop", ip, labels=labels, interception=Interception.NONE, metadata=metadata)


def gateway_node() -> EnvoyNode:
    metadata = {"CLUSTER_ID": "west", "NETWORK": "n2", "REQUESTED_NETWORK_VIEW": "n2", "SERVICE_ACCOUNT": "eastwest"}
    return EnvoyNode("eastwest", "shop", BETWEEN, NodeType.ROUTER, labels={"istio": "eastwest"}, metadata=metadata)


@pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
async def test_a_service_of_two_clusters_fails_over_through_the_gateway_between_them(
    tmp_path: Path, free_ports: Callable[[int], list[int]], nursery: trio.Nursery, delta: bool
) -> None:
    port, near_target, far_target, passing = free_ports(4)
    east, west = ClusterDouble("east", nursery), ClusterDouble("west", nursery)
    for number, (cluster, address, target) in enumerate(((east, EAST, near_target), (west, WEST, far_target)), 1):
        await cluster.start()
        cluster.network(f"n{number}")
        cluster.service("web", f"10.96.{number}.1", port)
        cluster.endpoints("web", address, port=target, labels={"in": cluster.id})
    west.gateway("n2", BETWEEN, passing)  # at 127.0.0.1 the client's own Envoy has the port
    east.secret(west)
    registry = KubernetesRegistry(east.access, cluster_id="east", clusters=ClusterSettings(secrets=True))
    async with fleet(tmp_path, registries=(registry,), guard=None) as mesh:  # it has one service, and loses that
        near, far = await mesh.backend("near"), await mesh.backend("far")
        await mesh.apply(
            POLICIES + between(passing) + workload("east", near_target, near) + workload("west", far_target, far)
        )
        await mesh.envoy(gateway_node(), delta=delta)
        await mesh.envoy(node("web-west", WEST, "west", "n2"), delta=delta)
        server = await mesh.envoy(node("web-east", EAST, "east", "n1"), delta=delta)
        await mesh.envoy(node("client", "127.0.0.2", "east", "n1"), delta=delta)
        url = f"http://127.0.0.1:{port}/"
        await mesh.until_answered_by({"near"}, url, host=HOST)
        async with mesh.load(url, host=HOST) as load:
            west.kill()
            revisions = mesh.plane.state.reducer.statistics().revisions
            # The one that is left is followed, and nothing of the other is lost.
            east.endpoints("web", port=near_target)
            await eventually(lambda: mesh.plane.state.reducer.statistics().revisions > revisions)
            await mesh.until_answered_by({"far"}, url, host=HOST)
            east.endpoints("web", EAST, port=near_target, labels={"in": "east"})
            await mesh.until_answered_by({"near"}, url, host=HOST)
            await west.start()
        assert load.failures == []
        # Through the gateway the connection is that of the client: it was passed on unseen.
        shown = {seen["headers"]["x-forwarded-client-cert"] for seen in far.seen}
        assert all("URI=spiffe://cluster.local/ns/shop/sa/client" in each for each in shown)
        await mesh.assert_all_taken()
        # The near ones die without a word: outlier detection finds out.
        server.process.kill()
        await mesh.until_answered_by({"far"}, url, host=HOST)
    for cluster in (east, west):
        cluster.kill()
