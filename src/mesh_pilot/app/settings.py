"""The settings of a control plane, and the error that says that it can't start with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from mesh_pilot.model.bounds import DEFAULT_BOUNDS, Bounds
from mesh_pilot.model.config import ConfigError
from mesh_pilot.rpc import SERVER_LIMITS, CertificateFiles, RpcError
from mesh_pilot.sources.base import Registry, SourceError


class StartError(Exception):
    """The reason why a control plane can't start, in one line for the operator."""


@attrs.frozen(kw_only=True)
class Settings:
    """All that can be set; see ``docs/configuration.md``. Times are in seconds, addresses as ``rpc.net`` reads them."""

    config_dirs: tuple[Path, ...] = ()
    mesh_config: Path | None = None
    networks_config: Path | None = None
    secrets_dir: Path | None = None
    registries: tuple[Registry, ...] = ()
    """Registries of services, in order of precedence."""
    mcp_servers: tuple[str, ...] = ()
    """Servers of configuration beside those of mesh config ``configSources``, written as there."""
    mcp_tls: CertificateFiles | None = None
    """How the servers named above are connected to: the CA to trust, and our certificate; None: in plaintext."""
    mcp_sink_addr: str | None = None
    """Where sources of MCP may dial us; None: nowhere."""
    serve_config: bool | None = None
    """Whether what the World holds is served over MCP and xDS beside what Envoys get; never secrets.

    None: to clients with a certificate, and to those on this machine.
    """
    grpc_addr: str = "127.0.0.1:15010"
    secure_grpc_addr: str = "127.0.0.1:15012"
    """Served only where ``tls`` is given."""
    tls: CertificateFiles | None = None
    """The server's certificate, and the CA that signs those of clients."""
    client_bounds: Bounds = DEFAULT_BOUNDS
    """What clients of xDS may ask for, and how fast."""
    split_virtual_hosts: bool = False
    """Whether Delta Envoys that can take virtual hosts as resources of their own get them so without asking."""
    max_concurrent_streams: int = SERVER_LIMITS.max_concurrent_streams
    """Streams that one connection to a gRPC port may have open."""
    http_addr: str = "127.0.0.1:8080"
    monitoring_addr: str = "127.0.0.1:15014"
    ca_dir: Path | None = None
    """Folder of the root certificate that signs those of proxies, made there if absent; None: a root for this run."""
    trust_local: bool = True
    """Whether plaintext peers on this machine are who they say, and get certificates."""
    domain: str = "cluster.local"
    namespace: str = "istio-system"
    """Where the control plane lives: the mesh's root namespace, unless its MeshConfig names another."""
    shutdown_seconds: float = 10.0
    debounce_after: float = 0.1
    debounce_max: float = 10.0
    sync_timeout: float | None = None
    """How long to wait for sources before serving with what there is; None: as long as it takes."""


@contextmanager
def start_errors() -> Iterator[None]:
    """Raise errors of the rooms below, each one line, as StartError."""
    try:
        yield
    except (ConfigError, SourceError, RpcError) as error:
        raise StartError(str(error)) from error
