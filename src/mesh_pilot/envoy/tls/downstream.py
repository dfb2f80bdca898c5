"""TLS that a proxy terminates (Envoy's DownstreamTlsContext): a server's ``tls`` block, and mesh mTLS of sidecars.

Rules: Istio's ServerTLSSettings reference. A listener never contains certificates: Envoy fetches them as secrets by
name, from a credential, from files next to the proxy, or from the mesh's CA.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
from envoy.config.core.v3 import base_pb2
from envoy.extensions.transport_sockets.tls.v3 import common_pb2, tls_pb2

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import boolean, prefix, sds_secret, transport_socket
from mesh_pilot.envoy.tls.common import HTTP_ALPN, TLS_SOCKET, mesh_tls_parameters, san_matchers, server_tls_parameters
from mesh_pilot.mesh.listeners.inbound import MeshIdentity
from mesh_pilot.mesh.names.resources import credential, credential_roots, file_certificate, file_roots
from mesh_pilot.model.resource import IDENTITY_SECRET, TRUST_SECRET
from mesh_pilot.model.spiffe import SCHEME
from mesh_pilot.world import View

Mode = api.ServerTlsSettingsTlSmode

_REQUIRE_CLIENT_CERTIFICATE = (Mode.MUTUAL, Mode.ISTIO_MUTUAL)
_REQUEST_CLIENT_CERTIFICATE = (*_REQUIRE_CLIENT_CERTIFICATE, Mode.OPTIONAL_MUTUAL)


def downstream_tls(view: View, settings: api.ServerTlsSettings, *, by_agent: bool = False) -> base_pb2.TransportSocket:
    """The transport socket of a server that terminates TLS; ``by_agent`` as for ``sds_secret``."""
    required = settings.mode in _REQUIRE_CLIENT_CERTIFICATE
    context = tls_pb2.DownstreamTlsContext(require_client_certificate=boolean(required))
    common = context.common_tls_context
    common.alpn_protocols.extend(settings.alpn_protocols or HTTP_ALPN)
    common.tls_certificate_sds_secret_configs.extend(
        sds_secret(name, by_agent=by_agent) for name in _certificates(settings)
    )
    if settings.mode in _REQUEST_CLIENT_CERTIFICATE:
        _validate(common, settings, by_agent)
    # tlsDefaults are for TLS other than the mesh's own.
    defaults = _tls_defaults(view) if settings.mode is not Mode.ISTIO_MUTUAL else None
    parameters = server_tls_parameters(settings, defaults)
    if parameters != common_pb2.TlsParameters():
        common.tls_params.CopyFrom(parameters)
    return transport_socket(TLS_SOCKET, context)


def _certificates(settings: api.ServerTlsSettings) -> Iterator[str]:
    """Names of the secrets with the server's certificates."""
    if settings.credential_name or settings.credential_names:
        yield from map(credential, settings.credential_names or (settings.credential_name,))
    elif settings.mode is Mode.ISTIO_MUTUAL:
        yield IDENTITY_SECRET
    elif settings.tls_certificates:
        yield from (file_certificate(c.server_certificate, c.private_key) for c in settings.tls_certificates)
    else:
        yield file_certificate(settings.server_certificate, settings.private_key)


def _roots(settings: api.ServerTlsSettings) -> str:
    """Name of the secret with the roots that client certificates are verified against; empty: there is none."""
    if settings.mode is Mode.ISTIO_MUTUAL:
        return TRUST_SECRET
    if settings.ca_cert_credential_name:
        return credential_roots(settings.ca_cert_credential_name)
    if settings.credential_name or settings.credential_names:
        return credential_roots(settings.credential_name or settings.credential_names[0])
    return file_roots(settings.ca_certificates) if settings.ca_certificates else ""


def _validate(common: tls_pb2.CommonTlsContext, settings: api.ServerTlsSettings, by_agent: bool) -> None:
    """Set how client certificates are validated."""
    roots = _roots(settings)
    if not roots or (settings.insecure_skip_verify and settings.mode is not Mode.ISTIO_MUTUAL):
        _pin_certificates(common.validation_context, settings)
        common.validation_context.trust_chain_verification = common_pb2.CertificateValidationContext.ACCEPT_UNTRUSTED
        return
    combined = common.combined_validation_context
    combined.default_validation_context.SetInParent()
    _pin_certificates(combined.default_validation_context, settings)
    combined.default_validation_context.match_typed_subject_alt_names.extend(san_matchers(settings.subject_alt_names))
    if settings.ca_crl:
        combined.default_validation_context.crl.filename = settings.ca_crl
    combined.validation_context_sds_secret_config.CopyFrom(sds_secret(roots, by_agent=by_agent))


def _pin_certificates(context: common_pb2.CertificateValidationContext, settings: api.ServerTlsSettings) -> None:
    """Require one of the certificates that the server pins, by hash or public key."""
    context.verify_certificate_spki.extend(settings.verify_certificate_spki)
    context.verify_certificate_hash.extend(settings.verify_certificate_hash)


@derived
def _tls_defaults(view: View) -> mesh_api.MeshConfigTlsConfig | None:
    return view.mesh().tls_defaults


# -- mesh mTLS

DEFAULT_CIPHERS = (
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "AES256-GCM-SHA384",
    "AES128-GCM-SHA256",
)
"""TLS 1.2 ciphers that sidecars accept unless ``meshMTLS`` sets others: those of FIPS."""


@derived
def mesh_server_socket(view: View, identity: MeshIdentity) -> base_pb2.TransportSocket:
    """The transport socket that terminates mesh mTLS: any workload of the trust domain or its aliases may connect."""
    settings = _mesh_tls(view)
    parameters = mesh_tls_parameters(settings.tls)
    if not parameters.cipher_suites:
        parameters.cipher_suites.extend(DEFAULT_CIPHERS)
    san = common_pb2.SubjectAltNameMatcher
    prefixes = (prefix(f"{SCHEME}{domain}/") for domain in settings.trust_domains)
    validation = common_pb2.CertificateValidationContext(
        match_typed_subject_alt_names=[san(san_type=san.URI, matcher=matcher) for matcher in prefixes]
    )
    common = tls_pb2.CommonTlsContext(
        tls_params=parameters,
        alpn_protocols=HTTP_ALPN,
        tls_certificate_sds_secret_configs=[sds_secret(identity.certificate, by_agent=identity.by_agent)],
        combined_validation_context=tls_pb2.CommonTlsContext.CombinedCertificateValidationContext(
            default_validation_context=validation,
            validation_context_sds_secret_config=sds_secret(identity.roots, by_agent=identity.by_agent),
        ),
    )
    context = tls_pb2.DownstreamTlsContext(common_tls_context=common, require_client_certificate=boolean(True))
    return transport_socket(TLS_SOCKET, context)


@attrs.frozen
class _MeshTls:
    tls: mesh_api.MeshConfigTlsConfig | None
    trust_domains: tuple[str, ...]


@derived
def _mesh_tls(view: View) -> _MeshTls:
    mesh = view.mesh()
    return _MeshTls(mesh.mesh_mTLS, tuple(dict.fromkeys((mesh.trust_domain, *mesh.trust_domain_aliases))))
