"""Clusters and endpoints for proxyless gRPC, by name, with only the fields that gRPC supports.

Rules: the gRFCs A27 (xDS), A29 (TLS), A37 (DNS), A42 (ring hash), A48 (least request). Clusters have mTLS only if a
rule sets it: gRPC cannot choose it per endpoint, and a PERMISSIVE gRPC server serves plaintext unless its label says
that it has TLS.

gRPC blocks a whole channel for up to 15 s while a cluster or its endpoints are missing. So every cluster that a route
can name exists; one without a service has no endpoints: its calls fail at once, those to other clusters go through.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.core.v3 import base_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.extensions.transport_sockets.tls.v3 import tls_pb2

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.engine import derived
from mesh_pilot.envoy.clusters.load_balancing import (
    LEAST_REQUEST,
    apply_least_request,
    apply_weights,
    minimum_ring_size,
)
from mesh_pilot.envoy.core.protobuf import address, boolean, exact, resource_of, transport_socket, uint32, uint64
from mesh_pilot.envoy.endpoints.assignments import assignment, encode_assignment
from mesh_pilot.envoy.endpoints.viewpoints import EndpointViewpoint
from mesh_pilot.envoy.tls.common import TLS_SOCKET
from mesh_pilot.envoy.tls.upstream import TlsMode
from mesh_pilot.mesh.clusters.destination_rules import (
    client_policy,
    destination_rule_ref,
    passes_through,
    subset_labels,
)
from mesh_pilot.mesh.clusters.upstreams import BY_DNS, Upstream, accepted_identities, discovery_of
from mesh_pilot.mesh.names.resources import ClusterName, Direction, parse_cluster
from mesh_pilot.mesh.proxy.scope import OutboundScope, ProxyLocality
from mesh_pilot.mesh.reach.visibility import scope_service
from mesh_pilot.model.proxy import LOAD_REPORTS
from mesh_pilot.model.resource import IDENTITY_SECRET, TRUST_SECRET, Resource
from mesh_pilot.model.service import Port
from mesh_pilot.world.view import View


def outbound_name(name: str) -> ClusterName | None:
    """The parts of an outbound cluster's name in the spelling that gRPC clients request; None for any other name."""
    parsed = parse_cluster(name)
    return parsed if parsed and parsed.direction is Direction.OUTBOUND and str(parsed) == name else None


@derived
def grpc_cluster(view: View, scope: OutboundScope, name: str) -> Resource | None:
    """The cluster of this name for gRPC clients of a scope; None if no outbound cluster can have this name."""
    target = outbound_name(name)
    if target is None:
        return None
    reports = scope.is_on(LOAD_REPORTS)
    service = scope_service(view, scope, target.host)
    if service is None or service.port(target.port) is None:
        return _empty_cluster(view, name, reports)
    ref = destination_rule_ref(view, scope.namespace, scope.labels, service.key)
    if subset_labels(view, ref, target.subset) is None:
        return _empty_cluster(view, name, reports)
    through = passes_through(view, ref, target.port, target.subset)
    by_dns = discovery_of(scope, service, through) in BY_DNS
    return _cluster(view, Upstream(service.key, target.port, target.subset, ref), by_dns, reports)


@derived
def grpc_assignment(view: View, scope: OutboundScope, locality: ProxyLocality, name: str) -> Resource | None:
    """The endpoints of a cluster of ``grpc_cluster``: none if it has no service."""
    if outbound_name(name) is None:
        return None
    # Gateways between networks route by the SNI of mesh mTLS, which gRPC does not send: it gets the endpoints
    # themselves, and skips those that it cannot connect to.
    found = assignment(view, scope, attrs.evolve(locality, network=""), name)
    return found or resource_of(name, endpoint_pb2.ClusterLoadAssignment(cluster_name=name))


@derived
def _empty_cluster(view: View, name: str, reports: bool) -> Resource:
    message = _eds_cluster(name)
    if reports:
        _report_loads(message)
    return resource_of(name, message)


@derived
def _cluster(view: View, upstream: Upstream, by_dns: bool, reports: bool) -> Resource | None:
    service = view.service(upstream.service)
    port = service.port(upstream.port) if service else None
    if service is None or port is None:
        return None
    target = _dns_target(view, upstream, port) if by_dns else None
    message = _dns_cluster(upstream.name, *target) if target else _eds_cluster(upstream.name)
    if reports:
        _report_loads(message)
    policy = client_policy(view, upstream.rule, port.number, upstream.subset)
    http = policy.connection_pool.http if policy.connection_pool else None
    if http is not None and http.http2_max_requests > 0:  # the one circuit breaker that gRPC has (gRFC A32)
        message.circuit_breakers.thresholds.add().max_requests.CopyFrom(uint32(http.http2_max_requests))
    balancer = policy.load_balancer
    if balancer is not None and balancer.consistent_hash is not None:
        _apply_ring_hash(message, balancer.consistent_hash)
    if policy.weights is not None:
        apply_weights(message, policy.weights, by_locality=True)  # gRPC has it below that policy only (A58)
    elif balancer is not None and balancer.simple in LEAST_REQUEST:
        apply_least_request(message)
    if policy.tls is not None and policy.tls.mode != TlsMode.DISABLE:
        names = tuple(policy.tls.subject_alt_names) or accepted_identities(view, upstream.service, port.name)
        if not names and policy.tls.mode != TlsMode.ISTIO_MUTUAL:
            names = (policy.tls.sni or service.host,)
        message.transport_socket.CopyFrom(client_socket(names, certificate=policy.tls.mode != TlsMode.SIMPLE))
    return resource_of(message.name, message, (*service.configs, *upstream.rule))


def _eds_cluster(name: str) -> Cluster:
    message = Cluster(name=name, type=Cluster.EDS)
    message.eds_cluster_config.service_name = name
    message.eds_cluster_config.eds_config.ads.SetInParent()
    return message


def _report_loads(message: Cluster) -> None:
    """Have the client report the loads of a cluster to this control plane (LRS)."""
    message.lrs_server.self.SetInParent()


def _dns_cluster(name: str, host: str, port: int) -> Cluster:
    message = Cluster(name=name, type=Cluster.LOGICAL_DNS)
    message.load_assignment.cluster_name = name
    endpoint = message.load_assignment.endpoints.add().lb_endpoints.add()
    endpoint.endpoint.address.CopyFrom(address(host, port))
    return message


@derived
def _dns_target(view: View, upstream: Upstream, port: Port) -> tuple[str, int] | None:
    """(host, port) of a DNS service with a single endpoint, else None: gRPC resolves only one name per cluster."""
    labels = subset_labels(view, upstream.rule, upstream.subset) or frozenset()
    encoded = encode_assignment(view, upstream.name, upstream.service, port.name, labels, EndpointViewpoint())
    found = endpoint_pb2.ClusterLoadAssignment.FromString(encoded)
    members = [e.endpoint.address.socket_address for locality in found.endpoints for e in locality.lb_endpoints]
    return (members[0].address, members[0].port_value) if len(members) == 1 else None


def _apply_ring_hash(message: Cluster, hashing: api.LoadBalancerSettingsConsistentHashLb) -> None:
    """Set ring hash, the only consistent hashing that all gRPC implementations support."""
    message.lb_policy = Cluster.RING_HASH
    if size := minimum_ring_size(hashing):
        message.ring_hash_lb_config.minimum_ring_size.CopyFrom(uint64(size))


# -- TLS of proxyless gRPC: certificates come from the certificate providers of its bootstrap, not from SDS or files


CERTIFICATE_PROVIDER = "default"
"""The name of the certificate provider in bootstraps that Istio's agent writes."""


def client_socket(names: Iterable[str], *, certificate: bool) -> base_pb2.TransportSocket:
    """TLS to servers with one of these SANs (empty: any that the roots verify); ``certificate``: present one."""
    context = tls_pb2.UpstreamTlsContext(common_tls_context=_common(names, certificate=certificate))
    return transport_socket(TLS_SOCKET, context)


def server_socket() -> base_pb2.TransportSocket:
    """mTLS with clients that the roots verify; gRPC servers cannot match SANs."""
    context = tls_pb2.DownstreamTlsContext(
        common_tls_context=_common((), certificate=True), require_client_certificate=boolean(True)
    )
    return transport_socket(TLS_SOCKET, context)


def _common(names: Iterable[str], *, certificate: bool) -> tls_pb2.CommonTlsContext:
    """Each provider is named twice: old releases of gRPC know only the first field, new ones prefer the second."""
    common = tls_pb2.CommonTlsContext()
    if certificate:
        for identity in (
            common.tls_certificate_certificate_provider_instance,
            common.tls_certificate_provider_instance,
        ):
            identity.instance_name, identity.certificate_name = CERTIFICATE_PROVIDER, IDENTITY_SECRET
    combined = common.combined_validation_context
    validation = combined.default_validation_context
    validation.match_subject_alt_names.extend(exact(name) for name in names)
    for roots in (
        combined.validation_context_certificate_provider_instance,
        validation.ca_certificate_provider_instance,
    ):
        roots.instance_name, roots.certificate_name = CERTIFICATE_PROVIDER, TRUST_SECRET
    return common
