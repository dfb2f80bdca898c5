"""``mesh-pilot envoy-bootstrap``: the bootstrap file of an Envoy outside Kubernetes."""

from __future__ import annotations

import os
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mesh_pilot.cli.lib.options import SectionedCommand, SettingOption, address, ip_address, label, one_line, pilot
from mesh_pilot.cli.proxy.flags import yaml as yaml_object
from mesh_pilot.model.proxy import CLUSTERS, VIRTUAL_HOSTS, Interception, NodeType
from mesh_pilot.model.service import Locality

if TYPE_CHECKING:
    from mesh_pilot.agent.bootstrap.envoy_bootstrap import ClientTls, EnvoyNode

FILE = click.Path(path_type=Path)
PORT = click.IntRange(0, 65535)


_who, _control_planes, _envoy = (
    partial(click.option, cls=SettingOption, section=section)
    for section in ("Who it is", "Control planes", "Envoy and its ports")
)
"""The flags of each section of the help."""


@click.command("envoy-bootstrap", cls=SectionedCommand, context_settings={"show_default": True})
@_who("--id", "name", required=True, help="Name of this workload, such as web-1.")
@_who("--namespace", default="default", help="Namespace of this workload.")
@_who("--ip", type=ip_address, required=True, help="The IP address under which services list this workload.")
@_who(
    "--type",
    "kind",
    type=click.Choice([t.value for t in NodeType]),
    default="sidecar",
    help="sidecar: the proxy of a workload; router: a gateway.",
)
@_who("--label", "labels", type=label, multiple=True, help="A label for the selectors of Gateways and Sidecars.")
@_who(
    "--interception",
    type=click.Choice([i.value for i in Interception]),
    default="REDIRECT",
    help="How traffic reaches a sidecar: iptables REDIRECT or TPROXY, or NONE if applications connect to it.",
)
@_who("--locality", default="", help="Locality: region/zone/subzone; the nearest --pilot is used.")
@_who("--domain", default="cluster.local", help="DNS domain of the mesh.")
@_who("--metadata", type=label, multiple=True, help="More node metadata, such as CLUSTER_ID=vms.")
@_control_planes(
    "--pilot",
    "pilots",
    type=pilot,
    multiple=True,
    default=("127.0.0.1:15010",),
    help="Address of mesh-pilot's xDS port, or ADDRESS@REGION/ZONE; may be repeated for replicas: see --locality.",
)
@_control_planes("--delta/--sotw", default=False, help="Incremental xDS, or State of the World.")
@_control_planes(
    "--virtual-hosts",
    type=click.Choice(["whole", "split"]),
    help="With --delta: complete route tables, or separate virtual hosts; by default as the control plane is set.",
)
@_control_planes(
    "--clusters",
    type=click.Choice(["all", "on-demand"]),
    help="With --delta, for sidecars: all clusters of HTTP services at once, or each when a request first needs it.",
)
@_control_planes(
    "--tls-ca", type=FILE, help="PEM file of the CA that signed the control plane's certificate: use mutual TLS."
)
@_control_planes("--tls-cert", type=FILE, help="PEM file of this proxy's certificate.")
@_control_planes("--tls-key", type=FILE, help="PEM file of its key.")
@_control_planes("--tls-server-name", default="", help="DNS name that the control plane's certificate must have.")
@_control_planes(
    "--sds-dir",
    type=FILE,
    help="With --tls-*: folder for the two files through which Envoy reads renewed certificates.  [default: here]",
)
@_envoy("--admin", type=address, default="127.0.0.1:15000", help="Address of Envoy's admin interface.")
@_envoy(
    "--proxy-config",
    type=yaml_object,
    help="Istio's ProxyConfig, YAML: its statistics, tracer, sinks, runtime; {} for Istio's statistics alone.",
)
@_envoy("--annotation", "annotations", type=label, multiple=True, help="An annotation about statistics, as of a pod.")
@_envoy("--readiness-port", type=PORT, default=0, help="Port for /healthz/ready, such as 15021.  0: none.")
@_envoy("--prometheus-port", type=PORT, default=0, help="Port for /stats/prometheus, such as 15090.  0: none.")
@_envoy("--custom-bootstrap", type=FILE, help="File, YAML or JSON, merged over the bootstrap.")
def command(
    *,
    name: str,
    namespace: str,
    ip: str,
    kind: str,
    labels: tuple[tuple[str, str], ...],
    interception: str,
    locality: str,
    domain: str,
    metadata: tuple[tuple[str, str], ...],
    pilots: tuple[str, ...],
    delta: bool,
    virtual_hosts: str | None,
    clusters: str | None,
    admin: str,
    proxy_config: dict[str, Any] | None,
    annotations: tuple[tuple[str, str], ...],
    readiness_port: int,
    prometheus_port: int,
    custom_bootstrap: Path | None,
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_server_name: str,
    sds_dir: Path | None,
) -> None:
    """Print an Envoy bootstrap as YAML: save it, then start Envoy with the command shown on standard error.

    With --tls-*, also writes the files control-plane-certificate.yaml and control-plane-ca.yaml, to which the bootstrap
    refers. Paths become absolute: run the command on the machine of the Envoy, or give the paths as they are there.
    """
    from mesh_pilot.agent.bootstrap.envoy_bootstrap import ClientTls, EnvoyNode, envoy_bootstrap, to_yaml
    from mesh_pilot.agent.bootstrap.standalone import with_listeners
    from mesh_pilot.agent.bootstrap.static_resources import with_local_cluster
    from mesh_pilot.agent.bootstrap.system_roots import SYSTEM_ROOTS, system_roots
    from mesh_pilot.net.rpc.errors import AddressError

    # Refused here is what Envoy would accept and then not do: it ignores an SDS folder without TLS, and the control
    # plane ignores the wish for split virtual hosts or clusters on demand on a stream that is not Delta.
    tls = None
    if tls_ca or tls_cert or tls_key:
        if not (tls_ca and tls_cert and tls_key):
            raise click.UsageError("mutual TLS needs all of --tls-ca, --tls-cert and --tls-key")
        tls = ClientTls(
            tls_ca.absolute(),
            tls_cert.absolute(),
            tls_key.absolute(),
            server_name=tls_server_name,
            sds=(sds_dir or Path()).absolute(),
        )
    elif sds_dir:
        raise click.UsageError("--sds-dir is for certificates: give --tls-ca, --tls-cert and --tls-key too")
    if virtual_hosts == "split" and not delta:
        raise click.UsageError("--virtual-hosts split needs --delta: State of the World has whole route tables only")
    if clusters == "on-demand" and not (delta and kind == NodeType.SIDECAR):
        raise click.UsageError("--clusters on-demand is for sidecars, and needs --delta")
    chosen = {key: value for key, value in ((VIRTUAL_HOSTS, virtual_hosts), (CLUSTERS, clusters)) if value}
    roots = system_roots(os.environ)
    node = EnvoyNode(
        name=name,
        namespace=namespace,
        ip=ip,
        type=NodeType(kind),
        domain=domain,
        labels=dict(labels),
        interception=Interception(interception),
        locality=Locality.parse(locality),
        metadata={**({SYSTEM_ROOTS: roots} if roots else {}), **dict(metadata), **chosen},
    )
    with one_line(AddressError, as_=click.UsageError):
        bootstrap = envoy_bootstrap(node, *pilots, delta=delta, admin=admin, tls=tls)
    # The order is that of precedence: listeners of ours are made from what a ProxyConfig says, and the custom part is
    # merged over everything. An empty ProxyConfig is not none: it turns on Istio's statistics.
    config: dict[str, Any] | None = None
    if proxy_config is not None or annotations:
        config = _read(proxy_config or {}, dict(annotations))
        bootstrap = _with_proxy_config(bootstrap, node, config, dict(annotations))
    bootstrap = with_listeners(bootstrap, node, config or {}, readiness=readiness_port, prometheus=prometheus_port)
    bootstrap = with_local_cluster(bootstrap)
    if custom_bootstrap is not None:
        bootstrap = _customized(bootstrap, custom_bootstrap)
    start = shlex.join(["envoy", "-c", "FILE", *_flags(config or {})])
    if tls is not None:
        _write(tls)
    click.echo(f"start it so, FILE being where you save it: {start}", err=True)
    click.echo(f"# {start}\n{to_yaml(bootstrap)}", nl=False)


def _read(given: dict[str, Any], annotations: dict[str, str]) -> dict[str, Any]:
    """The ProxyConfig of the flag, over that of the annotation. What has no effect is said on standard error."""
    from mesh_pilot.agent.bootstrap.proxy_config import overlay
    from mesh_pilot.agent.bootstrap.standalone import without_effect
    from mesh_pilot.agent.bootstrap.statistics_config import annotation_problems
    from mesh_pilot.cli.proxy.defaults import proxy_config_of
    from mesh_pilot.cli.proxy.istio_names import Remark
    from mesh_pilot.cli.proxy.values import read_object

    remarks: list[Remark] = []
    config = proxy_config_of("--proxy-config", given, remarks)
    name = "proxy.istio.io/config"
    if text := annotations.get(name):
        try:
            annotated = read_object(text)
        except click.BadParameter as error:
            raise click.UsageError(f"--annotation {name}: {error.message}") from None
        config = overlay(proxy_config_of(f"--annotation {name}", annotated, remarks), config)
    for remark in remarks:
        click.echo(f"{remark.event}: {', '.join(f'{key} {value}' for key, value in remark.fields.items())}", err=True)
    for path, reason in [*without_effect(config).items(), *annotation_problems(annotations)]:
        click.echo(f"{path} has no effect: {reason}", err=True)
    return config


def _with_proxy_config(
    bootstrap: dict[str, Any], node: EnvoyNode, config: dict[str, Any], annotations: dict[str, str]
) -> dict[str, Any]:
    from mesh_pilot.agent.bootstrap.remote_services import RemoteServiceError
    from mesh_pilot.agent.bootstrap.standalone import with_proxy_config

    try:
        return with_proxy_config(bootstrap, node, config, annotations)
    except RemoteServiceError as error:
        raise click.UsageError(f"--proxy-config: {error}") from None


def _customized(bootstrap: dict[str, Any], path: Path) -> dict[str, Any]:
    from mesh_pilot.agent.bootstrap.custom import CustomBootstrapError, customized

    with one_line(CustomBootstrapError):
        return customized(bootstrap, path)


def _flags(config: dict[str, Any]) -> list[str]:
    """The flags of Envoy, with what a ProxyConfig says of them."""
    from mesh_pilot.agent.bootstrap.configured import flush_flags, seconds
    from mesh_pilot.agent.bootstrap.envoy_bootstrap import DRAIN_FLAGS

    name, default, *rest = DRAIN_FLAGS
    flags = [name, str(round(seconds(config, "drainDuration", float(default)))), *rest, *flush_flags(config)]
    return [*flags, "--concurrency", str(config["concurrency"])] if config.get("concurrency") else flags


def _write(tls: ClientTls) -> None:
    for path, text in tls.sds_files().items():
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise click.ClickException(f"cannot write {path}: {error.strerror}; see --sds-dir") from None
        click.echo(f"wrote {path}", err=True)
