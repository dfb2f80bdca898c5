"""The mesh's certificate and roots come from the agent for the proxies that have one, else over ADS."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from envoy.config.core.v3.config_source_pb2 import ConfigSource
from google.protobuf.json_format import ParseDict

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.mesh.proxy.keys import proxy_facts
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import CLUSTER, LISTENER
from mesh_pilot.world import World
from tests.support.worlds import sidecar, world_of

CONFIG = """
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: store, namespace: shop}
spec:
  hosts: [store.shop.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.2.1.1, serviceAccount: store}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: edge, namespace: shop}
spec:
  hosts: [edge.test]
  resolution: STATIC
  ports: [{number: 443, name: tls, protocol: TLS}]
  endpoints: [{address: 10.2.1.2}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: edge, namespace: shop}
spec:
  host: edge.test
  trafficPolicy: {tls: {mode: MUTUAL, clientCertificate: /c.pem, privateKey: /k.pem, caCertificates: /r.pem}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
"""
AGENT = ConfigSource()
ParseDict(
    {
        "api_config_source": {
            "api_type": "GRPC",
            "grpc_services": [{"envoy_grpc": {"cluster_name": "sds-grpc"}}],
            "set_node_on_first_message_only": True,
            "transport_api_version": "V3",
        },
        "initial_fetch_timeout": "0s",
        "resource_api_version": "V3",
    },
    AGENT,
)
WITH_AGENT: list[dict[str, Any]] = [
    {"AGENT_SECRETS": "true"},
    {"AGENT_SECRETS": True},
    {"PILOT_SAN": ["istiod.istio-system.svc"]},
]
WITHOUT: list[dict[str, Any]] = [{}, {"AGENT_SECRETS": "false"}, {"ISTIO_VERSION": "1.14.6"}]


def resources(world: World, proxy: Proxy) -> bytes:
    opened = WorldCatalog(world).open(proxy)
    bodies = b""
    for type_url in (CLUSTER, LISTENER):
        held = opened.set(type_url)
        assert held is not None
        bodies += b"".join(resource.body for _, resource in sorted(held.snapshot().entries.items()))
    return bodies


def named(name: str, source: ConfigSource) -> bytes:
    """A reference to a secret from a source."""
    from envoy.extensions.transport_sockets.tls.v3.secret_pb2 import SdsSecretConfig

    return SdsSecretConfig(name=name, sds_config=source).SerializeToString(deterministic=True)


def node(**metadata: Any) -> Proxy:
    return sidecar(namespace="shop", **metadata)


@pytest.mark.parametrize("metadata", WITH_AGENT)
def test_a_proxy_with_an_agent_gets_certificate_and_roots_there(metadata: dict[str, Any]) -> None:
    body = resources(world_of(CONFIG), node(**metadata))
    ads = ConfigSource(resource_api_version="V3")
    ads.ads.SetInParent()
    ads.initial_fetch_timeout.SetInParent()
    for name in ("default", "ROOTCA"):
        assert named(name, AGENT) in body and named(name, ads) not in body
    assert b"file-cert:/c.pem~/k.pem" in body
    assert b"sds-grpc" not in body.split(b"file-cert:/c.pem~/k.pem")[1][:60], "files are not secrets of the agent"


@pytest.mark.parametrize("metadata", WITHOUT)
def test_other_proxies_get_them_over_ads(metadata: dict[str, Any]) -> None:
    body = resources(world_of(CONFIG), node(**metadata))
    assert b"default" in body and b"ROOTCA" in body and b"sds-grpc" not in body


def test_a_proxy_without_a_proof_of_who_it_is_has_a_certificate_by_its_agent() -> None:
    world = world_of(CONFIG)
    unknown = attrs.evolve(node(), identity="")
    assert b"tlsMode-istio" not in resources(world, unknown)
    assert b"tlsMode-istio" in resources(world, attrs.evolve(node(AGENT_SECRETS="true"), identity=""))


def test_the_agent_is_one_bit_of_the_keys() -> None:
    """Istio's agents and ours share caches, and what else they say of themselves makes no other keys."""
    facts = {proxy_facts(node(**metadata)).metadata for metadata in WITH_AGENT}
    assert len(facts) == 1
    assert len({proxy_facts(node(**metadata)).metadata for metadata in WITHOUT}) == 1


def test_proxies_with_any_agent_share_their_resources() -> None:
    """The second makes nothing new."""
    catalog = WorldCatalog(world_of(CONFIG))
    held = []
    for metadata in WITH_AGENT:
        opened = catalog.open(node(**metadata))
        clusters = opened.set(CLUSTER)
        assert clusters is not None
        held.append(clusters.snapshot().entries)
    for entries in held[1:]:
        assert all(entries[name] is resource for name, resource in held[0].items())
