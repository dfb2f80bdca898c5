"""``mesh-pilot discovery``: the control plane itself.

Design note. Every flag is a field of a class of settings (``model.flags``); `CLASSES` has them all, and the command is
made of it: options, help, variables, keys of the file. What is written here is only what one class cannot know of
another: a store of the CA needs the agent of the registry, a CA elsewhere and a folder exclude each other.
Alternatives that lose: a decorator a flag and a parameter each (155 of them, in six places a flag); one class with all
fields, which every room would import; settings from environment variables alone, as istiod's, which nothing checks or
lists.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click
from click.core import ParameterSource

from mesh_pilot.app.settings import Settings
from mesh_pilot.base.output import take_standard_outputs
from mesh_pilot.cli.discovery.connection_flags import (
    AccessFlags,
    ConnectionFlags,
    ForeignTokenFlags,
    McpTlsFlags,
    TlsFlags,
    WebhookFlags,
)
from mesh_pilot.cli.discovery.flags import (
    CLASSES,
    FILE,
    FLAG,
    KUBERNETES,
    NOBODY,
    VARIABLE,
    ElectionFlags,
    ProcessFlags,
    RolloutFlags,
    StateFlags,
)
from mesh_pilot.cli.discovery.istio_environment import Line, flag_hint, log_lines, take_istio_environment
from mesh_pilot.cli.discovery.otel_flags import OtelFlags
from mesh_pilot.cli.discovery.registries import REGISTRIES, RegistryOrder, registries_of
from mesh_pilot.cli.discovery.registries.consul import ConsulFlags
from mesh_pilot.cli.discovery.registries.kubernetes import KubernetesFlags
from mesh_pilot.cli.lib.consul_agent import CaStoreFlags
from mesh_pilot.cli.lib.options import WRITTEN, SectionedCommand, one_line
from mesh_pilot.cli.lib.process import forbid_core_dumps, long_lived, open_more_files, outlive_signals
from mesh_pilot.cli.lib.setting_options import option_of
from mesh_pilot.cli.lib.state_folder import ca_folder, usable
from mesh_pilot.model.flags import built, flags_of

if TYPE_CHECKING:
    from mesh_pilot.consul.identity.ca_store import ConsulStoreSettings
    from mesh_pilot.kubernetes.apiserver import Access
    from mesh_pilot.kubernetes.webhooks.settings import WebhookSettings

_RANKS = {
    ParameterSource.COMMANDLINE: FLAG,
    ParameterSource.ENVIRONMENT: VARIABLE,
    ParameterSource.DEFAULT_MAP: FILE,
}


_NOT_IN_FILE = ("config-file", "print-config", "help", "help-all")


def _take_file(ctx: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Load libraries as they are needed here, and put what the file says below flags and variables, before these are
    read."""
    if ctx.resilient_parsing:
        return path
    from mesh_pilot.cli.lib.libraries import leave_out_httpx_command, load_betterproto2, load_structlog

    load_structlog()  # before what imports it, as the types of flags do
    load_betterproto2()
    leave_out_httpx_command()
    if path is not None:
        from mesh_pilot.cli.lib.settings_file import default_map

        ctx.default_map = default_map(ctx, path, _NOT_IN_FILE)
    return path


def _printed(ctx: click.Context, ranks: Mapping[str, int], from_istio: Iterable[Line]) -> str:
    """The settings file that the flags, the variables, Istio's too, and the file mean."""
    from mesh_pilot.cli.lib.settings_file import written_file

    of_istio = _honoured(from_istio)
    ctx.meta[WRITTEN] |= of_istio
    given = {name for name, rank in ranks.items() if rank != NOBODY} | of_istio.keys()
    settings = [setting for each in CLASSES for setting in flags_of(each)]
    secrets = {setting.key: setting.secret for setting in settings if setting.secret}
    return written_file(ctx, given - {"config_file", "print_config"}, secrets)


def _honoured(lines: Iterable[Line]) -> Mapping[str, object]:
    """The values of variables of Istio, by the names of parameters."""
    return {
        str(line.fields["flag"]).removeprefix("--").replace("-", "_"): line.fields["value"]
        for line in lines
        if line.is_honoured
    }


@click.pass_context
def _run(ctx: click.Context, /, **values: Any) -> int:
    """Serve xDS to Envoys from Istio configuration in folders, from Consul, Kubernetes and other servers.

    Runs until SIGTERM or Ctrl-C, then drains. A second one ends it at once. SIGUSR1 logs statistics. SIGHUP has no
    effect: files are read when they change.

    Each flag is also an environment variable, --grpc-addr MESH_PILOT_GRPC_ADDR, and a key of the file, grpc-addr. A
    flag wins over a variable, and that over the file.
    """
    from mesh_pilot.cli.lib.logs import LogFormat, configure

    parameters = {param.name: param for param in ctx.command.params}
    ranks = {str(name): _RANKS.get(ctx.get_parameter_source(str(name)), NOBODY) for name in parameters}  # type: ignore[arg-type]
    from_istio = take_istio_environment(
        values,
        os.environ,
        lambda name: ranks[name] < VARIABLE,
        lambda name, text: parameters[name].type_cast_value(ctx, text),
    )
    if values["print_config"]:
        click.echo(_printed(ctx, ranks, from_istio), nl=False)
        return 0
    take_standard_outputs()
    outlive_signals()
    forbid_core_dumps()
    open_more_files()
    settings = settings_of(values, ranks, os.environ)
    process = built(ProcessFlags, values)
    style = LogFormat(process.log_format)
    configure(process.log_level, style, sys.stderr, worker=1 if process.workers > 1 else None)
    log_lines(from_istio)
    state = usable(settings.state, os.environ)
    if settings.ca_dir is None and settings.ca_store is None and settings.ca_signer is None:
        settings = attrs.evolve(settings, ca_dir=ca_folder(state, is_replica=settings.election is not None))
    with long_lived():
        from mesh_pilot.cli.discovery.serving import run
        from mesh_pilot.cli.discovery.worker import worker_command
        from mesh_pilot.replicas.workers.settings import WorkerSettings

        workers = WorkerSettings(process.workers, worker_command(process.log_level, style))
        file = None
        if values["config_file"] is not None:
            from mesh_pilot.cli.discovery.reloading import FollowedFile

            above = {name for name, rank in ranks.items() if rank >= VARIABLE} | _honoured(from_istio).keys()
            file = FollowedFile(ctx, values["config_file"], _NOT_IN_FILE, values, above)
        return run(attrs.evolve(settings, state=state, workers=workers), style, file)


_INSTEAD_OF_VAULT_FLAGS = "{what} is now a field of a file: --ca-signer FILE with kind: vault (docs/signers.md)"
"""Without a word, a variable from before would let this make its own CA."""


def _hint(name: str) -> str:
    return _INSTEAD_OF_VAULT_FLAGS.format(what=name) if name.startswith("--vault-") else flag_hint(name)


_options = [option_of(setting) for settings in CLASSES for setting in flags_of(settings)]
for _option in _options:
    if _option.name == "config_file":
        _option.is_eager, _option.callback = True, _take_file

command = SectionedCommand(
    "discovery",
    callback=_run,
    help=_run.__doc__,
    params=[*_options],
    hint=_hint,
    context_settings={"show_default": True},
)


def settings_of(values: Mapping[str, Any], ranks: Mapping[str, int], environment: Mapping[str, str]) -> Settings:
    """The settings that values of flags, by the names of parameters, come to. Raises UsageError.

    ``ranks``: where each value comes from, see ``discovery_flags``.
    """
    consul, process = built(ConsulFlags, values), built(ProcessFlags, values)
    foreign, election = built(ForeignTokenFlags, values), built(ElectionFlags, values)
    settings = built(Settings, values)
    if old := sorted(name for name in environment if name.startswith("MESH_PILOT_VAULT_")):
        raise click.UsageError(_INSTEAD_OF_VAULT_FLAGS.format(what=old[0]))
    life, longest = settings.authority.workload_cert_ttl, settings.authority.max_workload_cert_ttl
    if not 0 < life.total_seconds() <= longest.total_seconds():
        raise click.UsageError("--workload-cert-ttl must be over 0 and at most --max-workload-cert-ttl")
    ca_store = _ca_store(values, settings, consul, environment)
    registries = registries_of(values, settings, environment)
    if not (settings.config_dirs or registries or settings.mcp_servers or settings.mcp_sink_addr) and (
        not settings.mesh_config
    ):
        raise click.UsageError(
            "nothing to serve: name a folder of Istio YAML with --config-dir, "
            + "".join(f"{registry.needed}, " for registry in REGISTRIES)
            + "or a server of configuration with --mcp-server"
        )
    traces, metrics = built(OtelFlags, values).settings(settings.revision)
    return attrs.evolve(
        settings,
        registries=registries,
        ca_store=ca_store,
        webhooks=webhooks_of(values, settings, environment),
        election=election.settings(consul, foreign.kubeconfig, settings.namespace, environment),
        foreign_tokens=foreign.settings(registries, needs_kubeconfig=election.kind == KUBERNETES),
        grpc_limits=built(ConnectionFlags, values).limits(settings.client_bounds.max_requests_per_second),
        access=built(AccessFlags, values).settings(),
        tls=built(TlsFlags, values).files(),
        mcp_tls=built(McpTlsFlags, values).files(),
        state=built(StateFlags, values).settings(environment, ranks),
        rollout=built(RolloutFlags, values).plan(process.workers),
        traces=traces,
        metrics_push=metrics,
    )


def _ca_store(
    values: Mapping[str, Any], settings: Settings, consul: ConsulFlags, environment: Mapping[str, str]
) -> ConsulStoreSettings | None:
    store = built(CaStoreFlags, values)
    if not store.ca_consul_key:
        return None
    if settings.ca_dir is not None:
        raise click.UsageError("--ca-dir and --ca-consul-key exclude each other: the CA is in one place")
    if settings.ca_signer is not None:
        raise click.UsageError("--ca-signer and --ca-consul-key exclude each other: one of them signs")
    return store.settings(*consul.first(environment, "--ca-consul-key"))


def webhooks_of(values: Mapping[str, Any], mesh: Settings, environment: Mapping[str, str]) -> WebhookSettings | None:
    """The settings of webhooks; None without ``--https-addr``. Raises UsageError."""
    webhooks, kubernetes = built(WebhookFlags, values), built(KubernetesFlags, values)
    if not webhooks.is_on():
        return None
    named = built(RegistryOrder, values).registries
    is_read = KubernetesFlags in {registry.flags for registry in REGISTRIES if registry.title in named}
    access = _access(kubernetes, built(ForeignTokenFlags, values).kubeconfig, is_read=is_read)
    return webhooks.settings(mesh, kubernetes.cluster_id, access, environment)


def _access(kubernetes: KubernetesFlags, other_kubeconfig: Path | None, *, is_read: bool) -> Access | None:
    """The API server whose webhook configurations are ours: the one whose objects are read, else that of the cluster in
    which this runs."""
    from mesh_pilot.kubernetes.apiserver import KubernetesError, load_access

    path = kubernetes.kubeconfig or other_kubeconfig
    if path is None and not is_read and not os.environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    flag = "--kubernetes-kubeconfig" if path and not kubernetes.kubeconfig else "--kubeconfig"
    with one_line(KubernetesError, as_=click.UsageError):
        return load_access(path, kubernetes.context if kubernetes.kubeconfig or is_read else "", flag=flag)
