"""``mesh-pilot remote-clusters``: the Kubernetes clusters whose services a control plane reads."""

from __future__ import annotations

import click

from mesh_pilot.cli.lib.options import SectionedCommand, examples, output_option
from mesh_pilot.cli.lib.terminal import plain, print_value, table
from mesh_pilot.cli.plane.client import PlaneClient, asks_a_plane


@click.command(
    "remote-clusters",
    cls=SectionedCommand,
    epilog=examples("mesh-pilot remote-clusters", "mesh-pilot remote-clusters --pilot 10.0.0.1:8080 -o json"),
)
@output_option
@asks_a_plane
def command(*, plane: PlaneClient, output: str) -> int:
    """List the Kubernetes clusters whose services a control plane reads, as istioctl does.

    A cluster is synced, syncing, in timeout (its first picture has not come in time), or closed (its kubeconfig cannot
    be used). What is wrong with one is below the table.

    Exits with 0; with 1 if a cluster is not synced, or the control plane does not answer; with 2 for a wrong flag.
    """
    found = plane.get("/clusters")
    if output != "text":
        print_value(found, output)
    elif not found:
        click.echo("no clusters are read")
    else:
        rows = [("NAME", "STATUS", "OBJECTS", "KUBECONFIG", "SERVER")]
        rows += [
            (plain(each["id"]), each["status"], str(each["items"]), plain(each["origin"]) or "-", plain(each["server"]))
            for each in found
        ]
        for line in table(rows):
            click.echo(line)
        for each in found:
            if each["trouble"]:
                click.echo(f"{plain(each['id'])}: {plain(each['trouble'])}")
    return 0 if all(each["status"] == "synced" for each in found) else 1
