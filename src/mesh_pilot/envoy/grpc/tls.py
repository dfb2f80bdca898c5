"""TLS of proxyless gRPC: certificates come from the certificate providers of its bootstrap, not from SDS or files.

Rules: gRFC A29, with the field names that every version of gRPC reads.
"""

from __future__ import annotations

from collections.abc import Iterable

from envoy.config.core.v3 import base_pb2
from envoy.extensions.transport_sockets.tls.v3 import tls_pb2

from mesh_pilot.envoy.core.protobuf import boolean, exact, transport_socket
from mesh_pilot.envoy.tls.common import TLS_SOCKET
from mesh_pilot.model.resource import IDENTITY_SECRET, TRUST_SECRET

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
