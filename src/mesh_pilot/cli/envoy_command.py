"""``mesh-pilot envoy-bootstrap``: the file to start an Envoy with, on a machine that is not Kubernetes."""

from __future__ import annotations

from pathlib import Path

import click

from mesh_pilot.cli.envoy_bootstrap import ClientTls, EnvoyNode, envoy_bootstrap, to_yaml
from mesh_pilot.cli.options import address, label
from mesh_pilot.model.proxy import CLUSTERS, VIRTUAL_HOSTS, Interception, NodeType
from mesh_pilot.model.service import Locality
from mesh_pilot.rpc.errors import AddressError

FILE = click.Path(path_type=Path)


@click.command("envoy-bootstrap", context_settings={"show_default": True})
@click.option("--id", "name", required=True, help="Name of this workload, such as web-1.")
@click.option("--namespace", default="default", help="Its namespace.")
@click.option("--ip", required=True, help="The IP address under which services list this workload.")
@click.option(
    "--type",
    "kind",
    type=click.Choice([t.value for t in NodeType]),
    default="sidecar",
    help="sidecar: beside a workload; router: a gateway.",
)
@click.option("--label", "labels", type=label, multiple=True, help="A label that Gateways and Sidecars select by.")
@click.option(
    "--interception",
    type=click.Choice([i.value for i in Interception]),
    default="REDIRECT",
    help="How traffic reaches a sidecar: iptables REDIRECT or TPROXY, or NONE where applications call it.",
)
@click.option("--locality", default="", help="Where it runs, as region/zone/subzone.")
@click.option("--domain", default="cluster.local", help="DNS domain of the mesh.")
@click.option("--metadata", type=label, multiple=True, help="More node metadata, such as CLUSTER_ID=vms.")
@click.option("--pilot", type=address, default="127.0.0.1:15010", help="Where mesh-pilot serves xDS.")
@click.option("--delta/--sotw", default=False, help="Incremental xDS, or State of the World.")
@click.option(
    "--virtual-hosts",
    type=click.Choice(["whole", "split"]),
    help="With --delta: route tables whole, or a virtual host at a time; else as the control plane does by default.",
)
@click.option(
    "--clusters",
    type=click.Choice(["all", "on-demand"]),
    help="With --delta, for sidecars: clusters of HTTP services all at once, or each when a request first needs it.",
)
@click.option("--admin", type=address, default="127.0.0.1:15000", help="Where Envoy's admin interface listens.")
@click.option(
    "--tls-ca", type=FILE, help="PEM file of the CA that signed the control plane's certificate: use mutual TLS."
)
@click.option("--tls-cert", type=FILE, help="PEM file of this proxy's certificate.")
@click.option("--tls-key", type=FILE, help="PEM file of its key.")
@click.option("--tls-server-name", default="", help="DNS name that the control plane's certificate must have.")
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
    pilot: str,
    delta: bool,
    virtual_hosts: str | None,
    clusters: str | None,
    admin: str,
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_server_name: str,
) -> None:
    """Print an Envoy bootstrap as YAML: save it, then run envoy -c FILE."""
    tls = None
    if tls_ca or tls_cert or tls_key:
        if not (tls_ca and tls_cert and tls_key):
            raise click.UsageError("mutual TLS needs all of --tls-ca, --tls-cert and --tls-key")
        tls = ClientTls(tls_ca, tls_cert, tls_key, tls_server_name)
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
        bootstrap = envoy_bootstrap(node, pilot, delta=delta, admin=admin, tls=tls)
    except AddressError as error:
        raise click.UsageError(str(error)) from None
    click.echo(to_yaml(bootstrap), nl=False)
