"""Settings that upstream and downstream TLS contexts share: versions, ciphers, curves, and subject alternative names.

Rules: Istio's ``meshMTLS`` and ``tlsDefaults`` (TLSConfig) and the ``tls`` block of a Gateway server.
"""

from __future__ import annotations

from collections.abc import Iterable

from envoy.extensions.transport_sockets.tls.v3.common_pb2 import SubjectAltNameMatcher, TlsParameters

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfigTlsConfig, MeshConfigTlsConfigTlsProtocol
from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.core.protobuf import exact, regex, suffix
from mesh_pilot.istio.rules.tls import CIPHERS, CURVES
from mesh_pilot.model.net import is_ip

TLS_SOCKET = "envoy.transport_sockets.tls"
RAW_SOCKET = "envoy.transport_sockets.raw_buffer"

MESH_ALPN = "istio"
"""ALPN of mesh mTLS."""

HTTP_ALPN = ("h2", "http/1.1")
"""ALPN that a server of HTTP offers."""


def mesh_tls_parameters(mesh: MeshConfigTlsConfig | None) -> TlsParameters:
    """Parameters of sidecars, on both sides: TLS 1.2 to 1.3 unless the mesh sets a higher minimum."""
    parameters = TlsParameters(
        tls_minimum_protocol_version=TlsParameters.TLSv1_2, tls_maximum_protocol_version=TlsParameters.TLSv1_3
    )
    if mesh is not None:
        if mesh.min_protocol_version is not MeshConfigTlsConfigTlsProtocol.TLS_AUTO:
            parameters.tls_minimum_protocol_version = _version(mesh.min_protocol_version)
        parameters.ecdh_curves.extend(_known_curves(mesh.ecdh_curves))
        parameters.cipher_suites.extend(_known_ciphers(mesh.cipher_suites))
    return parameters


def server_tls_parameters(settings: api.ServerTlsSettings, mesh: MeshConfigTlsConfig | None) -> TlsParameters:
    """Parameters of a Gateway or ingress server: its own settings, else ``mesh``, else Envoy's defaults."""
    parameters = TlsParameters(
        tls_minimum_protocol_version=_version(settings.min_protocol_version),
        tls_maximum_protocol_version=_version(settings.max_protocol_version),
        cipher_suites=_known_ciphers(settings.cipher_suites),
        ecdh_curves=_known_curves(settings.ecdh_curves),
    )
    if mesh is not None:
        parameters.ecdh_curves.extend(() if parameters.ecdh_curves else _known_curves(mesh.ecdh_curves))
        parameters.cipher_suites.extend(() if parameters.cipher_suites else _known_ciphers(mesh.cipher_suites))
        if settings.min_protocol_version is api.ServerTlsSettingsTlsProtocol.TLS_AUTO:
            parameters.tls_minimum_protocol_version = _version(mesh.min_protocol_version)
    return parameters


def _known_curves(curves: Iterable[str]) -> list[str]:
    """The curves that Envoy knows, each once: it refuses others."""
    return [curve for curve in dict.fromkeys(curves) if curve in CURVES]


def _known_ciphers(ciphers: Iterable[str]) -> list[str]:
    """The cipher suites that Envoy knows, each once: it refuses others, which are left out as in Istio."""
    return [cipher for cipher in dict.fromkeys(ciphers) if cipher in CIPHERS]


def _version(version: api.ServerTlsSettingsTlsProtocol | MeshConfigTlsConfigTlsProtocol) -> TlsParameters.TlsProtocol:
    """Envoy's value of a TLS version: ``TLSV1_2`` of Istio's enums is ``TLSv1_2`` there."""
    return TlsParameters.TlsProtocol.Value(version.name.replace("V", "v"))


def san_matchers(names: Iterable[str]) -> list[SubjectAltNameMatcher]:
    """Matchers of certificates with any of these subject alternative names, for each SAN type that a name can be of."""
    return [
        SubjectAltNameMatcher(san_type=san_type, matcher=exact(name))
        for name in dict.fromkeys(names)
        for san_type in _san_types(name)
    ]


def server_name(host: str) -> str:
    """The name by which to ask for a host (SNI); empty for a wildcard and for an address."""
    return "" if host.startswith("*") or is_ip(host) else host


def host_matcher(host: str) -> SubjectAltNameMatcher:
    """The matcher of certificates for a host; for a wildcard, of those for any host under it."""
    if is_ip(host):
        return SubjectAltNameMatcher(san_type=SubjectAltNameMatcher.IP_ADDRESS, matcher=exact(host))
    wildcard = regex(".+") if host == "*" else suffix(host.removeprefix("*"))
    matcher = wildcard if host.startswith("*") else exact(host)
    return SubjectAltNameMatcher(san_type=SubjectAltNameMatcher.DNS, matcher=matcher)


def _san_types(name: str) -> tuple[int, ...]:
    if "://" in name:
        return (SubjectAltNameMatcher.URI,)
    if "@" in name:
        return (SubjectAltNameMatcher.EMAIL,)
    if is_ip(name):
        return (SubjectAltNameMatcher.IP_ADDRESS, SubjectAltNameMatcher.DNS)
    # A URI need not have "//", and Istio compares a name with the SANs of all types.
    return (SubjectAltNameMatcher.DNS, SubjectAltNameMatcher.URI)
