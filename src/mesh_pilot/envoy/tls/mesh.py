"""TLS of the mesh on the server's side: what a sidecar presents, and whose certificates it takes."""

from __future__ import annotations

import attrs
from envoy.config.core.v3 import base_pb2
from envoy.extensions.transport_sockets.tls.v3 import common_pb2, tls_pb2

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.envoy.core.protobuf import boolean, prefix, secret, transport_socket
from mesh_pilot.envoy.tls.upstream import TLS_SOCKET, tls_parameters
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.inbound import MeshIdentity
from mesh_pilot.security.spiffe import SCHEME
from mesh_pilot.world.view import View

CIPHERS = (
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "AES256-GCM-SHA384",
    "AES128-GCM-SHA256",
)
"""TLS 1.2 ciphers that sidecars take where the mesh says nothing: those of FIPS."""

HTTP_ALPN = ("h2", "http/1.1")


@derived
def mesh_server_socket(view: View, identity: MeshIdentity) -> base_pb2.TransportSocket:
    """Mesh mTLS towards clients: any workload of the trust domain or its aliases may connect."""
    settings = _settings(view)
    parameters = tls_parameters(settings.tls)
    if not parameters.cipher_suites:
        parameters.cipher_suites.extend(CIPHERS)
    san = common_pb2.SubjectAltNameMatcher
    domains = settings.trust_domains
    validation = common_pb2.CertificateValidationContext(
        match_typed_subject_alt_names=[san(san_type=san.URI, matcher=prefix(f"{SCHEME}{d}/")) for d in domains]
    )
    common = tls_pb2.CommonTlsContext(
        tls_params=parameters,
        alpn_protocols=HTTP_ALPN,
        tls_certificate_sds_secret_configs=[secret(identity.certificate)],
        combined_validation_context=tls_pb2.CommonTlsContext.CombinedCertificateValidationContext(
            default_validation_context=validation,
            validation_context_sds_secret_config=secret(identity.roots),
        ),
    )
    context = tls_pb2.DownstreamTlsContext(common_tls_context=common, require_client_certificate=boolean(True))
    return transport_socket(TLS_SOCKET, context)


@attrs.frozen
class _Settings:
    tls: mesh_api.MeshConfigTlsConfig | None
    trust_domains: tuple[str, ...]


@derived
def _settings(view: View) -> _Settings:
    mesh = view.mesh()
    return _Settings(mesh.mesh_mTLS, tuple(dict.fromkeys((mesh.trust_domain, *mesh.trust_domain_aliases))))
