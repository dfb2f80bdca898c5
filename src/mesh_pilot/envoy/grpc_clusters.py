"""Clusters for proxyless gRPC clients, with only what those understand.

Rules: the gRFCs A27 (xDS), A29 (TLS), A42 (ring hash). mTLS only where a rule asks for it: a gRPC client that was not
built for it ignores it, and one that was cannot talk to a PERMISSIVE server by itself.
"""

from __future__ import annotations

from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.extensions.transport_sockets.tls.v3 import tls_pb2

from mesh_pilot.envoy.identities import identities
from mesh_pilot.envoy.messages import exact, resource_of, transport_socket, uint64
from mesh_pilot.envoy.names import IDENTITY_SECRET, TRUST_SECRET
from mesh_pilot.envoy.policy import client_policy
from mesh_pilot.envoy.upstream_tls import TLS_SOCKET, TlsMode
from mesh_pilot.envoy.upstreams import Upstream
from mesh_pilot.model.resource import Resource
from mesh_pilot.world.view import View

CERTIFICATE_PROVIDER = "default"
"""The certificate provider that gRPC's bootstrap names."""


def grpc_cluster(view: View, upstream: Upstream) -> Resource | None:
    """The cluster for a port and subset of a service as gRPC wants it."""
    service = view.service(upstream.service)
    port = service.port(upstream.port) if service else None
    if service is None or port is None:
        return None
    policy = view.get(client_policy, upstream.rule, port.number, upstream.subset)
    message = Cluster(name=upstream.name, type=Cluster.EDS)
    message.eds_cluster_config.service_name = upstream.name
    message.eds_cluster_config.eds_config.ads.SetInParent()
    balancer = policy.load_balancer
    if balancer is not None and balancer.consistent_hash is not None:
        hashing = balancer.consistent_hash
        size = hashing.ring_hash.minimum_ring_size if hashing.ring_hash else hashing.minimum_ring_size
        message.lb_policy = Cluster.RING_HASH
        if size:
            message.ring_hash_lb_config.minimum_ring_size.CopyFrom(uint64(size))
    if policy.tls is not None and policy.tls.mode == TlsMode.ISTIO_MUTUAL:
        names = tuple(policy.tls.subject_alt_names) or view.get(identities, upstream.service, port.name)
        message.transport_socket.CopyFrom(transport_socket(TLS_SOCKET, _tls(names)))
    configs = (service.config, *upstream.rule) if service.config else upstream.rule
    return resource_of(message.name, message, configs)


def _tls(names: tuple[str, ...]) -> tls_pb2.UpstreamTlsContext:
    """By gRPC's certificate providers, in the spelling of A29 that every version reads."""
    context = tls_pb2.UpstreamTlsContext()
    common = context.common_tls_context
    own = common.tls_certificate_certificate_provider_instance
    own.instance_name, own.certificate_name = CERTIFICATE_PROVIDER, IDENTITY_SECRET
    combined = common.combined_validation_context
    combined.default_validation_context.match_subject_alt_names.extend(exact(name) for name in names)
    roots = combined.validation_context_certificate_provider_instance
    roots.instance_name, roots.certificate_name = CERTIFICATE_PROVIDER, TRUST_SECRET
    return context
