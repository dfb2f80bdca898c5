"""Where configuration comes from, as mesh config ``configSources`` and ``--mcp-server`` write it, made into sources.

``host:port`` (or ``mcp://host:port``) is a server of MCP, ``xds://host:port`` one of MCP over xDS, ``fs:///folder`` a
folder of YAML, ``k8s://`` or ``k8s:///path/of/a/kubeconfig`` the API server of a Kubernetes.
"""

from __future__ import annotations

import socket
from pathlib import Path

import attrs

from mesh_pilot.api.istio.mesh.v1alpha1 import ConfigSource
from mesh_pilot.api.istio.networking.v1alpha3 import ClientTlsSettings
from mesh_pilot.api.istio.networking.v1alpha3 import ClientTlsSettingsTlSmode as Mode
from mesh_pilot.rpc import AddressError, CertificateFiles, TlsError, TlsSource, client_tls, parse_address
from mesh_pilot.sources.base import Source
from mesh_pilot.sources.files import file_source
from mesh_pilot.sources.kubernetes import KubernetesError, kubernetes_source, load_access
from mesh_pilot.sources.mcp.here import DEFAULT_HERE, Here
from mesh_pilot.sources.mcp.source import Server, mcp_source, xds_source
from mesh_pilot.sources.mcp.wire import SinkNode

ISTIO_CERTIFICATES = Path("/etc/certs")
"""Where Istio puts a control plane's own certificate: what ISTIO_MUTUAL means here."""


class ConfigSourceError(Exception):
    """An address or its TLS settings that can't be used: which, why, and what can be."""


@attrs.frozen(kw_only=True)
class SinkIdentity:
    """Who we are to those we read from."""

    here: Here = DEFAULT_HERE
    host: str = attrs.field(factory=lambda: socket.gethostname().split(".")[0] or "mesh-pilot")

    def mcp_node(self) -> SinkNode:
        return SinkNode(f"{self.host}.{self.here.root_namespace}", {"agent": "mesh-pilot"})

    def xds_node(self) -> SinkNode:
        namespace = self.here.root_namespace
        domain = f"{namespace}.svc.{self.here.domain}"
        return SinkNode(f"sidecar~127.0.0.1~{self.host}.{namespace}~{domain}", {"NAMESPACE": namespace})


def source_of(config: ConfigSource, identity: SinkIdentity) -> Source:
    """The source that an address and its TLS settings mean. Raises ConfigSourceError."""
    scheme, separator, rest = config.address.partition("://")
    if not separator or scheme == "unix":
        scheme, rest = "mcp", config.address
    match scheme:
        case "fs":
            if not rest.startswith("/"):
                raise ConfigSourceError(f"config source {config.address}: a folder is fs:///and/its/path")
            return file_source([rest], name=config.address)
        case "mcp" | "xds":
            server = _server(config, rest)
            if scheme == "xds":
                return xds_source(server, identity.xds_node(), here=identity.here)
            return mcp_source(server, identity.mcp_node(), here=identity.here)
        case "k8s":
            if rest and not rest.startswith("/"):
                raise ConfigSourceError(
                    f"config source {config.address}: k8s:// is the Kubernetes that we are in, or that kubectl would "
                    "use; for another one, k8s:///path/of/its/kubeconfig"
                )
            if config.tls_settings is not None:
                raise ConfigSourceError(f"config source {config.address}: a kubeconfig says all about TLS itself")
            try:
                access = load_access(Path(rest) if rest else None)
            except KubernetesError as error:
                raise ConfigSourceError(f"config source {config.address}: {error}") from None
            return kubernetes_source(access, name=config.address)
        case _:
            raise ConfigSourceError(
                f"config source {config.address}: unknown scheme {scheme}; "
                "known are host:port (MCP), xds://host:port, fs:///folder and k8s://"
            )


def _server(config: ConfigSource, address: str) -> Server:
    try:
        parse_address(address)
    except AddressError as error:
        raise ConfigSourceError(f"config source {config.address}: {error}") from None
    try:
        tls = _tls(config.tls_settings)
    except (TlsError, ValueError) as error:
        raise ConfigSourceError(f"config source {config.address}: {error}") from None
    settings = config.tls_settings
    names = [settings.sni, *settings.subject_alt_names] if settings and tls else []
    return Server(address=address, tls=tls, server_hostname=next(filter(None, names), None))


def _tls(settings: ClientTlsSettings | None) -> TlsSource | None:
    """How to connect, None for plaintext. Raises TlsError when files do not load, ValueError for what can't be done."""
    if settings is None or settings.mode == Mode.DISABLE:
        return None
    if settings.credential_name:
        raise ValueError("tlsSettings.credentialName has no meaning here; name the certificate's files")
    if len(settings.subject_alt_names) > 1 or any("://" in name for name in settings.subject_alt_names):
        raise ValueError("tlsSettings.subjectAltNames may be one host name, which is what is checked")
    if settings.mode == Mode.ISTIO_MUTUAL:
        folder = ISTIO_CERTIFICATES
        files = CertificateFiles(
            certificate=folder / "cert-chain.pem", key=folder / "key.pem", trusted=folder / "root-cert.pem"
        )
        return client_tls(files)
    if settings.mode == Mode.MUTUAL and not (settings.client_certificate and settings.private_key):
        raise ValueError("tlsSettings.mode MUTUAL needs clientCertificate and privateKey")
    files = CertificateFiles(
        certificate=_path(settings.client_certificate) if settings.mode == Mode.MUTUAL else None,
        key=_path(settings.private_key) if settings.mode == Mode.MUTUAL else None,
        trusted=_path(settings.ca_certificates),
    )
    return client_tls(files)


def _path(text: str) -> Path | None:
    return Path(text) if text else None
