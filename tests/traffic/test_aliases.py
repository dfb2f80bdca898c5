"""An ExternalName Service is an alias: its names lead to the service that it stands for, over mutual TLS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.kubernetes.source import KubernetesRegistry
from mesh_pilot.kubernetes.source.registry import SERVICES
from mesh_pilot.model.proxy import Interception
from tests.support.cluster_doubles import NAMESPACE, ClusterDouble
from tests.support.fleet import fleet
from tests.support.manifests import manifest

pytestmark = pytest.mark.envoy

CLIENT = EnvoyNode("client", NAMESPACE, "127.0.0.2", interception=Interception.NONE)
SERVER = EnvoyNode(
    "web-1",
    NAMESPACE,
    "127.0.0.4",
    labels={"app": "web"},
    interception=Interception.NONE,
    metadata={"SERVICE_ACCOUNT": "web"},
)


def external(cluster: ClusterDouble, name: str, target: str) -> None:
    spec = {"type": "ExternalName", "externalName": f"{target}.{NAMESPACE}.svc.cluster.local"}
    cluster.api.put(SERVICES, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})


async def test_an_alias_is_called_over_mutual_tls_and_follows_what_it_names(
    tmp_path: Path, free_ports: Callable[[int], list[int]], nursery: trio.Nursery
) -> None:
    port, target = free_ports(2)
    cluster = ClusterDouble("one", nursery)
    await cluster.start()
    cluster.service("web", "10.96.1.1", port)
    cluster.endpoints("web", SERVER.ip, port=target)
    external(cluster, "alias", "web")
    external(cluster, "chained", "alias")
    async with fleet(tmp_path, registries=(KubernetesRegistry(cluster.access),), guard=None) as mesh:
        app, other = await mesh.backend("app"), await mesh.backend("other")
        strict = manifest("PeerAuthentication", "default", "mtls: {mode: STRICT}")
        ingress = manifest(
            "Sidecar",
            "web",
            """
            workloadSelector: {labels: {app: web}}
            ingress: [{port: {number: $target, name: http, protocol: HTTP}, defaultEndpoint: "$app"}]
            egress: [{hosts: ["~/*"]}]
            """,
            target=target,
            app=f"{app.host}:{app.port}",
        )
        entry = manifest(
            "ServiceEntry",
            "other",
            """
            hosts: [other.shop.svc.cluster.local]
            location: MESH_INTERNAL
            resolution: STATIC
            ports: [{number: $port, name: http, protocol: HTTP}]
            endpoints: [{address: $address, ports: {http: $at}}]
            """,
            port=port,
            address=other.host,
            at=other.port,
        )
        await mesh.apply(strict + ingress + entry)
        await mesh.envoy(SERVER)
        await mesh.envoy(CLIENT)
        url = f"http://127.0.0.1:{port}/"
        for host in ("web", f"alias.{NAMESPACE}.svc.cluster.local", "alias", f"alias.{NAMESPACE}", "chained"):
            await mesh.until_answered_by({"app"}, url, host=host)
        assert all("URI=spiffe://" in seen["headers"]["x-forwarded-client-cert"] for seen in app.seen)
        external(cluster, "alias", "other")
        for host in ("alias", "chained"):
            await mesh.until_answered_by({"other"}, url, host=host)
        await mesh.assert_all_taken()
    cluster.kill()
