"""Mutual TLS with proxies of Consul's own mesh (Connect), on both sides.

A proxy presents the leaf of Consul's CA for its service and verifies the peer by that CA's roots; certificates of our
own CA are never mixed with them, so that each trust domain is vouched for by its own roots alone. Rules: Consul,
"Connect: native integration", and the TLS contexts that Consul's own proxies have.
"""

from __future__ import annotations

from envoy.config.core.v3 import base_pb2
from envoy.extensions.transport_sockets.tls.v3 import common_pb2, tls_pb2

from mesh_pilot.envoy.core.protobuf import boolean, exact, prefix, sds_secret, transport_socket
from mesh_pilot.envoy.tls.common import HTTP_ALPN, TLS_SOCKET, mesh_tls_parameters
from mesh_pilot.mesh.names.resources import CONNECT_CALLER_SECRET, CONNECT_ROOTS_SECRET
from mesh_pilot.model.connect import connect_prefix, parse_connect_id

_San = common_pb2.SubjectAltNameMatcher


def connect_client_socket(peer: str, *, http2: bool) -> base_pb2.TransportSocket:
    """The transport socket to a service of Consul's mesh, given by its SPIFFE id."""
    named = parse_connect_id(peer)
    context = tls_pb2.UpstreamTlsContext(
        sni=named.sni if named else "",
        common_tls_context=_common(CONNECT_CALLER_SECRET, _San(san_type=_San.URI, matcher=exact(peer))),
    )
    context.common_tls_context.alpn_protocols.extend(("h2",) if http2 else ())
    return transport_socket(TLS_SOCKET, context)


def connect_server_socket(leaf: str, trust_domain: str) -> base_pb2.TransportSocket:
    """The transport socket that terminates TLS of Consul's mesh with the secret ``leaf``: any of its services may
    connect, and intentions say what it may do."""
    # Consul Enterprise has other namespaces, whose services may have the same names: they are not callers of ours.
    of_mesh = _San(san_type=_San.URI, matcher=prefix(connect_prefix(trust_domain)))
    context = tls_pb2.DownstreamTlsContext(
        common_tls_context=_common(leaf, of_mesh), require_client_certificate=boolean(True)
    )
    context.common_tls_context.alpn_protocols.extend(HTTP_ALPN)
    return transport_socket(TLS_SOCKET, context)


def _common(leaf: str, peers: common_pb2.SubjectAltNameMatcher) -> tls_pb2.CommonTlsContext:
    return tls_pb2.CommonTlsContext(
        tls_params=mesh_tls_parameters(None),
        tls_certificate_sds_secret_configs=[sds_secret(leaf)],
        combined_validation_context=tls_pb2.CommonTlsContext.CombinedCertificateValidationContext(
            default_validation_context=common_pb2.CertificateValidationContext(match_typed_subject_alt_names=[peers]),
            validation_context_sds_secret_config=sds_secret(CONNECT_ROOTS_SECRET),
        ),
    )
