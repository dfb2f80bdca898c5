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
from mesh_pilot.envoy.tls.common import (
    MESH_ALPN,
    RAW_SOCKET,
    TLS_SOCKET,
    host_matcher,
    mesh_tls_parameters,
    san_matchers,
    server_name,
)
from mesh_pilot.envoy.tls.connect import connect_client_socket
from mesh_pilot.mesh.names.resources import (
    SYSTEM_ROOTS_SECRET,
    credential,
    credential_roots,
    file_certificate,
    file_roots,
)
from mesh_pilot.mesh.settings.mesh_defaults import ClusterDefaults
from mesh_pilot.model.resource import IDENTITY_SECRET, TRUST_SECRET
from mesh_pilot.model.service import CONNECT_TLS_MODE, MESH_TLS_MODE

PROXY_PROTOCOL_SOCKET = "envoy.transport_sockets.upstream_proxy_protocol"

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
    declares_identities: bool
    """True for a ServiceEntry with ``identities``: they then also apply to TLS other than mesh mTLS."""
    mesh_mtls: bool
    """True if its proxies can be expected to accept mesh mTLS."""
    host: str = ""
    """The service's host, which may be a wildcard."""
    has_requests: bool = True
    """True if its port is of HTTP, or of no declared protocol: the Host of each request then says whom to expect."""
    by_agent: bool = False
    """True if the client gets its certificate and the roots from its agent."""
    system_roots_by_agent: bool = False
    """True if the agent serves the operating system's roots, too."""
    connect_id: str = ""
    """See ``Service.connect_id``."""
    certificate: str = ""
    """The credential that the client shows with TLS of mode SIMPLE; empty: none."""


def apply_tls(
    cluster: cluster_pb2.Cluster,
    tls: api.ClientTlsSettings | None,
    peer: TlsPeer,
    defaults: ClusterDefaults,
    files: ProxyCertificateFiles | None,
) -> None:
    """Set a cluster's TLS: as the rule says, else mesh mTLS to the endpoints that accept it."""
    # An ORIGINAL_DST cluster has no endpoint metadata to match.
    can_match = cluster.type != cluster_pb2.Cluster.ORIGINAL_DST
    if peer.connect_id and can_match and (tls is None or tls.mode == TlsMode.ISTIO_MUTUAL):
        _add_match(cluster, CONNECT_TLS_MODE, connect_client_socket(peer.connect_id, http2=peer.http2))
        if tls is None and not peer.mesh_mtls:
            _add_plaintext(cluster)
            return
    if tls is None:
        if not peer.mesh_mtls:
            return
        context = _mesh_context(api.ClientTlsSettings(), peer, defaults, files)
        if files is None and can_match:
            _add_match(cluster, MESH_TLS_MODE, transport_socket(TLS_SOCKET, context))
            _add_plaintext(cluster)
            return
    elif tls.mode == TlsMode.DISABLE:
        return
    elif tls.mode == TlsMode.ISTIO_MUTUAL:
        context = _mesh_context(tls, peer, defaults, files)
    else:
        context = _rule_context(tls, peer, defaults, files)
    cluster.transport_socket.CopyFrom(transport_socket(TLS_SOCKET, context))


def asks_for_requested_host(tls: api.ClientTlsSettings | None) -> bool:
    """True if the rule's TLS leaves the server name to the Host of each request."""
    return tls is not None and tls.mode in (TlsMode.SIMPLE, TlsMode.MUTUAL) and not tls.sni


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
    """Mesh mTLS; with certificate files of the node's own, if it names any."""
    names = san_matchers(tls.subject_alt_names or peer.identities)
    context = tls_pb2.UpstreamTlsContext(sni=tls.sni or peer.sni)
    common = context.common_tls_context
    if files is not None:
        common.tls_params.CopyFrom(mesh_tls_parameters(defaults.tls))
        common.alpn_protocols.extend(HTTP2_ALPN if peer.http2 else ())
        common.tls_certificate_sds_secret_configs.append(sds_secret(file_certificate(files.chain, files.key)))
        _validate(context, names, tls, file_roots(files.roots) if files.roots else SYSTEM_ROOTS_SECRET, peer)
        return context
    common.tls_params.CopyFrom(mesh_tls_parameters(None))
    common.alpn_protocols.extend(MESH_HTTP2_ALPN if peer.http2 else (MESH_ALPN,))
    common.tls_certificate_sds_secret_configs.append(sds_secret(IDENTITY_SECRET, by_agent=peer.by_agent))
    _validate(context, names, tls, TRUST_SECRET, peer)
    return context


def _rule_context(
    tls: api.ClientTlsSettings, peer: TlsPeer, defaults: ClusterDefaults, files: ProxyCertificateFiles | None
) -> tls_pb2.UpstreamTlsContext:
    """TLS as the rule says: SIMPLE, or MUTUAL with the certificates of the node, or those that the rule names.

    The server has to prove a name: one of the rule's, else of the ServiceEntry's, else the server name that it is asked
    for. That is the rule's ``sni``; else the Host of each request (``asks_for_requested_host``), and where there is
    none (TCP, a health check, a tunnel) the service's own host.
    """
    # Names that the rule or the service declares win over the name asked for; without either, the Host of each request
    # is the name, and only a connection without requests has to be told one.
    accepts_names = bool(tls.subject_alt_names) or peer.declares_identities
    names = san_matchers(tls.subject_alt_names or peer.identities) if accepts_names else []
    context = tls_pb2.UpstreamTlsContext(sni=tls.sni)
    if not tls.sni and not (peer.has_requests and accepts_names):
        context.sni = server_name(peer.host)
    if not accepts_names:
        if tls.sni or not peer.has_requests:
            names = [host_matcher(tls.sni or peer.host)]
        else:
            context.auto_sni_san_validation = not tls.insecure_skip_verify
    common = context.common_tls_context
    common.tls_params.CopyFrom(mesh_tls_parameters(defaults.tls))
    common.alpn_protocols.extend(HTTP2_ALPN if peer.http2 else ())
    own = files if tls.mode == TlsMode.MUTUAL else None
    if tls.mode == TlsMode.MUTUAL:
        common.tls_certificate_sds_secret_configs.append(sds_secret(_certificate(tls, own)))
    elif peer.certificate:
        common.tls_certificate_sds_secret_configs.append(sds_secret(credential(peer.certificate)))
    _validate(context, names, tls, _roots(tls, own), peer)
    return context


def _certificate(tls: api.ClientTlsSettings, own: ProxyCertificateFiles | None) -> str:
    if own is not None:
        return file_certificate(own.chain, own.key)
    if tls.credential_name:
        return credential(tls.credential_name)
    return file_certificate(tls.client_certificate, tls.private_key)


def _roots(tls: api.ClientTlsSettings, own: ProxyCertificateFiles | None) -> str:
    """The secret with the roots by which the server is verified. There always are some."""
    if own is not None and own.roots:
        return file_roots(own.roots)
    if tls.ca_cert_credential_name:
        return credential_roots(tls.ca_cert_credential_name)
    if tls.credential_name and own is None:
        return credential_roots(tls.credential_name)
    return file_roots(tls.ca_certificates) if tls.ca_certificates else SYSTEM_ROOTS_SECRET


def _validate(
    context: tls_pb2.UpstreamTlsContext,
    names: Iterable[common_pb2.SubjectAltNameMatcher],
    tls: api.ClientTlsSettings,
    roots: str,
    peer: TlsPeer,
) -> None:
    """Set how the server's certificate is validated. ``roots`` names a secret."""
    common = context.common_tls_context
    if tls.insecure_skip_verify:
        trust = common_pb2.CertificateValidationContext.ACCEPT_UNTRUSTED
        common.validation_context.trust_chain_verification = trust
        return
    combined = common.combined_validation_context
    combined.default_validation_context.SetInParent()
    combined.default_validation_context.match_typed_subject_alt_names.extend(names)
    if tls.ca_crl:
        combined.default_validation_context.crl.filename = tls.ca_crl
    by_agent = peer.system_roots_by_agent if roots == SYSTEM_ROOTS_SECRET else peer.by_agent
    combined.validation_context_sds_secret_config.CopyFrom(sds_secret(roots, by_agent=by_agent))


def _add_match(cluster: cluster_pb2.Cluster, mode: str, socket: base_pb2.TransportSocket) -> None:
    """Use a transport socket for the endpoints of a TLS mode."""
    found = cluster.transport_socket_matches.add(name=f"tlsMode-{mode}")
    found.match.fields[TLS_MODE_KEY].string_value = mode
    found.transport_socket.CopyFrom(socket)


def _add_plaintext(cluster: cluster_pb2.Cluster) -> None:
    """Use plaintext for the endpoints that no other match is for."""
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
