"""``mesh-pilot envoy-bootstrap``: the bootstrap file of an Envoy outside Kubernetes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mesh_pilot.cli.options import address, ip_address, label, pilot
from mesh_pilot.model.proxy import CLUSTERS, VIRTUAL_HOSTS, Interception, NodeType
from mesh_pilot.model.service import Locality

if TYPE_CHECKING:
    from mesh_pilot.agent.bootstrap.envoy_bootstrap import ClientTls

FILE = click.Path(path_type=Path)


@click.command("envoy-bootstrap", context_settings={"show_default": True})
@click.option("--id", "name", required=True, help="Name of this workload, such as web-1.")
@click.option("--namespace", default="default", help="Its namespace.")
@click.option("--ip", type=ip_address, required=True, help="The IP address under which services list this workload.")
@click.option(
    "--type",
    "kind",
    type=click.Choice([t.value for t in NodeType]),
    default="sidecar",
    help="sidecar: the proxy of a workload; router: a gateway.",
)
@click.option(
    "--label", "labels", type=label, multiple=True, help="A label for the selectors of Gateways and Sidecars."
)
@click.option(
    "--interception",
    type=click.Choice([i.value for i in Interception]),
    default="REDIRECT",
    help="How traffic reaches a sidecar: iptables REDIRECT or TPROXY, or NONE if applications connect to it.",
)
@click.option("--locality", default="", help="Its locality: region/zone/subzone; the nearest --pilot is used.")
@click.option("--domain", default="cluster.local", help="DNS domain of the mesh.")
@click.option("--metadata", type=label, multiple=True, help="More node metadata, such as CLUSTER_ID=vms.")
@click.option(
    "--pilot",
    "pilots",
    type=pilot,
    multiple=True,
    default=("127.0.0.1:15010",),
    help="Address of mesh-pilot's xDS port, or ADDRESS@REGION/ZONE; may be repeated for replicas: see --locality.",
)
@click.option("--delta/--sotw", default=False, help="Incremental xDS, or State of the World.")
@click.option(
    "--virtual-hosts",
    type=click.Choice(["whole", "split"]),
    help="With --delta: complete route tables, or separate virtual hosts; by default as the control plane is set.",
)
@click.option(
    "--clusters",
    type=click.Choice(["all", "on-demand"]),
    help="With --delta, for sidecars: all clusters of HTTP services at once, or each when a request first needs it.",
)
@click.option("--admin", type=address, default="127.0.0.1:15000", help="Address of Envoy's admin interface.")
@click.option(
    "--tls-ca", type=FILE, help="PEM file of the CA that signed the control plane's certificate: use mutual TLS."
)
@click.option("--tls-cert", type=FILE, help="PEM file of this proxy's certificate.")
@click.option("--tls-key", type=FILE, help="PEM file of its key.")
@click.option("--tls-server-name", default="", help="DNS name that the control plane's certificate must have.")
@click.option(
    "--sds-dir",
    type=FILE,
    help="With --tls-*: folder for the two files through which Envoy reads renewed certificates.  [default: here]",
)
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
    from mesh_pilot.agent.bootstrap.envoy_bootstrap import DRAIN_FLAGS, ClientTls, EnvoyNode, envoy_bootstrap, to_yaml
    from mesh_pilot.rpc.errors import AddressError

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
    node = EnvoyNode(
        name=name,
        namespace=namespace,
        ip=ip,
        type=NodeType(kind),
        domain=domain,
        labels=dict(labels),
        interception=Interception(interception),
        locality=Locality.parse(locality),
        metadata={**dict(metadata), **chosen},
    )
    try:
        bootstrap = envoy_bootstrap(node, *pilots, delta=delta, admin=admin, tls=tls)
    except AddressError as error:
        raise click.UsageError(str(error)) from None
    start = shlex.join(["envoy", "-c", "FILE", *DRAIN_FLAGS])
    if tls is not None:
        _write(tls)
    click.echo(f"start it so, FILE being where you save it: {start}", err=True)
    click.echo(f"# {start}\n{to_yaml(bootstrap)}", nl=False)


def _write(tls: ClientTls) -> None:
    for path, text in tls.sds_files().items():
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise click.ClickException(f"cannot write {path}: {error.strerror}; see --sds-dir") from None
        click.echo(f"wrote {path}", err=True)
