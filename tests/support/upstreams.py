"""Clusters and endpoints as a proxy of a test's World is sent them, decoded."""

from __future__ import annotations

from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from envoy.extensions.transport_sockets.tls.v3.tls_pb2 import UpstreamTlsContext
from envoy.extensions.upstreams.http.v3.http_protocol_options_pb2 import HttpProtocolOptions

from mesh_pilot.envoy.clusters.connection_pool import HTTP_OPTIONS
from mesh_pilot.envoy.clusters.inbound import inbound_clusters
from mesh_pilot.envoy.endpoints.assignments import assignment
from mesh_pilot.mesh.proxy.keys import ProxyKeys, proxy_facts, proxy_keys
from mesh_pilot.mesh.proxy.plans import Plan
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import Resource
from mesh_pilot.world import World
from tests.support.plans import outbound_clusters


def target(world: World, proxy: Proxy) -> ProxyKeys:
    return proxy_keys(world.view, proxy_facts(proxy))


def outbound(world: World, proxy: Proxy) -> dict[str, Cluster]:
    """Outbound clusters by name."""
    at = target(world, proxy)
    return _clusters(world, outbound_clusters(world.view, at.scope, at.locality))


def inbound(world: World, proxy: Proxy) -> dict[str, Cluster]:
    """Inbound clusters by name."""
    return _clusters(world, inbound_clusters(world.view, target(world, proxy).workload))


def eds(world: World, proxy: Proxy, name: str) -> Resource | None:
    """The assignment of a cluster as a resource."""
    at = target(world, proxy)
    return assignment(world.view, at.scope, at.locality, name)


def endpoints(world: World, proxy: Proxy, name: str) -> ClusterLoadAssignment:
    """The assignment of a cluster that must have one."""
    resource = eds(world, proxy, name)
    assert resource is not None, f"{name} has no assignment"
    return ClusterLoadAssignment.FromString(resource.body)


def addresses(assigned: ClusterLoadAssignment) -> list[str]:
    """``ip:port`` of every endpoint, in order."""
    return [
        f"{e.endpoint.address.socket_address.address}:{e.endpoint.address.socket_address.port_value}"
        for locality in assigned.endpoints
        for e in locality.lb_endpoints
    ]


def http_options(cluster: Cluster) -> HttpProtocolOptions:
    """What a cluster says about HTTP; empty where it says nothing."""
    options = HttpProtocolOptions()
    if HTTP_OPTIONS in cluster.typed_extension_protocol_options:
        assert cluster.typed_extension_protocol_options[HTTP_OPTIONS].Unpack(options)
    return options


def tls(cluster: Cluster) -> UpstreamTlsContext:
    """The TLS of a cluster: its only one, or that towards endpoints with mesh mTLS."""
    context = UpstreamTlsContext()
    matches = cluster.transport_socket_matches
    socket = matches[0].transport_socket if matches else cluster.transport_socket
    assert socket.typed_config.Unpack(context), f"{cluster.name} has no TLS"
    return context


def _clusters(world: World, plan: Plan) -> dict[str, Cluster]:
    found = {}
    for name, call in plan.items():
        resource = call.get(world.view)
        assert resource is not None, name
        found[name] = Cluster.FromString(resource.body)
        assert found[name].name == name
    return found
