"""``mesh-pilot request``: any path of a control plane, as ``pilot-discovery request``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from mesh_pilot.cli.lib.options import SectionedCommand
from mesh_pilot.cli.plane.client import PlaneClient, asks_a_plane

METHODS = ("GET", "POST", "PUT", "DELETE")


@click.command("request", cls=SectionedCommand)
@click.argument("method", type=click.Choice(METHODS, case_sensitive=False))
@click.argument("path")
@click.option("--data", "-d", metavar="TEXT|@FILE|-", help="The body: a string, a file, or - for standard input.")
@asks_a_plane
def command(*, method: str, path: str, data: str | None, plane: PlaneClient) -> int:
    """Send a request to a control plane, and print the answer.

    Exits with 0, or with 1 if the status is not one of success or there is no answer.

    \b
    Examples:
      mesh-pilot request GET /debug/syncz
      mesh-pilot request GET '/api/v1/services?namespace=shop'
      mesh-pilot request POST /api/v1/push --pilot unix:///var/lib/mesh-pilot/admin.sock
    """
    if not path.startswith("/"):
        path = f"/{path}"
    status, text = plane.request(method.upper(), path, content=_body(data))
    click.echo(text.rstrip("\n"), err=status >= 400)
    return int(status >= 400)


def _body(data: str | None) -> bytes | None:
    if data is None:
        return None
    if data == "-":
        return sys.stdin.buffer.read()
    if not data.startswith("@"):
        return data.encode("utf-8", "surrogateescape")
    try:
        return Path(data[1:]).read_bytes()
    except OSError as error:
        raise click.ClickException(f"{data[1:]}: {error.strerror}") from None
