"""The settings of a control plane, and the error that says that it can't start with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from mesh_pilot.identity.authenticators.settings import CallerSettings, JoinTokenSettings
from mesh_pilot.identity.authority.settings import DEFAULT_AUTHORITY, AuthoritySettings
from mesh_pilot.kubernetes.status.settings import StatusSettings
from mesh_pilot.model.bounds import DEFAULT_BOUNDS, Bounds
from mesh_pilot.model.flags import FlagKind, flag, group
from mesh_pilot.model.guard import DEFAULT_GUARD, GUARD, GuardOptions
from mesh_pilot.replicas.registration.settings import RegistrationSettings
from mesh_pilot.replicas.workers.settings import WorkerSettings
from mesh_pilot.safety.quarantine.options import DEFAULT_OPTIONS, QUARANTINE, QuarantineOptions
from mesh_pilot.sources.wasm.settings import DEFAULT_WASM, WasmSettings

if TYPE_CHECKING:
    from mesh_pilot.consul.identity.ca_store import ConsulStoreSettings
    from mesh_pilot.identity.authority.store import StoredFiles
    from mesh_pilot.kubernetes.identity.foreign_tokens import ForeignTokenSettings
    from mesh_pilot.kubernetes.webhooks.settings import WebhookSettings
    from mesh_pilot.model.config import ConfigError
    from mesh_pilot.model.events import RolloutPlan
    from mesh_pilot.net.rpc import CertificateFiles, Limits
    from mesh_pilot.ops.access.settings import AccessSettings
    from mesh_pilot.ops.tracing.settings import MetricsPushSettings, TraceSettings
    from mesh_pilot.replicas.election.base import ElectionSettings
    from mesh_pilot.safety.state.settings import StateSettings
    from mesh_pilot.sources.base.contract import Registry


class StartError(Exception):
    """The reason why a control plane can't start, in one line for the operator, or in several if it is a file's."""

    @property
    def lines(self) -> tuple[str, ...]:
        """The reason; of a file with several errors each in a line."""
        from mesh_pilot.model.config import ConfigError

        cause = self.__cause__
        return cause.lines if isinstance(cause, ConfigError) else (str(self),)


_files = partial(flag, section="Configuration")
_mcp = partial(flag, section="Servers of configuration (MCP)")
_ports = partial(flag, section="Where it listens")
_certificates = partial(flag, section="Certificates")
_mesh = partial(flag, section="The mesh")
_timing = partial(flag, section="Timing", kind=FlagKind.DURATION)


def _server_limits() -> Limits:
    from mesh_pilot.net.rpc import SERVER_LIMITS

    return SERVER_LIMITS


def _access() -> AccessSettings:
    from mesh_pilot.ops.access.settings import AccessSettings

    return AccessSettings()


def _foreign_tokens() -> ForeignTokenSettings:
    from mesh_pilot.kubernetes.identity.foreign_tokens import ForeignTokenSettings

    return ForeignTokenSettings()


def _report_interval(text: str) -> float | None:
    from mesh_pilot.istio.meaning.durations import read_duration

    if text == "off":
        return None
    seconds = read_duration(text).total_seconds()
    if seconds < 1:
        raise ValueError(f"{text} is less than 1s")
    return seconds


@attrs.frozen(kw_only=True)
class Settings:
    """All that can be set; see ``docs/configuration.md``. Times are in seconds; `net.rpc.net` reads addresses.

    A field that is a ``flag`` or a ``group`` has its value from the command line, the environment and the file; the
    others are made of several flags, which ``cli.discovery.flags`` declares.
    """

    config_dirs: tuple[Path, ...] = _files(
        "--config-dir",
        default=(),
        repeats=True,
        common=True,
        help="Folder of Istio YAML; may be repeated.",
        doc="Folder of [Istio YAML](files.md); repeatable. At least one, unless there is another source.",
    )
    mesh_config: Path | None = _files(
        "--mesh-config",
        common=True,
        help="File with Istio's MeshConfig (mesh.yaml).",
        doc="File with Istio's MeshConfig ([`mesh.yaml`](#meshyaml)).",
    )
    revision: str = _files(
        "--revision",
        default="",
        help="Revision: objects of others (istio.io/rev) are not read.",
        doc="Revision: objects with another `istio.io/rev` are [not read](kubernetes-config.md#revisions).",
    )
    shared_mesh_config: str = _files(
        "--shared-mesh-config",
        default="",
        help="ConfigMap with users' mesh config, under that of ConfigMap istio.",
    )
    networks_config: Path | None = _files("--networks-config", help="File with Istio's MeshNetworks.")
    secrets_dir: Path | None = _files(
        "--secrets-dir",
        common=True,
        help="Folder of folders NAMESPACE/NAME of PEM files for each credentialName.",
        doc="Folder of folders `NAMESPACE/NAME` of PEM files for each "
        "[credential](security.md#credentials-of-gateways).",
    )
    config_store: str = _files(
        "--config-store",
        default="",
        help="Store that the API may change: a folder of --config-dir, consul://PREFIX or kubernetes "
        "(docs/config-store.md).  [default: none]",
    )
    registries: tuple[Registry, ...] = ()
    """Registries of services, in order of precedence."""
    mcp_servers: tuple[str, ...] = _mcp(
        "--mcp-server",
        default=(),
        repeats=True,
        help="Read configuration there: host:port (MCP), or xds://host:port.",
        doc="Read configuration there: `host:port` ([MCP](mcp.md)) or `xds://host:port`; repeatable.",
    )
    """In addition to mesh config ``configSources``, and written as there."""
    mcp_tls: CertificateFiles | None = None
    """The CA and the client certificate towards the servers named above; None: plaintext."""
    mcp_sink_addr: str | None = _mcp(
        "--mcp-sink-addr",
        kind=FlagKind.ADDRESS,
        help="Let an MCP source, such as a Galley, dial us here: from this machine, or over TLS as one of "
        "configWriters.  [default: off]",
        doc="Let an MCP source, such as a Galley, [dial](mcp.md#a-galley-that-dials) us here: from this "
        "machine, or over TLS as one of `configWriters`.",
    )
    serve_config: bool | None = _mcp(
        "--serve-config/--no-serve-config",
        help="Serve configuration over MCP and xDS, at the gRPC ports.  [default: to the root namespace, "
        "configReaders and this machine]",
        doc="Serve configuration over [MCP and xDS](mcp.md#serving), at the gRPC ports, to all clients or none.",
    )
    """In addition to Envoys' resources; never secrets."""
    grpc_addr: str = _ports(
        "--grpc-addr", kind=FlagKind.ADDRESS, default="127.0.0.1:15010", common=True, help="xDS in plaintext."
    )
    secure_grpc_addr: str = _ports(
        "--secure-grpc-addr",
        kind=FlagKind.ADDRESS,
        default="127.0.0.1:15012",
        common=True,
        help="xDS and CSRs over TLS.",
        doc="xDS and [certificate requests](certificate-requests.md) over TLS.",
    )
    tls: CertificateFiles | None = None
    """The server's certificate, and a CA of clients besides our own; where it has no certificate, our CA signs one."""
    tls_dns_names: tuple[str, ...] = _certificates(
        "--tls-dns-names",
        kind=FlagKind.WORDS,
        default=(),
        adds_up=True,
        metavar="NAME,...",
        help="Names and IP addresses in the server's certificate that the CA signs.  [default: "
        "istiod.NAMESPACE.svc, the host's, ...]",
        doc="Names and IP addresses in [the server's certificate](certificates.md#the-servers-own-certificate) "
        "that the CA signs.",
    )
    authority: AuthoritySettings = group(AuthoritySettings, default=DEFAULT_AUTHORITY)
    """Lifetimes of the certificates that are signed here."""
    client_bounds: Bounds = group(Bounds, default=DEFAULT_BOUNDS)
    """The limits of xDS clients."""
    grpc_limits: Limits = attrs.field(factory=_server_limits)
    """The limits on connections to the gRPC ports, and their age."""
    http_addr: str = _ports(
        "--http-addr",
        kind=FlagKind.ADDRESS,
        default="127.0.0.1:8080",
        common=True,
        help="Web page, /ready, /debug, /metrics.",
        doc="Web page, [API](api.md), `/ready`, `/debug/*`, `/metrics`; beyond loopback with [a "
        "login](operating.md#access).",
    )
    access: AccessSettings = attrs.field(factory=_access)
    """The access to the web port."""
    monitoring_addr: str = _ports(
        "--monitoring-addr",
        kind=FlagKind.ADDRESS,
        default="127.0.0.1:15014",
        common=True,
        help="/metrics, /ready and /version.",
    )
    traces: TraceSettings | None = None
    """The receiver of traces of changes; None: there are none."""
    metrics_push: MetricsPushSettings | None = None
    """The receiver of metrics; None: they are not pushed."""
    ca_dir: Path | None = _certificates(
        "--ca-dir",
        common=True,
        help="Folder of the CA, such as Istio's cacerts; an empty one gets a root. With --ca-signer: of revoked "
        "identities.  [default: ca in --state-dir; with --no-state a root for this run]",
        doc="Folder of the [CA](certificates.md), such as Istio's `cacerts`; an empty one gets a root. With "
        "`--ca-signer`: of [revoked identities](certificates.md#revoking-an-identity).",
    )
    """None: a root for this run."""
    ca_signer: Path | None = _certificates(
        "--ca-signer",
        common=True,
        help="YAML file that says which CA elsewhere signs instead (docs/signers.md).",
        doc="YAML file that says which [CA elsewhere](signers.md) signs instead.",
    )
    trust_bundle_ca: Path | None = _certificates(
        "--trust-bundle-ca",
        help="PEM file of the CA of servers of trust bundles.  [default: the system's]",
        doc="PEM file of the CA of servers of [trust bundles](federation.md).",
    )
    trust_local: bool = _certificates(
        "--trust-local/--no-trust-local",
        default=False,
        common=True,
        help="Believe what plaintext clients on this machine say of themselves, and give them PRIVATE KEYS: of "
        "any workload and gateway.",
    )
    callers: CallerSettings = group(CallerSettings)
    join_tokens: JoinTokenSettings = group(JoinTokenSettings)
    foreign_tokens: ForeignTokenSettings = attrs.field(factory=_foreign_tokens)
    ca_files: StoredFiles | None = None
    """The root for this run, where the workers of a control plane share one; None: a new one."""
    ca_store: ConsulStoreSettings | None = None
    """The entry of a KV store with the CA, in place of ``ca_dir``."""
    domain: str = _mesh(
        "--domain",
        default="cluster.local",
        common=True,
        help="DNS domain of the mesh.",
        doc="DNS domain: hosts are `SERVICE.NAMESPACE.svc.DOMAIN`.",
    )
    namespace: str = _mesh(
        "--namespace",
        default="istio-system",
        common=True,
        help="Root namespace, unless the MeshConfig names one.",
    )
    status: StatusSettings = group(StatusSettings)
    """The status that is written to objects in Kubernetes."""
    rollout: RolloutPlan | None = None
    """The plan by which every change of configuration is rolled out; None: only what an operator says."""
    quarantine: QuarantineOptions | None = group(QuarantineOptions, switch=QUARANTINE, default=DEFAULT_OPTIONS)
    """The limits of quarantine; None: a client that refuses something keeps what it has until that changes."""
    shutdown_seconds: float = _timing(
        "--shutdown-duration", default=10.0, common=True, help="Time that draining may take."
    )
    debounce_after: float = _timing(
        "--debounce-after",
        default=0.1,
        reload=True,
        help="Publish changes after this much quiet,",
        doc="Publish changes after this much quiet,",
    )
    debounce_max: float = _timing(
        "--debounce-max",
        default=10.0,
        reload=True,
        help="but at the latest after this long.",
        doc="but at the latest after this long.",
    )
    state: StateSettings | None = None
    """The state that outlives a restart; None: none is kept."""
    wasm: WasmSettings = group(WasmSettings, default=DEFAULT_WASM)
    """The limits of WebAssembly modules, which are kept in the state folder."""
    guard: GuardOptions | None = group(GuardOptions, switch=GUARD, default=DEFAULT_GUARD)
    """The part of a source's objects that may disappear at once; None: all of them."""
    admin_socket: Path | None = flag(
        "--admin-socket",
        section="What sources lose",
        help="Unix socket for mesh-pilot admin.  [default: admin.sock in the state folder]",
        doc="Unix socket for [`mesh-pilot admin`](guards.md#orders).",
    )
    election: ElectionSettings | None = None
    """How replicas agree on the one that does what must be done once; None: this one always does."""
    registration: RegistrationSettings = group(RegistrationSettings)
    """How proxies register themselves."""
    workers: WorkerSettings = attrs.field(factory=WorkerSettings)
    """The processes that serve proxies."""
    webhooks: WebhookSettings | None = None
    """The webhooks for an API server; None: there are none."""
    sync_timeout: float | None = _timing(
        "--sync-timeout",
        help="Start serving after this long, even if some sources have not synced.  [default: wait]",
        doc="Serve after this time without sources that have not synced.",
    )
    """None: wait for as long as it takes."""
    traffic_reports: float | None = flag(
        "--traffic-reports",
        section="Timing",
        kind=_report_interval,
        default=10.0,
        text="10s",
        metavar="DURATION|off",
        help="Time between two reports of a proxy's traffic, 1s at least; off: none (docs/traffic.md).",
        doc="Time between two reports of a proxy's [traffic](traffic.md), 1s at least; `off`: none.",
    )
    """In seconds; None: traffic is not counted."""


def fault_of(error: ConfigError) -> StartError:
    """The reason not to start that a wrong file is."""
    fault = StartError(str(error))
    fault.__cause__ = error
    return fault


@contextmanager
def start_errors() -> Iterator[None]:
    """Raise errors of the rooms below, each one line, as StartError."""
    from mesh_pilot.model.config import ConfigError
    from mesh_pilot.net.rpc import RpcError
    from mesh_pilot.sources.base.contract import SourceError

    try:
        yield
    except (ConfigError, SourceError, RpcError) as error:
        raise StartError(str(error)) from error
