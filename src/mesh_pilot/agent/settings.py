"""The settings of an agent: frozen values without I/O, assembled from flags, environment and file by ``cli/proxy``.

Times are in seconds. Files and folders are absolute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode, Pilot


class AgentError(Exception):
    """A reason why the agent cannot start or go on: one line for users, with what to do."""


@attrs.frozen
class AgentFolders:
    """Places of the agent's files. Both are its own: mode 0700, of the user that it runs as."""

    state: Path
    """Keys, certificates, the last answers of the control plane: all that outlives a restart. ``$STATE_DIRECTORY``."""
    run: Path
    """Sockets and Envoy's files. ``$RUNTIME_DIRECTORY``; lost at a reboot."""

    @property
    def socket(self) -> Path:
        """The Unix socket on which the agent serves xDS and SDS to its Envoy."""
        return self.run / "xds.sock"


@attrs.frozen
class PlaneSettings:
    """The control planes, and how they are known."""

    addresses: tuple[Pilot, ...]
    """The secure ports; with ``plaintext`` the others. ``ADDRESS`` or ``ADDRESS@REGION/ZONE``."""
    ca: Path | None = None
    """PEM file of the roots that they are known by; None only with ``plaintext``."""
    server_name: str | None = None
    """DNS name in their certificates; None: the host of the address."""
    plaintext: bool = False
    """No TLS, for tests and for a control plane on the same machine (``--trust-local``)."""


@attrs.frozen
class CredentialSettings:
    """The proof of this workload's identity, and the certificate that it gets for it."""

    token_file: Path | None = None
    """A join token or a JSON Web Token, read again for each use."""
    consul_token_file: Path | None = None
    """A token of a Consul login, read again for each use."""
    consul_service: str = ""
    """The one of the token's service identities that we are; empty: it has one."""
    certificate: Path | None = None
    """PEM chain that is used as it is, and read again when it changes; with ``key`` and ``roots``."""
    key: Path | None = None
    roots: Path | None = None
    sds_socket: Path | None = None
    """Unix socket of another SDS server (SPIRE's agent), which Envoy asks instead of us."""
    lifetime: float | None = None
    """Asked for; None: what the control plane gives."""
    key_type: str = "EC"
    """``EC`` (P-256) or ``RSA`` (2048 bits)."""


@attrs.frozen
class Ports:
    """TCP ports; 0 disables, except ``admin``. DNS is UDP, too. The names are Istio's."""

    admin: int = 15000
    """Envoy's admin interface, on 127.0.0.1."""
    status: int = 15020
    """The agent's: readiness, merged metrics, rewritten probes."""
    readiness: int = 15021
    """Envoy's listener for ``/healthz/ready``."""
    prometheus: int = 15090
    """Envoy's listener for ``/stats/prometheus``."""
    dns: int = 15053


MINIMUM_DRAIN_SECONDS = 5.0


@attrs.frozen
class EnvoySettings:
    binary: Path | None = None
    """None: ``$ENVOY``, the one next to this Python, the one on PATH."""
    log_level: str = "warning"
    component_log_level: str = ""
    base_id: int | None = None
    """The base id of Envoy's shared memory; None: one that is free (``--use-dynamic-base-id``)."""
    concurrency: int | None = None
    """Worker threads where no ProxyConfig has ``concurrency``; None: one for each CPU."""
    drain_seconds: float = 45.0
    """Time in which connections of a listener that goes are closed. ProxyConfig's ``drainDuration``."""
    parent_shutdown_seconds: float = 60.0
    """After a hot restart, time until the old Envoy ends. ProxyConfig's ``parentShutdownDuration``."""
    ip_version: str = "v4"
    """The IP version of the local address: ``v4`` or ``v6``."""
    extra_flags: tuple[str, ...] = ()
    custom_bootstrap: Path | None = None
    """YAML or JSON of a Bootstrap that is merged over ours (Istio's ``ISTIO_BOOTSTRAP_OVERRIDE``)."""
    minimum_drain: float | None = None
    """Istio's ``MINIMUM_DRAIN_DURATION``, with the next one. None, of both: what ``proxyMetadata`` of the ProxyConfig
    says, else ``MINIMUM_DRAIN_SECONDS``, and false."""
    exit_on_zero_active_connections: bool | None = None


@attrs.frozen
class DnsSettings:
    enabled: bool = False
    """Istio's ``ISTIO_META_DNS_CAPTURE``."""
    resolv_conf: Path = Path("/etc/resolv.conf")
    """The file whose name servers get names outside the mesh, and whose search domains are tried."""
    upstreams: tuple[str, ...] = ()
    """``host:port`` of name servers in place of those of ``resolv_conf``."""
    listen: str = "127.0.0.1"


@attrs.frozen
class ConsulAgentSettings:
    """The Consul agent of this machine. None of it is used without ``service`` or ``service_id``."""

    address: str = "127.0.0.1:8500"
    token_file: Path | None = None
    service: Mapping[str, Any] | None = None
    """A service definition in Consul's JSON form (``Name``, ``Port``, ``Meta``, ...), which we register."""
    service_id: str = ""
    """Id of a service that somebody else registers: only a check is added to it. Not together with ``service``."""


@attrs.frozen
class ExportSettings:
    """How metrics leave the machine. A field without a value is as ``proxyMetadata`` of the ProxyConfig has it."""

    secure_port: int | None = None
    """The port of the merged metrics over mutual TLS (Istio's ``ENVOY_SECURE_MERGED_METRICS_PORT``); 0: off."""
    secure_principals: tuple[str, ...] = ()
    """SPIFFE ids of those who may read them."""
    endpoint: str = ""
    """URL of an OTLP receiver over HTTP that they are pushed to."""
    interval_seconds: float | None = None
    roots: Path | None = None
    """PEM file of the roots that the receiver is known by."""


@attrs.frozen
class AgentSettings:
    """All settings of one agent."""

    node: EnvoyNode
    folders: AgentFolders
    planes: PlaneSettings
    credentials: CredentialSettings = CredentialSettings()
    ports: Ports = Ports()
    envoy: EnvoySettings = EnvoySettings()
    dns: DnsSettings = DnsSettings()
    consul: ConsulAgentSettings = ConsulAgentSettings()
    delta: bool = True
    traffic: bool = True
    """Count what Envoy does with requests and connections, and tell the control plane."""
    proxy_config: Mapping[str, Any] = attrs.field(factory=dict)
    """Istio's ProxyConfig in its YAML form, merged from the file, ``PROXY_CONFIG``, annotations that are single fields,
    and the flag; the control plane's is below it."""
    annotated_proxy_config: Mapping[str, Any] = attrs.field(factory=dict)
    """The annotation ``proxy.istio.io/config`` in the same form. It is below the control plane's, which has it already:
    in the place where Istio puts it."""
    probes: Sequence[Mapping[str, Any]] = ()
    """Readiness probes of the application in the form of WorkloadGroup's ``probe``; none: the control plane's."""
    app_probers: Mapping[str, Any] = attrs.field(factory=dict)
    """Kubernetes-style probes by path below ``/app-health/`` (Istio's ``ISTIO_KUBE_APP_PROBERS``)."""
    scrape: Mapping[str, Any] = attrs.field(factory=dict)
    """Metrics of the application: ``scrape``, ``port``, ``path``, or ``targets`` with several of ``port`` and ``path``
    (Istio's ``ISTIO_PROMETHEUS_ANNOTATIONS``, else the annotations ``prometheus.io/...``)."""
    exports: ExportSettings = ExportSettings()
    auto_register_group: str = ""
    """WorkloadGroup of which the control plane makes a WorkloadEntry for us (``ISTIO_META_AUTO_REGISTER_GROUP``)."""
