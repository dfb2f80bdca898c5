"""A proxy for whose identity nothing vouches gets no certificate; it must not wait for one where plaintext will do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.model.proxy import Interception
from mesh_pilot.model.resource import CLUSTER, LISTENER
from tests.support.fleet import fleet
from tests.support.worlds import sidecar, world_of

HOST = "reviews.example.com"

ENTRY = """
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: reviews, namespace: shop}}
spec:
  hosts: [reviews.example.com]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{{number: {port}, name: http, protocol: HTTP}}]
  endpoints:
  - {{address: 127.0.0.1, ports: {{http: {target}}}, serviceAccount: reviews}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {{name: default, namespace: shop}}
spec: {{mtls: {{mode: {peers}}}}}
"""


@pytest.mark.envoy
@pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
async def test_an_envoy_without_a_certificate_starts_and_is_served(
    tmp_path: Path, free_ports: Callable[[int], list[int]], delta: bool
) -> None:
    (port,) = free_ports(1)
    async with fleet(tmp_path, trust_local=False) as mesh:
        backend = await mesh.backend("plain")
        mesh.write(ENTRY.format(port=port, target=backend.port, peers="PERMISSIVE"))
        await mesh.envoy(EnvoyNode("web", "shop", "127.0.0.2", interception=Interception.NONE), delta=delta)
        await mesh.envoy(EnvoyNode("redirected", "shop", "127.0.0.3"), delta=delta)
        await mesh.until_answered_by({"plain"}, f"http://127.0.0.1:{port}/", host=HOST)
        await mesh.assert_all_taken()


def sent(certified: bool, peers: str) -> tuple[bytes, bytes]:
    """The cluster of the service and the inbound listener of the proxy next to it."""
    world = world_of(ENTRY.format(port=80, target=8080, peers=peers))
    resources = WorldCatalog(world).open(sidecar("127.0.0.1", namespace="shop", certified=certified))
    clusters, listeners = resources.set(CLUSTER), resources.set(LISTENER)
    assert clusters is not None and listeners is not None
    cluster, listener = clusters.get(f"outbound|80||{HOST}"), listeners.get("virtualInbound")
    assert cluster is not None and listener is not None
    return cluster.body, listener.body


def test_only_a_certified_proxy_is_told_to_use_the_mesh_certificate() -> None:
    cluster, listener = sent(True, "PERMISSIVE")
    assert b"ROOTCA" in cluster and b"ROOTCA" in listener
    cluster, listener = sent(False, "PERMISSIVE")
    assert b"ROOTCA" not in cluster and b"ROOTCA" not in listener


def test_a_strict_workload_never_falls_back_to_plaintext() -> None:
    assert sent(False, "STRICT")[1] == sent(True, "STRICT")[1]
