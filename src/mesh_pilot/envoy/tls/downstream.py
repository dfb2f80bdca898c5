"""TLS that ends at a router: a server's ``tls`` block as Envoy's DownstreamTlsContext.

Rules: Istio's ServerTLSSettings reference. Certificates are never part of a listener: they are secrets, fetched by
name, whether they lie in a credential, in files beside the proxy, or are the mesh's own.
"""

from __future__ import annotations

from collections.abc import Iterator

from envoy.extensions.transport_sockets.tls.v3 import common_pb2, tls_pb2

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.core.protobuf import boolean, secret
from mesh_pilot.envoy.tls.upstream import san_matchers
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.names import (
    IDENTITY_SECRET,
    TRUST_SECRET,
    credential,
    credential_roots,
    file_certificate,
    file_roots,
)
from mesh_pilot.world import View

Mode = api.ServerTlsSettingsTlSmode
Version = api.ServerTlsSettingsTlsProtocol
MeshVersion = mesh_api.MeshConfigTlsConfigTlsProtocol
TlsParameters = common_pb2.TlsParameters

ALPN = ("h2", "http/1.1")
VERSIONS = {
    Version.TLS_AUTO: TlsParameters.TLS_AUTO,
    Version.TLSV1_0: TlsParameters.TLSv1_0,
    Version.TLSV1_1: TlsParameters.TLSv1_1,
    Version.TLSV1_2: TlsParameters.TLSv1_2,
    Version.TLSV1_3: TlsParameters.TLSv1_3,
}
MESH_VERSIONS = {
    MeshVersion.TLS_AUTO: TlsParameters.TLS_AUTO,
    MeshVersion.TLSV1_2: TlsParameters.TLSv1_2,
    MeshVersion.TLSV1_3: TlsParameters.TLSv1_3,
}
MUTUAL = (Mode.MUTUAL, Mode.ISTIO_MUTUAL)
"""The client must show a certificate."""
ASKS = (*MUTUAL, Mode.OPTIONAL_MUTUAL)
"""The client is asked for one."""


def downstream_tls(view: View, settings: api.ServerTlsSettings) -> tls_pb2.DownstreamTlsContext:
    """How a server takes TLS."""
    context = tls_pb2.DownstreamTlsContext(require_client_certificate=boolean(settings.mode in MUTUAL))
    common = context.common_tls_context
    common.alpn_protocols.extend(ALPN)
    common.tls_certificate_sds_secret_configs.extend(secret(name) for name in _certificates(settings))
    if settings.mode in ASKS:
        _validate(common, settings)
    defaults = _defaults(view) if settings.mode is not Mode.ISTIO_MUTUAL else None
    parameters = _parameters(settings, defaults)
    if parameters != TlsParameters():
        common.tls_params.CopyFrom(parameters)
    return context


def _certificates(settings: api.ServerTlsSettings) -> Iterator[str]:
    """The secrets with the server's certificates."""
    if settings.credential_name or settings.credential_names:
        yield from map(credential, settings.credential_names or (settings.credential_name,))
    elif settings.mode is Mode.ISTIO_MUTUAL:
        yield IDENTITY_SECRET
    elif settings.tls_certificates:
        yield from (file_certificate(c.server_certificate, c.private_key) for c in settings.tls_certificates)
    else:
        yield file_certificate(settings.server_certificate, settings.private_key)


def _roots(settings: api.ServerTlsSettings) -> str:
    """The secret with the roots that client certificates are checked against; empty where there are none."""
    if settings.ca_cert_credential_name:
        return credential_roots(settings.ca_cert_credential_name)
    if settings.credential_name or settings.credential_names:
        return credential_roots(settings.credential_name or settings.credential_names[0])
    if settings.mode is Mode.ISTIO_MUTUAL:
        return TRUST_SECRET
    return file_roots(settings.ca_certificates) if settings.ca_certificates else ""


def _validate(common: tls_pb2.CommonTlsContext, settings: api.ServerTlsSettings) -> None:
    """Set what client certificates are checked for."""
    roots = _roots(settings)
    if not roots or settings.insecure_skip_verify:
        _require(common.validation_context, settings)
        common.validation_context.trust_chain_verification = common_pb2.CertificateValidationContext.ACCEPT_UNTRUSTED
        return
    combined = common.combined_validation_context
    combined.default_validation_context.SetInParent()
    _require(combined.default_validation_context, settings)
    combined.default_validation_context.match_typed_subject_alt_names.extend(san_matchers(settings.subject_alt_names))
    if settings.ca_crl:
        combined.default_validation_context.crl.filename = settings.ca_crl
    combined.validation_context_sds_secret_config.CopyFrom(secret(roots))


def _require(context: common_pb2.CertificateValidationContext, settings: api.ServerTlsSettings) -> None:
    """The certificates themselves, where the server pins them."""
    context.verify_certificate_spki.extend(settings.verify_certificate_spki)
    context.verify_certificate_hash.extend(settings.verify_certificate_hash)


def _parameters(
    settings: api.ServerTlsSettings, defaults: mesh_api.MeshConfigTlsConfig | None
) -> common_pb2.TlsParameters:
    """Versions, ciphers and curves: the server's own, else the mesh's for TLS that is not its own."""
    parameters = TlsParameters(
        tls_minimum_protocol_version=VERSIONS[settings.min_protocol_version],
        tls_maximum_protocol_version=VERSIONS[settings.max_protocol_version],
        cipher_suites=settings.cipher_suites,
    )
    if defaults is not None:
        parameters.ecdh_curves.extend(defaults.ecdh_curves)
        parameters.cipher_suites.extend(() if settings.cipher_suites else defaults.cipher_suites)
        if settings.min_protocol_version is Version.TLS_AUTO:
            parameters.tls_minimum_protocol_version = MESH_VERSIONS[defaults.min_protocol_version]
    return parameters


@derived
def _defaults(view: View) -> mesh_api.MeshConfigTlsConfig | None:
    return view.mesh().tls_defaults
