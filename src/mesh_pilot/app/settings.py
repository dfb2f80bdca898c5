"""The settings of a control plane, and the error that says that it can't start with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from mesh_pilot.consul.identity.ca_store import ConsulStoreSettings
from mesh_pilot.identity.authority.settings import DEFAULT_AUTHORITY, AuthoritySettings
from mesh_pilot.identity.authority.store import StoredFiles
from mesh_pilot.identity.certificates.settings import CallerSettings
from mesh_pilot.identity.signers.vault.settings import VaultSettings
from mesh_pilot.identity.tokens.join_tokens import JoinTokenSettings
from mesh_pilot.kubernetes.apiserver import KubernetesError
from mesh_pilot.kubernetes.identity.foreign_tokens import ForeignTokenSettings
from mesh_pilot.kubernetes.status.settings import StatusSettings
from mesh_pilot.kubernetes.webhooks.settings import WebhookSettings
from mesh_pilot.model.bounds import DEFAULT_BOUNDS, Bounds
from mesh_pilot.model.config import ConfigError
from mesh_pilot.model.events import RolloutPlan
from mesh_pilot.net.rpc import SERVER_LIMITS, CertificateFiles, Limits, RpcError
from mesh_pilot.ops.access.settings import AccessSettings
from mesh_pilot.ops.tracing.settings import TraceSettings
from mesh_pilot.replicas.election.base import ElectionSettings
from mesh_pilot.replicas.registration.settings import RegistrationSettings
from mesh_pilot.replicas.workers.settings import WorkerSettings
from mesh_pilot.safety.quarantine.options import DEFAULT_OPTIONS, QuarantineOptions
from mesh_pilot.safety.state.settings import StateSettings
from mesh_pilot.sources.base.contract import Registry, SourceError
from mesh_pilot.sources.wasm.settings import DEFAULT_WASM, WasmSettings
from mesh_pilot.world.guard import DEFAULT_GUARD, GuardOptions


class StartError(Exception):
    """The reason why a control plane can't start, in one line for the operator, or in several if it is a file's."""

    @property
    def lines(self) -> tuple[str, ...]:
        """The reason; of a file with several errors each in a line."""
        cause = self.__cause__
        return cause.lines if isinstance(cause, ConfigError) else (str(self),)


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
    """Servers of configuration in addition to mesh config ``configSources``, written as there."""
    mcp_tls: CertificateFiles | None = None
    """The CA and the client certificate towards the servers named above; None: plaintext."""
    mcp_sink_addr: str | None = None
    """The address at which sources of MCP may connect; None: nowhere."""
    serve_config: bool | None = None
    """True if configuration is served over MCP and xDS, in addition to Envoys' resources; never secrets.

    None: to identities of the root namespace and of ``configReaders``, and to plaintext clients on this machine.
    """
    config_store: str = ""
    """The store of configuration that the API changes: a folder, ``consul://PREFIX`` or ``kubernetes``; empty: none."""
    grpc_addr: str = "127.0.0.1:15010"
    secure_grpc_addr: str = "127.0.0.1:15012"
    tls: CertificateFiles | None = None
    """The server's certificate, and a CA of clients besides our own; where it has no certificate, our CA signs one."""
    tls_dns_names: tuple[str, ...] = ()
    """The DNS names and IP addresses in a server's certificate that our CA signs; empty: the usual ones."""
    authority: AuthoritySettings = DEFAULT_AUTHORITY
    """Lifetimes of the certificates that are signed here."""
    client_bounds: Bounds = DEFAULT_BOUNDS
    """The limits of xDS clients."""
    split_virtual_hosts: bool = False
    """True if Delta Envoys get virtual hosts as separate resources without asking, if they can take them."""
    grpc_limits: Limits = SERVER_LIMITS
    """The limits on connections to the gRPC ports, and their age."""
    http_addr: str = "127.0.0.1:8080"
    access: AccessSettings = attrs.field(factory=AccessSettings)
    """The access to the web port."""
    monitoring_addr: str = "127.0.0.1:15014"
    traces: TraceSettings | None = None
    """The receiver of traces of changes; None: there are none."""
    ca_dir: Path | None = None
    """Folder of the CA, with a root made there if it is empty; None: a root for this run."""
    trust_bundle_ca: Path | None = None
    """The roots by which servers of foreign trust bundles are verified; None: the system's."""
    trust_local: bool = False
    """True if plaintext peers on this machine are trusted to be who they say, and get private keys."""
    callers: CallerSettings = attrs.field(factory=CallerSettings)
    join_tokens: JoinTokenSettings = attrs.field(factory=JoinTokenSettings)
    foreign_tokens: ForeignTokenSettings = attrs.field(factory=ForeignTokenSettings)
    ca_files: StoredFiles | None = None
    """The root for this run, where the workers of a control plane share one; None: a new one."""
    ca_store: ConsulStoreSettings | None = None
    """The entry of a KV store with the CA, in place of ``ca_dir``."""
    vault: VaultSettings | None = None
    """The Vault that signs the certificates of proxies; None: a CA of our own."""
    domain: str = "cluster.local"
    namespace: str = "istio-system"
    """The namespace of the control plane: the mesh's root namespace, unless its MeshConfig names another."""
    revision: str = ""
    """The revision of this control plane: objects in Kubernetes of another one are not read; empty: all are."""
    shared_mesh_config: str = ""
    """The ConfigMap with the mesh config of users, over which that of the control plane counts; empty: none."""
    status: StatusSettings = attrs.field(factory=StatusSettings)
    """The status that is written to objects in Kubernetes."""
    rollout: RolloutPlan | None = None
    """The plan by which every change of configuration is rolled out; None: only what an operator says."""
    quarantine: QuarantineOptions | None = DEFAULT_OPTIONS
    """The limits of quarantine; None: a client that refuses something keeps what it has until that changes."""
    shutdown_seconds: float = 10.0
    debounce_after: float = 0.1
    debounce_max: float = 10.0
    state: StateSettings | None = None
    """The state that outlives a restart; None: none is kept."""
    wasm: WasmSettings = DEFAULT_WASM
    """The limits of WebAssembly modules, which are kept in the state folder."""
    guard: GuardOptions | None = DEFAULT_GUARD
    """How much of a source's picture may go at once; None: all of it."""
    admin_socket: Path | None = None
    """The Unix socket at which an operator on this machine gives orders (``mesh-pilot admin``).

    None: ``admin.sock`` in the state folder.
    """
    election: ElectionSettings | None = None
    """How replicas agree on the one that does what must be done once; None: this one always does."""
    registration: RegistrationSettings = attrs.field(factory=RegistrationSettings)
    """How proxies register themselves."""
    workers: WorkerSettings = attrs.field(factory=WorkerSettings)
    """The processes that serve proxies."""
    webhooks: WebhookSettings | None = None
    """The webhooks for an API server; None: there are none."""
    sync_timeout: float | None = None
    """The wait for sources before serving without them; None: as long as it takes."""


def fault_of(error: ConfigError) -> StartError:
    """The reason not to start that a wrong file is."""
    fault = StartError(str(error))
    fault.__cause__ = error
    return fault


@contextmanager
def start_errors() -> Iterator[None]:
    """Raise errors of the rooms below, each one line, as StartError."""
    try:
        yield
    except (ConfigError, SourceError, KubernetesError, RpcError) as error:
        raise StartError(str(error)) from error
