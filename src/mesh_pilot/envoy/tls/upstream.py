"""TLS from a proxy to an upstream: what a DestinationRule asks for, or mesh mTLS by itself where the other side has it.

Rules: Istio's ClientTLSSettings and automatic mTLS; Envoy's TLS and transport socket match documents.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.core.v3 import base_pb2
from envoy.extensions.transport_sockets.proxy_protocol.v3 import upstream_proxy_protocol_pb2
from envoy.extensions.transport_sockets.raw_buffer.v3 import raw_buffer_pb2
from envoy.extensions.transport_sockets.tls.v3 import common_pb2, tls_pb2

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.core.protobuf import exact, secret, transport_socket
from mesh_pilot.mesh.mesh_defaults import ClusterDefaults
from mesh_pilot.mesh.names import (
    IDENTITY_SECRET,
    TRUST_SECRET,
    credential,
    credential_roots,
    file_certificate,
    file_roots,
)
from mesh_pilot.model.net import is_ip

TLS_SOCKET = "envoy.transport_sockets.tls"
RAW_SOCKET = "envoy.transport_sockets.raw_buffer"
PROXY_PROTOCOL_SOCKET = "envoy.transport_sockets.upstream_proxy_protocol"

SYSTEM_ROOTS = "/etc/ssl/certs/ca-certificates.crt"
"""Where the operating system beside a proxy keeps the roots that it trusts (as Debian and Envoy's images do)."""

TLS_MODE_KEY = "tlsMode"
"""Endpoints whose proxy takes mesh mTLS have it as ``istio`` in their transport socket match metadata."""
ISTIO_MODE = "istio"

MESH_ALPN = ("istio",)
MESH_ALPN_HTTP2 = ("istio", "h2")
"""The first names tell the other proxy that this is mesh mTLS, and not TLS of the application."""
ALPN_HTTP2 = ("h2",)

TlsMode = api.ClientTlsSettingsTlSmode
TlsParameters = common_pb2.TlsParameters
SanType = common_pb2.SubjectAltNameMatcher


@attrs.frozen(cache_hash=True)
class ProxyCertificateFiles:
    """Files that a node names in its metadata, to be used in place of the mesh identity."""

    chain: str
    key: str
    roots: str


@attrs.frozen
class TlsPeer:
    """The other side of a cluster's connections."""

    identities: tuple[str, ...]
    """Subject alternative names that its certificates may have, where no rule says."""
    sni: str
    """Server name that mesh mTLS asks for, where no rule says."""
    http2: bool
    declared_by_users: bool
    """Whether it comes from a ServiceEntry: then ``identities`` also count for TLS that is not the mesh's own."""
    mesh_mtls: bool
    """Whether its proxies may be expected to take mesh mTLS."""


def apply_tls(
    cluster: cluster_pb2.Cluster,
    tls: api.ClientTlsSettings | None,
    peer: TlsPeer,
    defaults: ClusterDefaults,
    files: ProxyCertificateFiles | None,
) -> None:
    """Set how a cluster encrypts: as a rule says; else mesh mTLS towards those endpoints that have it."""
    if tls is None:
        if not peer.mesh_mtls:
            return
        context = _mesh_context(api.ClientTlsSettings(), peer, defaults, files)
        # Without load balancing there are no endpoints to tell apart.
        if files is None and cluster.type != cluster_pb2.Cluster.ORIGINAL_DST:
            _apply_matches(cluster, context)
            return
    elif tls.mode == TlsMode.DISABLE:
        return
    elif tls.mode == TlsMode.ISTIO_MUTUAL or (tls.mode == TlsMode.MUTUAL and files is not None):
        context = _mesh_context(tls, peer, defaults, files)
    else:
        context = _other_context(tls, peer, defaults)
    cluster.transport_socket.CopyFrom(transport_socket(TLS_SOCKET, context))


def apply_proxy_protocol(cluster: cluster_pb2.Cluster, setting: api.TrafficPolicyProxyProtocol | None) -> None:
    """Make a cluster say who the client is by a PROXY header. Comes after ``apply_tls``."""
    if setting is None:
        return
    version2 = setting.version == api.TrafficPolicyProxyProtocolVersion.V2
    for match in cluster.transport_socket_matches:
        match.transport_socket.CopyFrom(_with_proxy_header(match.transport_socket, version2))
    if not cluster.transport_socket_matches:
        inner = cluster.transport_socket if cluster.HasField("transport_socket") else _raw()
        cluster.transport_socket.CopyFrom(_with_proxy_header(inner, version2))


def tls_parameters(config: mesh_api.MeshConfigTlsConfig | None) -> common_pb2.TlsParameters:
    """TLS 1.2 to 1.3 unless the mesh says otherwise."""
    parameters = TlsParameters(
        tls_minimum_protocol_version=TlsParameters.TLSv1_2, tls_maximum_protocol_version=TlsParameters.TLSv1_3
    )
    if config is not None:
        if config.min_protocol_version == mesh_api.MeshConfigTlsConfigTlsProtocol.TLSV1_3:
            parameters.tls_minimum_protocol_version = TlsParameters.TLSv1_3
        parameters.ecdh_curves.extend(config.ecdh_curves)
        parameters.cipher_suites.extend(config.cipher_suites)
    return parameters


def san_matchers(names: Iterable[str]) -> list[common_pb2.SubjectAltNameMatcher]:
    """Certificates with any of these subject alternative names, of the kinds that such a name can be of."""
    return [SanType(san_type=kind, matcher=exact(name)) for name in dict.fromkeys(names) for kind in _san_types(name)]


def _san_types(name: str) -> tuple[int, ...]:
    if "://" in name:
        return (SanType.URI,)
    if "@" in name:
        return (SanType.EMAIL,)
    if is_ip(name):
        return (SanType.IP_ADDRESS, SanType.DNS)
    # A URI need not have "//", and Istio compares a name with whatever a certificate has.
    return (SanType.DNS, SanType.URI)


def _mesh_context(
    tls: api.ClientTlsSettings, peer: TlsPeer, defaults: ClusterDefaults, files: ProxyCertificateFiles | None
) -> tls_pb2.UpstreamTlsContext:
    """Mesh mTLS; with the node's own certificate files, if it names any, it is plain mutual TLS."""
    automatic = tls.mode != TlsMode.MUTUAL
    names = tls.subject_alt_names or (peer.identities if automatic else ())
    sni = tls.sni or (peer.sni if automatic else "")
    context = tls_pb2.UpstreamTlsContext(sni=sni)
    common = context.common_tls_context
    if files is not None:
        common.tls_params.CopyFrom(tls_parameters(defaults.tls))
        common.alpn_protocols.extend(ALPN_HTTP2 if peer.http2 else ())
        common.tls_certificate_sds_secret_configs.append(secret(file_certificate(files.chain, files.key)))
        _validate(context, names, file_roots(files.roots) if files.roots else "", tls)
        return context
    common.tls_params.CopyFrom(tls_parameters(None))
    common.alpn_protocols.extend(MESH_ALPN_HTTP2 if peer.http2 else MESH_ALPN)
    common.tls_certificate_sds_secret_configs.append(secret(IDENTITY_SECRET))
    _validate(context, names, TRUST_SECRET, tls)
    return context


def _other_context(tls: api.ClientTlsSettings, peer: TlsPeer, defaults: ClusterDefaults) -> tls_pb2.UpstreamTlsContext:
    """TLS (SIMPLE) or mutual TLS with certificates that the rule names."""
    context = tls_pb2.UpstreamTlsContext(sni=tls.sni)
    common = context.common_tls_context
    common.tls_params.CopyFrom(tls_parameters(defaults.tls))
    common.alpn_protocols.extend(ALPN_HTTP2 if peer.http2 else ())
    if tls.mode == TlsMode.MUTUAL:
        name = credential(tls.credential_name) if tls.credential_name else ""
        own = name or file_certificate(tls.client_certificate, tls.private_key)
        common.tls_certificate_sds_secret_configs.append(secret(own))
    names = tls.subject_alt_names or (peer.identities if peer.declared_by_users else ())
    if tls.credential_name:
        roots = credential_roots(tls.credential_name)
    elif tls.ca_certificates:
        roots = file_roots(tls.ca_certificates)
    else:
        roots = file_roots(SYSTEM_ROOTS) if defaults.verify_certificates else ""
    _validate(context, names, roots, tls)
    return context


def _validate(
    context: tls_pb2.UpstreamTlsContext, names: Iterable[str], roots: str, tls: api.ClientTlsSettings
) -> None:
    """Set what a certificate must be; without roots (the name of a secret) every certificate will do."""
    common = context.common_tls_context
    if tls.insecure_skip_verify:
        trust = common_pb2.CertificateValidationContext.ACCEPT_UNTRUSTED
        common.validation_context.trust_chain_verification = trust
        return
    if not roots:
        common.validation_context.SetInParent()
        return
    combined = common.combined_validation_context
    combined.default_validation_context.SetInParent()
    combined.default_validation_context.match_typed_subject_alt_names.extend(san_matchers(names))
    if tls.ca_crl:
        combined.default_validation_context.crl.filename = tls.ca_crl
    combined.validation_context_sds_secret_config.CopyFrom(secret(roots))


def _apply_matches(cluster: cluster_pb2.Cluster, context: tls_pb2.UpstreamTlsContext) -> None:
    match = cluster.transport_socket_matches.add(name=f"tlsMode-{ISTIO_MODE}")
    match.match.fields[TLS_MODE_KEY].string_value = ISTIO_MODE
    match.transport_socket.CopyFrom(transport_socket(TLS_SOCKET, context))
    other = cluster.transport_socket_matches.add(name="tlsMode-disabled")
    other.match.SetInParent()
    other.transport_socket.CopyFrom(_raw())


def _raw() -> base_pb2.TransportSocket:
    return transport_socket(RAW_SOCKET, raw_buffer_pb2.RawBuffer())


def _with_proxy_header(inner: base_pb2.TransportSocket, version2: bool) -> base_pb2.TransportSocket:
    message = upstream_proxy_protocol_pb2.ProxyProtocolUpstreamTransport()
    message.config.version = 1 if version2 else 0
    message.config.SetInParent()
    message.transport_socket.CopyFrom(inner)
    return transport_socket(PROXY_PROTOCOL_SOCKET, message)
