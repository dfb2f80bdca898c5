"""TLS that a proxy originates (Envoy's UpstreamTlsContext): as a DestinationRule says, else automatic mesh mTLS.

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

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.core.protobuf import sds_secret, transport_socket
from mesh_pilot.envoy.tls.common import MESH_ALPN, RAW_SOCKET, TLS_SOCKET, mesh_tls_parameters, san_matchers
from mesh_pilot.mesh.mesh_defaults import ClusterDefaults
from mesh_pilot.mesh.names import credential, credential_roots, file_certificate, file_roots
from mesh_pilot.model.resource import IDENTITY_SECRET, TRUST_SECRET
from mesh_pilot.model.service import MESH_TLS_MODE

PROXY_PROTOCOL_SOCKET = "envoy.transport_sockets.upstream_proxy_protocol"

SYSTEM_ROOTS = "/etc/ssl/certs/ca-certificates.crt"
"""The operating system's CA bundle beside a proxy (its path on Debian and in Envoy's images)."""

TLS_MODE_KEY = "tlsMode"
"""Key of the transport socket match metadata: ``MESH_TLS_MODE`` on endpoints whose proxy accepts mesh mTLS."""

MESH_HTTP2_ALPN = (MESH_ALPN, "h2")
HTTP2_ALPN = ("h2",)

TlsMode = api.ClientTlsSettingsTlSmode


@attrs.frozen(cache_hash=True)
class ProxyCertificateFiles:
    """Certificate files that a node's metadata names, used in place of the mesh identity."""

    chain: str
    key: str
    roots: str


@attrs.frozen
class TlsPeer:
    """The server side of a cluster's connections."""

    identities: tuple[str, ...]
    """Subject alternative names that its certificates may have, unless the rule sets some."""
    sni: str
    """Server name for mesh mTLS, unless the rule sets one."""
    http2: bool
    declared_by_users: bool
    """True for a ServiceEntry: ``identities`` then also apply to TLS other than mesh mTLS."""
    mesh_mtls: bool
    """True if its proxies can be expected to accept mesh mTLS."""
    by_agent: bool = False
    """True if the client gets its certificate and the roots from its agent."""


def apply_tls(
    cluster: cluster_pb2.Cluster,
    tls: api.ClientTlsSettings | None,
    peer: TlsPeer,
    defaults: ClusterDefaults,
    files: ProxyCertificateFiles | None,
) -> None:
    """Set a cluster's TLS: as the rule says, else mesh mTLS to the endpoints that accept it."""
    if tls is None:
        if not peer.mesh_mtls:
            return
        context = _mesh_context(api.ClientTlsSettings(), peer, defaults, files)
        # An ORIGINAL_DST cluster has no endpoint metadata to match.
        if files is None and cluster.type != cluster_pb2.Cluster.ORIGINAL_DST:
            _apply_matches(cluster, context)
            return
    elif tls.mode == TlsMode.DISABLE:
        return
    elif tls.mode == TlsMode.ISTIO_MUTUAL or (tls.mode == TlsMode.MUTUAL and files is not None):
        context = _mesh_context(tls, peer, defaults, files)
    else:
        context = _rule_context(tls, peer, defaults)
    cluster.transport_socket.CopyFrom(transport_socket(TLS_SOCKET, context))


def apply_proxy_protocol(cluster: cluster_pb2.Cluster, setting: api.TrafficPolicyProxyProtocol | None) -> None:
    """Send the client's address in a PROXY protocol header. Call after ``apply_tls``."""
    if setting is None:
        return
    version2 = setting.version == api.TrafficPolicyProxyProtocolVersion.V2
    for match in cluster.transport_socket_matches:
        match.transport_socket.CopyFrom(_with_proxy_header(match.transport_socket, version2))
    if not cluster.transport_socket_matches:
        inner = cluster.transport_socket if cluster.HasField("transport_socket") else _plaintext()
        cluster.transport_socket.CopyFrom(_with_proxy_header(inner, version2))


def _mesh_context(
    tls: api.ClientTlsSettings, peer: TlsPeer, defaults: ClusterDefaults, files: ProxyCertificateFiles | None
) -> tls_pb2.UpstreamTlsContext:
    """Mesh mTLS; plain mutual TLS if the node names certificate files of its own."""
    automatic = tls.mode != TlsMode.MUTUAL
    names = tls.subject_alt_names or (peer.identities if automatic else ())
    sni = tls.sni or (peer.sni if automatic else "")
    context = tls_pb2.UpstreamTlsContext(sni=sni)
    common = context.common_tls_context
    if files is not None:
        common.tls_params.CopyFrom(mesh_tls_parameters(defaults.tls))
        common.alpn_protocols.extend(HTTP2_ALPN if peer.http2 else ())
        common.tls_certificate_sds_secret_configs.append(sds_secret(file_certificate(files.chain, files.key)))
        _validate(context, names, file_roots(files.roots) if files.roots else "", tls)
        return context
    common.tls_params.CopyFrom(mesh_tls_parameters(None))
    common.alpn_protocols.extend(MESH_HTTP2_ALPN if peer.http2 else (MESH_ALPN,))
    common.tls_certificate_sds_secret_configs.append(sds_secret(IDENTITY_SECRET, by_agent=peer.by_agent))
    _validate(context, names, TRUST_SECRET, tls, by_agent=peer.by_agent)
    return context


def _rule_context(tls: api.ClientTlsSettings, peer: TlsPeer, defaults: ClusterDefaults) -> tls_pb2.UpstreamTlsContext:
    """TLS as the rule says: SIMPLE, or MUTUAL with the certificates that it names."""
    context = tls_pb2.UpstreamTlsContext(sni=tls.sni)
    common = context.common_tls_context
    common.tls_params.CopyFrom(mesh_tls_parameters(defaults.tls))
    common.alpn_protocols.extend(HTTP2_ALPN if peer.http2 else ())
    if tls.mode == TlsMode.MUTUAL:
        name = credential(tls.credential_name) if tls.credential_name else ""
        certificate = name or file_certificate(tls.client_certificate, tls.private_key)
        common.tls_certificate_sds_secret_configs.append(sds_secret(certificate))
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
    context: tls_pb2.UpstreamTlsContext,
    names: Iterable[str],
    roots: str,
    tls: api.ClientTlsSettings,
    *,
    by_agent: bool = False,
) -> None:
    """Set how the server's certificate is validated. ``roots`` names a secret; empty: any is accepted."""
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
    combined.validation_context_sds_secret_config.CopyFrom(sds_secret(roots, by_agent=by_agent))


def _apply_matches(cluster: cluster_pb2.Cluster, context: tls_pb2.UpstreamTlsContext) -> None:
    """Use TLS for endpoints that accept mesh mTLS, plaintext for the others."""
    mtls = cluster.transport_socket_matches.add(name=f"tlsMode-{MESH_TLS_MODE}")
    mtls.match.fields[TLS_MODE_KEY].string_value = MESH_TLS_MODE
    mtls.transport_socket.CopyFrom(transport_socket(TLS_SOCKET, context))
    plaintext = cluster.transport_socket_matches.add(name="tlsMode-disabled")
    plaintext.match.SetInParent()
    plaintext.transport_socket.CopyFrom(_plaintext())


def _plaintext() -> base_pb2.TransportSocket:
    return transport_socket(RAW_SOCKET, raw_buffer_pb2.RawBuffer())


def _with_proxy_header(inner: base_pb2.TransportSocket, version2: bool) -> base_pb2.TransportSocket:
    message = upstream_proxy_protocol_pb2.ProxyProtocolUpstreamTransport()
    message.config.version = 1 if version2 else 0
    message.config.SetInParent()
    message.transport_socket.CopyFrom(inner)
    return transport_socket(PROXY_PROTOCOL_SOCKET, message)
