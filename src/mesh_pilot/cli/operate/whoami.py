"""``mesh-pilot whoami``: who a control plane takes the user for, and what that one may do."""

from __future__ import annotations

from collections.abc import Mapping

import click

from mesh_pilot.cli.lib.options import SectionedCommand, examples, output_option
from mesh_pilot.cli.lib.terminal import plain, print_value
from mesh_pilot.cli.plane.client import PlaneClient, asks_a_plane


@click.command("whoami", cls=SectionedCommand, epilog=examples("mesh-pilot whoami", "mesh-pilot whoami -o json"))
@output_option
@asks_a_plane
def command(*, plane: PlaneClient, output: str) -> int:
    """Say who you are at a control plane: the name, the groups, and the role in each namespace.

    Exits with 0; with 1 if you have no role there.
    """
    found = plane.get("/whoami")
    if output != "text":
        print_value(found, output)
        return 0
    subject = f", subject {plain(found['subject'])}" if found["subject"] else ""
    click.echo(f"{plain(found['name'])} (by {found['how']}{subject})")
    if found["subject"]:
        click.echo(f"groups: {plain(', '.join(found['groups'])) or 'none'}")
    click.echo(f"roles:  {roles_text(found['roles'])}")
    return 0


def roles_text(roles: Mapping[str, str]) -> str:
    """Roles for people: ``view in all namespaces, edit in shop``."""
    return ", ".join(
        f"{role} in {'all namespaces' if namespace == '*' else plain(namespace)}"
        for namespace, role in sorted(roles.items())
    )
