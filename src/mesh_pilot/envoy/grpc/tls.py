"""TLS of proxyless gRPC, which has its certificates from providers that its bootstrap names.

gRPC cannot be sent certificates nor told of files. Rules: the gRFC A29, in the spelling that every version reads.
"""

from __future__ import annotations

from collections.abc import Iterable

from envoy.config.core.v3 import base_pb2
from envoy.extensions.transport_sockets.tls.v3 import tls_pb2

from mesh_pilot.envoy.core.protobuf import boolean, exact, transport_socket
from mesh_pilot.envoy.tls.common import TLS_SOCKET
from mesh_pilot.model.resource import IDENTITY_SECRET, TRUST_SECRET

CERTIFICATE_PROVIDER = "default"
"""The certificate provider that the bootstrap must have, by the name that Istio's agent gives it."""


def client_socket(names: Iterable[str], *, own: bool) -> base_pb2.TransportSocket:
    """TLS to servers with one of these names (none: any that the roots vouch for); ``own``: show a certificate."""
    context = tls_pb2.UpstreamTlsContext(common_tls_context=_common(names, own=own))
    return transport_socket(TLS_SOCKET, context)


def server_socket() -> base_pb2.TransportSocket:
    """mTLS with whoever the roots vouch for; gRPC servers cannot look at names here."""
    context = tls_pb2.DownstreamTlsContext(
        common_tls_context=_common((), own=True), require_client_certificate=boolean(True)
    )
    return transport_socket(TLS_SOCKET, context)


def _common(names: Iterable[str], *, own: bool) -> tls_pb2.CommonTlsContext:
    common = tls_pb2.CommonTlsContext()
    if own:
        certificate = common.tls_certificate_certificate_provider_instance
        certificate.instance_name, certificate.certificate_name = CERTIFICATE_PROVIDER, IDENTITY_SECRET
    combined = common.combined_validation_context
    combined.default_validation_context.match_subject_alt_names.extend(exact(name) for name in names)
    roots = combined.validation_context_certificate_provider_instance
    roots.instance_name, roots.certificate_name = CERTIFICATE_PROVIDER, TRUST_SECRET
    return common
