"""TLS of proxyless gRPC, which has its certificates from providers that its bootstrap names.

gRPC cannot be sent certificates nor told of files. Rules: the gRFC A29, in the spelling that every version reads.
"""

from __future__ import annotations

from collections.abc import Iterable

from envoy.config.core.v3 import base_pb2
from envoy.extensions.transport_sockets.tls.v3 import tls_pb2

from mesh_pilot.envoy.messages import boolean, exact, transport_socket
from mesh_pilot.envoy.names import IDENTITY_SECRET, TRUST_SECRET
from mesh_pilot.envoy.upstream_tls import TLS_SOCKET

CERTIFICATE_PROVIDER = "default"
"""The certificate provider that the bootstrap must have, by the name that Istio's agent gives it."""


def client_socket(names: Iterable[str], *, own: bool) -> base_pb2.TransportSocket:
    """TLS to servers with one of these names (none: any that the roots vouch for); ``own``: show a certificate."""
    context = tls_pb2.UpstreamTlsContext()
    common = context.common_tls_context
    if own:
        _set_certificate(common)
    combined = common.combined_validation_context
    combined.default_validation_context.match_subject_alt_names.extend(exact(name) for name in names)
    _set_roots(combined.validation_context_certificate_provider_instance)
    return transport_socket(TLS_SOCKET, context)


def server_socket() -> base_pb2.TransportSocket:
    """mTLS with whoever the roots vouch for; gRPC servers cannot look at names here."""
    context = tls_pb2.DownstreamTlsContext(require_client_certificate=boolean(True))
    common = context.common_tls_context
    _set_certificate(common)
    _set_roots(common.validation_context_certificate_provider_instance)
    return transport_socket(TLS_SOCKET, context)


def _set_certificate(common: tls_pb2.CommonTlsContext) -> None:
    provider = common.tls_certificate_certificate_provider_instance
    provider.instance_name, provider.certificate_name = CERTIFICATE_PROVIDER, IDENTITY_SECRET


def _set_roots(provider: tls_pb2.CommonTlsContext.CertificateProviderInstance) -> None:
    provider.instance_name, provider.certificate_name = CERTIFICATE_PROVIDER, TRUST_SECRET
