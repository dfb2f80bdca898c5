"""The sources that mesh config ``configSources`` and ``--mcp-server`` name by address.

- ``host:port`` or ``mcp://host:port``: an MCP server.
- ``xds://host:port``: a server of MCP over xDS.
- ``fs:///folder``: a folder of YAML.
- ``k8s://`` or ``k8s:///path/of/a/kubeconfig``: a Kubernetes API server.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mesh_pilot.api.istio.mesh.v1alpha1 import ConfigSource
from mesh_pilot.api.istio.networking.v1alpha3 import ClientTlsSettings
from mesh_pilot.api.istio.networking.v1alpha3 import ClientTlsSettingsTlSmode as Mode
from mesh_pilot.net.rpc import AddressError, CertificateFiles, TlsError, TlsSource, client_tls, parse_address
from mesh_pilot.sources.base.contract import Source, SourceError
from mesh_pilot.sources.files import file_source

if TYPE_CHECKING:
    from mesh_pilot.sources.mcp.source import McpServer
    from mesh_pilot.xds.mcp.identity import PlaneIdentity

ISTIO_CERTIFICATES = Path("/etc/certs")
"""The folder of a control plane's own certificate in Istio: TLS mode ISTIO_MUTUAL uses it."""


class ConfigSourceError(SourceError):
    """An unusable address or its TLS settings: which, why, and what is possible instead."""


def source_of(config: ConfigSource, identity: PlaneIdentity, revision: str = "") -> Source:
    """The source of an address with its TLS settings; ``revision``: of this control plane. Raises ConfigSourceError."""
    # Istio's schemes (MeshConfig, ConfigSource.address), and mcp:// written out. unix:// is an address of MCP.
    scheme, separator, rest = config.address.partition("://")
    if not separator or scheme == "unix":
        scheme, rest = "mcp", config.address
    match scheme:
        case "fs":
            if not rest.startswith("/"):
                raise ConfigSourceError(f"config source {config.address}: a folder is fs:///and/its/path")
            return file_source([rest], name=config.address)
        case "mcp" | "xds":
            from mesh_pilot.sources.mcp.source import mcp_source, xds_source

            server = _server(config, rest)
            return xds_source(server, identity) if scheme == "xds" else mcp_source(server, identity)
        case "k8s":
            if rest and not rest.startswith("/"):
                raise ConfigSourceError(
                    f"config source {config.address}: k8s:// is the Kubernetes that we are in, or that kubectl would "
                    "use; for another one, k8s:///path/of/its/kubeconfig"
                )
            if config.tls_settings is not None:
                raise ConfigSourceError(f"config source {config.address}: a kubeconfig says all about TLS itself")
            from mesh_pilot.kubernetes.apiserver import KubernetesError, load_access
            from mesh_pilot.kubernetes.source import kubernetes_source

            try:
                access = load_access(Path(rest) if rest else None)
            except KubernetesError as error:
                raise ConfigSourceError(f"config source {config.address}: {error}") from None
            return kubernetes_source(access, name=config.address, revision=revision)
        case _:
            raise ConfigSourceError(
                f"config source {config.address}: unknown scheme {scheme}; "
                "known are host:port (MCP), xds://host:port, fs:///folder and k8s://"
            )


def is_server(address: str) -> bool:
    """True if an address is that of a server, to which TLS settings apply."""
    return not address.startswith(("fs:", "k8s:"))


def _server(config: ConfigSource, address: str) -> McpServer:
    from mesh_pilot.sources.mcp.source import McpServer

    settings = config.tls_settings
    try:
        parse_address(address)
        tls = _tls(settings)
    except (AddressError, TlsError, ValueError) as error:
        raise ConfigSourceError(f"config source {config.address}: {error}") from None
    names = [settings.sni, *settings.subject_alt_names] if settings and tls else []
    return McpServer(address=address, tls=tls, server_hostname=next(filter(None, names), None))


def _tls(settings: ClientTlsSettings | None) -> TlsSource | None:
    """Client TLS; None for plaintext. Raises TlsError if files do not load, ValueError for unsupported settings."""
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
