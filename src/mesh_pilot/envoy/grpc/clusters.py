"""Clusters and endpoints for proxyless gRPC, by name, with only what gRPC understands.

Rules: the gRFCs A27 (xDS), A29 (TLS), A37 (DNS), A42 (ring hash). mTLS only where a rule asks for it: a gRPC client
that was not built for it ignores it, and one that was cannot talk to a PERMISSIVE server by itself.

gRPC holds up a whole channel for 15 s while a cluster or its endpoints do not come. So every cluster that a route can
name is there, and one that nobody serves has no endpoints: its calls fail at once, the others go through.
"""

from __future__ import annotations

import attrs
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.endpoint.v3 import endpoint_pb2

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.core.protobuf import address, resource_of, uint64
from mesh_pilot.envoy.endpoints.assignments import EndpointViewpoint, assignment, encode_assignment
from mesh_pilot.envoy.grpc.tls import client_socket
from mesh_pilot.envoy.tls.upstream import TlsMode
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.destination_rules import client_policy, destination_rule_ref, passes_through, subset_labels
from mesh_pilot.mesh.identities import identities
from mesh_pilot.mesh.names import ClusterName, Direction, parse_cluster
from mesh_pilot.mesh.proxy.scope import OutboundScope, ProxyLocality
from mesh_pilot.mesh.upstreams import Upstream
from mesh_pilot.mesh.visibility import BY_DNS, discovery_of, scope_service
from mesh_pilot.model.resource import Resource
from mesh_pilot.model.service import Port
from mesh_pilot.world.view import View


def outbound_name(name: str) -> ClusterName | None:
    """The parts of an outbound cluster's name as gRPC clients ask for it; None for any other name."""
    parsed = parse_cluster(name)
    return parsed if parsed and parsed.direction is Direction.OUTBOUND and str(parsed) == name else None


@derived
def grpc_cluster(view: View, scope: OutboundScope, name: str) -> Resource | None:
    """The cluster of this name for gRPC clients of a scope; None for names that no outbound cluster can have."""
    target = outbound_name(name)
    if target is None:
        return None
    service = scope_service(view, scope, target.host)
    if service is None or service.port(target.port) is None:
        return _unserved(view, name)
    ref = destination_rule_ref(view, scope.namespace, scope.labels, service.key)
    if subset_labels(view, ref, target.subset) is None:
        return _unserved(view, name)
    through = passes_through(view, ref, target.port, target.subset)
    by_dns = discovery_of(scope, service, through) in BY_DNS
    return _cluster(view, Upstream(service.key, target.port, target.subset, ref), by_dns)


@derived
def grpc_assignment(view: View, scope: OutboundScope, place: ProxyLocality, name: str) -> Resource | None:
    """The endpoints of a cluster of ``grpc_cluster``: none where nobody serves it."""
    if outbound_name(name) is None:
        return None
    # Gateways between networks go by the server name of mesh mTLS, which gRPC does not send: it is given the endpoints
    # themselves, and passes over those that it cannot connect to.
    found = assignment(view, scope, attrs.evolve(place, network=""), name)
    return found or resource_of(name, endpoint_pb2.ClusterLoadAssignment(cluster_name=name))


@derived
def _unserved(view: View, name: str) -> Resource:
    return resource_of(name, _by_eds(name))


@derived
def _cluster(view: View, upstream: Upstream, by_dns: bool) -> Resource | None:
    service = view.service(upstream.service)
    port = service.port(upstream.port) if service else None
    if service is None or port is None:
        return None
    where = _dns_name(view, upstream, port) if by_dns else None
    message = _by_name(upstream.name, *where) if where else _by_eds(upstream.name)
    policy = client_policy(view, upstream.rule, port.number, upstream.subset)
    balancer = policy.load_balancer
    if balancer is not None and balancer.consistent_hash is not None:
        _hash(message, balancer.consistent_hash)
    if policy.tls is not None and policy.tls.mode != TlsMode.DISABLE:
        own = policy.tls.mode != TlsMode.SIMPLE
        names = tuple(policy.tls.subject_alt_names)
        if not names and policy.tls.mode == TlsMode.ISTIO_MUTUAL:
            names = identities(view, upstream.service, port.name)
        message.transport_socket.CopyFrom(client_socket(names, own=own))
    configs = (service.config, *upstream.rule) if service.config else upstream.rule
    return resource_of(message.name, message, configs)


def _by_eds(name: str) -> Cluster:
    message = Cluster(name=name, type=Cluster.EDS)
    message.eds_cluster_config.service_name = name
    message.eds_cluster_config.eds_config.ads.SetInParent()
    return message


def _by_name(name: str, host: str, port: int) -> Cluster:
    message = Cluster(name=name, type=Cluster.LOGICAL_DNS)
    message.load_assignment.cluster_name = name
    endpoint = message.load_assignment.endpoints.add().lb_endpoints.add()
    endpoint.endpoint.address.CopyFrom(address(host, port))
    return message


@derived
def _dns_name(view: View, upstream: Upstream, port: Port) -> tuple[str, int] | None:
    """The one name and port behind a service found by DNS: gRPC resolves one name a cluster, and all its addresses."""
    labels = subset_labels(view, upstream.rule, upstream.subset) or frozenset()
    encoded = encode_assignment(view, upstream.name, upstream.service, port.name, labels, EndpointViewpoint())
    found = endpoint_pb2.ClusterLoadAssignment.FromString(encoded)
    members = [e.endpoint.address.socket_address for locality in found.endpoints for e in locality.lb_endpoints]
    return (members[0].address, members[0].port_value) if len(members) == 1 else None


def _hash(message: Cluster, hashing: api.LoadBalancerSettingsConsistentHashLb) -> None:
    """Ring hash, the only kind that all gRPC implementations have."""
    size = hashing.ring_hash.minimum_ring_size if hashing.ring_hash else hashing.minimum_ring_size
    message.lb_policy = Cluster.RING_HASH
    if size:
        message.ring_hash_lb_config.minimum_ring_size.CopyFrom(uint64(size))
