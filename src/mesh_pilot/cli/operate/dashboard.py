"""``mesh-pilot dashboard``: the web page of a control plane."""

from __future__ import annotations

import sys

import click

from mesh_pilot.cli.lib.options import SectionedCommand, examples
from mesh_pilot.cli.plane.client import PlaneClient, asks_a_plane


@click.command(
    "dashboard",
    cls=SectionedCommand,
    epilog=examples("mesh-pilot dashboard", "mesh-pilot dashboard --context prod", "mesh-pilot dashboard --print"),
)
@asks_a_plane
@click.option("--print", "only_print", is_flag=True, help="Print the address only.")
def command(*, plane: PlaneClient, only_print: bool) -> None:
    """Open the web page of a control plane in a browser, and print its address.

    Exits with 0, or 1 if the control plane does not answer or has no web page.
    """
    if plane.address.startswith("unix:"):
        raise click.ClickException(f"{plane.address} has no web page; give its --http-addr with --pilot")
    plane.get("/status")
    url = f"{plane.url}/"
    click.echo(url)
    if not only_print and sys.stdout.isatty():
        import webbrowser

        if not webbrowser.open(url):
            click.echo("mesh-pilot: no browser is found here; open the address in one", err=True)
