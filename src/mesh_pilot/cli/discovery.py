"""``mesh-pilot discovery``: the control plane itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import attrs
import click
from click.core import ParameterSource

from mesh_pilot.base.output import take_standard_outputs
from mesh_pilot.cli import access_flags, authenticator_flags, caller_flags
from mesh_pilot.cli.access_flags import take_access
from mesh_pilot.cli.authenticator_flags import take_foreign_tokens
from mesh_pilot.cli.ca_flags import CA_FLAGS, take_ca
from mesh_pilot.cli.ca_store_flags import FLAGS as CA_STORE_FLAGS
from mesh_pilot.cli.ca_store_flags import take_ca_store
from mesh_pilot.cli.caller_flags import take_caller_settings
from mesh_pilot.cli.connection_flags import FLAGS as CONNECTION_FLAGS
from mesh_pilot.cli.connection_flags import take_connection_limits
from mesh_pilot.cli.election_flags import FLAGS as ELECTION_FLAGS
from mesh_pilot.cli.election_flags import KUBERNETES, take_election
from mesh_pilot.cli.guard_flags import FLAGS as GUARD_FLAGS
from mesh_pilot.cli.guard_flags import take_guard
from mesh_pilot.cli.istio_environment import flag_hint, log_lines, take_istio_environment
from mesh_pilot.cli.logs import LogFormat, LogLevels, configure, parse_levels
from mesh_pilot.cli.options import ListOption, SectionedCommand, address, duration
from mesh_pilot.cli.process import forbid_core_dumps, open_more_files, outlive_signals
from mesh_pilot.cli.registration_flags import REGISTRATION_FLAGS, take_registration
from mesh_pilot.cli.registries import FLAGS as REGISTRY_FLAGS
from mesh_pilot.cli.registries import REGISTRIES, take_registries
from mesh_pilot.cli.rollout_flags import ROLLOUT_FLAGS, take_rollout
from mesh_pilot.cli.state_flags import FLAGS as STATE_FLAGS
from mesh_pilot.cli.state_flags import ca_folder, take_state, usable
from mesh_pilot.cli.status_flags import FLAGS as STATUS_FLAGS
from mesh_pilot.cli.status_flags import take_status
from mesh_pilot.cli.token_flags import FLAGS as TOKEN_FLAGS
from mesh_pilot.cli.token_flags import take_join_tokens
from mesh_pilot.cli.vault_flags import FLAGS as VAULT_FLAGS
from mesh_pilot.cli.vault_flags import take_vault
from mesh_pilot.cli.wasm_flags import FLAGS as WASM_FLAGS
from mesh_pilot.cli.wasm_flags import take_wasm
from mesh_pilot.cli.webhook_flags import FLAGS as WEBHOOK_FLAGS
from mesh_pilot.cli.webhook_flags import take_webhooks
from mesh_pilot.model.bounds import DEFAULT_BOUNDS, Bounds

_HELP = {
    "max_streams": "xDS streams open at the same time.",
    "max_request_bytes": "Size of one xDS request.",
    "max_names": "Resource names in one subscription.",
    "max_name_length": "Characters of a resource name, a node id, a label's key or value.",
    "max_node_bytes": "Size of a request without its resource names: mostly the node.",
    "max_node_values": "Values in the metadata of a node.",
    "max_labels": "Labels of a node.",
    "max_scopes_per_peer": "Namespaces, localities, ... of the proxies of one identity, or without one at one address.",
    "stream_requests_per_second": "Requests of one stream that answer nothing; more wait.",
    "max_requests_per_second": "New xDS streams; more wait, in order of arrival.",
}


def _flag(field: attrs.Attribute[Any]) -> tuple[str, Mapping[str, Any]]:
    kind = click.FloatRange(min=0) if isinstance(field.default, float) else click.IntRange(min=0)
    help_text = f"{_HELP[field.name]}  0: no limit."
    return "--" + field.name.replace("_", "-"), {"type": kind, "default": field.default, "help": help_text}


BOUND_FLAGS: Sequence[tuple[str, Mapping[str, Any]]] = [_flag(field) for field in attrs.fields(Bounds)]


def bounds_of(options: MutableMapping[str, Any]) -> Bounds:
    """The bounds that were given, taken out of the options of the command."""
    names = attrs.asdict(DEFAULT_BOUNDS)
    return Bounds(**{name: options.pop(name) for name in names})


def _parameters_of(ctx: click.Context) -> tuple[Callable[[str], bool], Callable[[str, str], object]]:
    """Two functions of a parameter's name: whether nobody has given it, and the value that a text has for it."""
    parameters = {param.name: param for param in ctx.command.params}

    def is_default(name: str) -> bool:
        return ctx.get_parameter_source(name) is ParameterSource.DEFAULT

    return is_default, lambda name, text: parameters[name].type_cast_value(ctx, text)


F = TypeVar("F", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)


def _option(name: str, *more: str, **attributes: Any) -> Callable[[F], F]:
    """An option ``--some-flag`` that can also be given as the environment variable ``MESH_PILOT_SOME_FLAG``."""
    variable = "MESH_PILOT_" + name.split("/")[0].removeprefix("--").upper().replace("-", "_")
    if attributes.get("default") == "":
        attributes["show_default"] = False
    return click.option(name, *more, envvar=variable, **attributes)


SECTIONS = {
    "Configuration": (
        "--config-dir",
        "--mesh-config",
        "--networks-config",
        "--secrets-dir",
        "--config-store",
        "--revision",
        "--shared-mesh-config",
    ),
    "Servers of configuration (MCP)": ("--mcp-*", "--serve-config"),
    "Registries": ("--registries",),
    **{registry.title: tuple(registry.names) for registry in REGISTRIES},
    "Processes": ("--workers",),
    "Where it listens": ("--grpc-addr", "--secure-grpc-addr", "--http-addr", "--monitoring-addr"),
    "Webhooks of an API server": ("--https-addr", "--webhook-*", "--injection-*"),
    "Who may use the web port and the API": ("--api-*",),
    "Tokens of callers": ("--jwt-rules", "--accept-*", "--kubernetes-*", "--trust-consul-namespaces"),
    "Certificates": ("--tls-*", "--ca-*", "--*workload-cert-ttl", "--token-dir", "--trust*", "--certificates-*"),
    "Certificates signed by Vault": ("--vault-*",),
    "What outlives a restart": ("--state-*", "--no-state", "--history-*"),
    "The mesh": ("--domain", "--namespace", "--split-virtual-hosts"),
    "What sources lose": ("--guard*", "--admin-socket"),
    "WebAssembly modules": ("--wasm-*",),
    "Status written to Kubernetes": ("--status-*",),
    "Replicas": ("--leader-election*",),
    "Proxies that register themselves": ("--auto-register*",),
    "What proxies refuse": ("--quarantine*",),
    "Changes by steps": ("--rollout-*",),
    "Connections to the gRPC ports": ("--max-con*", "--max-handshakes"),
    "What clients may ask for (0: no limit)": ("--max-*", "--stream-requests-per-second"),
    "Timing": ("--debounce-*", "--sync-timeout", "--shutdown-duration"),
    "Logs and traces": ("--log-*", "--otel-traces"),
}
"""The flags in the order of the help, by name or pattern; those of no section come last."""


def otel_endpoint(text: str) -> str:
    """The type of ``--otel-traces``."""
    if not text.startswith(("http://", "https://")) or not urlsplit(text).hostname:
        raise click.BadParameter(f"{text!r} is no URL such as http://localhost:4318")
    return text


def levels(text: str) -> LogLevels:
    try:
        return parse_levels(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _flags(*groups: Sequence[tuple[str, Mapping[str, Any]]]) -> Callable[[F], F]:
    """The flags of other modules, in order."""

    def decorate(command: F) -> F:
        for name, attributes in reversed([flag for group in groups for flag in group]):
            command = _option(*name.split(), **attributes)(command)
        return command

    return decorate


def workers(text: str) -> int:
    """A number of processes, or ``auto``."""
    if text in ("auto", "0"):
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not (text.isascii() and text.isdigit() and len(text) < 4):
        raise click.BadParameter(f"{text!r} is neither a number nor auto")
    return int(text)


@click.command(
    "discovery", cls=SectionedCommand, sections=SECTIONS, hint=flag_hint, context_settings={"show_default": True}
)
@_option("--config-dir", "config_dirs", type=PATH, multiple=True, help="Folder of Istio YAML; may be repeated.")
@_option("--mesh-config", type=PATH, help="File with Istio's MeshConfig (mesh.yaml).")
@_option(
    "--revision", default="", help="Revision of this control plane: objects of others (istio.io/rev) are not read."
)
@_option("--shared-mesh-config", default="", help="ConfigMap with settings of users under those of ConfigMap istio.")
@_option("--networks-config", type=PATH, help="File with Istio's MeshNetworks.")
@_option("--secrets-dir", type=PATH, help="Folder with a folder NAMESPACE/NAME of PEM files for each credentialName.")
@_option(
    "--config-store",
    default="",
    help="Store that the API may change: one of the folders of --config-dir, consul://PREFIX or kubernetes"
    " (docs/config-store.md).  [default: none]",
)
@_option(
    "--mcp-server", "mcp_servers", multiple=True, help="Read configuration there: host:port (MCP), or xds://host:port."
)
@_option("--mcp-tls-ca", type=PATH, help="PEM file of the CA of those servers: connects with TLS.")
@_option("--mcp-tls-cert", type=PATH, help="PEM file of our certificate there, for mutual TLS.")
@_option("--mcp-tls-key", type=PATH, help="PEM file of its key.")
@_option(
    "--mcp-sink-addr",
    type=address,
    help="Let an MCP source, such as a Galley, dial us here: from this machine, or over TLS if configWriters of"
    " mesh.yaml names its identity.  [default: off]",
)
@_option(
    "--serve-config/--no-serve-config",
    default=None,
    help="Serve configuration over MCP and xDS, at the gRPC ports."
    "  [default: to identities of the root namespace and of configReaders, and to this machine]",
)
@_flags(REGISTRY_FLAGS, *(registry.flags for registry in REGISTRIES))
@_option("--grpc-addr", type=address, default="127.0.0.1:15010", help="xDS in plaintext.")
@_option("--secure-grpc-addr", type=address, default="127.0.0.1:15012", help="xDS and CSRs over TLS.")
@_flags(CONNECTION_FLAGS)
@_option("--tls-cert", type=PATH, help="PEM file of the server's certificate.  [default: the CA signs one]")
@_option("--tls-key", type=PATH, help="PEM file of its key.")
@_option("--tls-ca", type=PATH, help="PEM file of a CA of proxies, besides our own.")
@_flags(CA_FLAGS, CA_STORE_FLAGS)
@_flags(TOKEN_FLAGS)
@_option(
    "--trust-bundle-ca", type=PATH, help="PEM file of the CA of servers of trust bundles.  [default: the system's]"
)
@_option(
    "--trust-local/--no-trust-local",
    default=False,
    help="Believe what plaintext clients on this machine say of themselves, and give them PRIVATE KEYS: that of any"
    " workload and gateway that they name.",
)
@_flags(caller_flags.FLAGS, authenticator_flags.FLAGS)
@_flags(VAULT_FLAGS)
@_flags(STATE_FLAGS)
@_flags(ELECTION_FLAGS)
@_flags(STATUS_FLAGS)
@_flags(REGISTRATION_FLAGS)
@_option(
    "--split-virtual-hosts/--whole-route-tables",
    "split_virtual_hosts",
    default=False,
    help="Delta Envoys from 1.40 on get virtual hosts one by one, unless they say otherwise (docs/large-meshes.md).",
)
@_option(
    "--quarantine/--no-quarantine",
    default=True,
    help="Withhold an object that a proxy refuses from proxies of its build (docs/quarantine.md).",
)
@_option("--quarantine-objects", type=click.IntRange(min=0), default=50, help="Most objects withheld from a build.")
@_option(
    "--quarantine-trials", type=click.FloatRange(min=1), default=60.0, help="Trials a minute, for a group of proxies."
)
@_flags(ROLLOUT_FLAGS)
@_flags(GUARD_FLAGS)
@_flags(WASM_FLAGS)
@_flags(BOUND_FLAGS)
@_option("--http-addr", type=address, default="127.0.0.1:8080", help="Web page, /ready, /debug, /metrics.")
@_flags(access_flags.FLAGS)
@_flags(WEBHOOK_FLAGS)
@_option("--monitoring-addr", type=address, default="127.0.0.1:15014", help="/metrics, /ready and /version.")
@_option(
    "--workers",
    type=workers,
    default="1",
    help="Processes that serve proxies at the same ports; auto: one a core (docs/large-meshes.md).",
)
@_option("--domain", default="cluster.local", help="DNS domain of the mesh.")
@_option("--namespace", default="istio-system", help="Root namespace, unless the MeshConfig names one.")
@_option("--shutdown-duration", type=duration, default="10s", help="How long draining may take.")
@_option("--debounce-after", type=duration, default="100ms", help="Publish changes once it is quiet for so long,")
@_option("--debounce-max", type=duration, default="10s", help="but after so long at the latest.")
@_option("--sync-timeout", type=duration, help="Serve without sources that are not in by then.  [default: wait]")
@_option(
    "--log-level",
    cls=ListOption,
    type=levels,
    default="info",
    help="level, or scope:level,... (see docs/operating.md).",
)
@_option(
    "--log-format",
    type=click.Choice([f.value for f in LogFormat]),
    default="text",
    help="text (key=value in a pipe) or json.",
)
@_option(
    "--otel-traces",
    metavar="URL",
    type=otel_endpoint,
    help="OTLP receiver over HTTP, http://host:4318, of traces of changes (docs/metrics.md).",
)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    config_dirs: tuple[Path, ...],
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    mcp_tls_cert: Path | None,
    mcp_tls_key: Path | None,
    mcp_tls_ca: Path | None,
    quarantine: bool,
    quarantine_objects: int,
    quarantine_trials: float,
    shutdown_duration: float,
    log_level: LogLevels,
    log_format: str,
    workers: int,
    otel_traces: str | None,
    **settings: Any,
) -> int:
    """Serve xDS to Envoys from Istio configuration in folders, from Consul, Kubernetes and other servers.

    Runs until SIGTERM or Ctrl-C, then drains. A second one ends it at once. SIGUSR1 logs statistics. SIGHUP has no
    effect: files are read when they change.

    Each flag is also an environment variable, --grpc-addr MESH_PILOT_GRPC_ADDR; a flag wins.
    """
    take_standard_outputs()
    outlive_signals()
    forbid_core_dumps()
    open_more_files()
    from_istio = take_istio_environment(settings, os.environ, *_parameters_of(ctx))
    ca_store = take_ca_store(settings, os.environ)
    needs_kubeconfig = settings["leader_election"] == KUBERNETES
    webhooks = take_webhooks(settings, os.environ)
    election = take_election(settings, os.environ)
    registries = take_registries(settings, os.environ)
    client_bounds = bounds_of(settings)
    grpc_limits = take_connection_limits(settings, client_bounds.max_requests_per_second)
    authority, tls_dns_names = take_ca(settings)
    callers = take_caller_settings(settings)
    join_tokens = take_join_tokens(settings)
    foreign_tokens = take_foreign_tokens(settings, registries, needs_kubeconfig=needs_kubeconfig)
    vault = take_vault(settings)
    access = take_access(settings)
    state = take_state(settings, os.environ)
    guard = take_guard(settings)
    wasm = take_wasm(settings)
    status = take_status(settings)
    registration = take_registration(settings)
    rollout = take_rollout(settings, workers)
    mcp = settings["mcp_servers"] or settings["mcp_sink_addr"]
    if not config_dirs and not registries and not mcp and not settings["mesh_config"]:
        raise click.UsageError(
            "nothing to serve: name a folder of Istio YAML with --config-dir, "
            + "".join(f"{registry.needed}, " for registry in REGISTRIES)
            + "or a server of configuration with --mcp-server"
        )
    from mesh_pilot.app.settings import Settings
    from mesh_pilot.cli.worker import worker_command
    from mesh_pilot.net.rpc.tls import CertificateFiles
    from mesh_pilot.ops.tracing.settings import TraceSettings
    from mesh_pilot.replicas.workers.settings import WorkerSettings
    from mesh_pilot.safety.quarantine.options import QuarantineOptions

    tls = None
    if tls_cert or tls_key or tls_ca:
        if bool(tls_cert) != bool(tls_key):
            raise click.UsageError("a server's certificate needs both of --tls-cert and --tls-key")
        tls = CertificateFiles(certificate=tls_cert, key=tls_key, trusted=tls_ca)
    mcp_tls = None
    if mcp_tls_cert or mcp_tls_key or mcp_tls_ca:
        if not mcp_tls_ca or bool(mcp_tls_cert) != bool(mcp_tls_key):
            raise click.UsageError(
                "TLS to servers of configuration needs --mcp-tls-ca, and for a certificate of ours "
                "both of --mcp-tls-cert and --mcp-tls-key"
            )
        mcp_tls = CertificateFiles(certificate=mcp_tls_cert, key=mcp_tls_key, trusted=mcp_tls_ca)
    style = LogFormat(log_format)
    configure(log_level, style, sys.stderr, worker=1 if workers > 1 else None)
    log_lines(from_istio)
    state = usable(state, os.environ)
    if settings["ca_dir"] is None and ca_store is None and vault is None:
        settings["ca_dir"] = ca_folder(state, is_replica=election is not None)
    from mesh_pilot.cli.serving import run

    return run(
        Settings(
            config_dirs=config_dirs,
            client_bounds=client_bounds,
            grpc_limits=grpc_limits,
            callers=callers,
            access=access,
            join_tokens=join_tokens,
            foreign_tokens=foreign_tokens,
            registries=registries,
            tls=tls,
            tls_dns_names=tls_dns_names,
            authority=authority,
            vault=vault,
            state=state,
            guard=guard,
            wasm=wasm,
            status=status,
            registration=registration,
            ca_store=ca_store,
            election=election,
            mcp_tls=mcp_tls,
            quarantine=QuarantineOptions(max_objects=quarantine_objects, trials_per_minute=quarantine_trials)
            if quarantine
            else None,
            rollout=rollout,
            shutdown_seconds=shutdown_duration,
            workers=WorkerSettings(workers, worker_command(log_level, style)),
            traces=TraceSettings(otel_traces) if otel_traces else None,
            webhooks=webhooks,
            **settings,
        ),
        style,
    )
