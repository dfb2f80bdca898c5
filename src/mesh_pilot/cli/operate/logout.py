"""``mesh-pilot logout``: the end of a login at a control plane."""

from __future__ import annotations

import click

from mesh_pilot.cli.lib.options import SectionedCommand, examples
from mesh_pilot.cli.plane.client import PlaneClient, asks_a_plane
from mesh_pilot.cli.plane.logins import keep, login_at


@click.command("logout", cls=SectionedCommand, epilog=examples("mesh-pilot logout", "mesh-pilot logout --context prod"))
@asks_a_plane
def command(*, plane: PlaneClient) -> int:
    """End your login at a control plane: forget it here, and have the issuer revoke its refresh token.

    Exits with 0, also without a login.
    """
    import trio

    login = login_at(plane.url)
    if login is None:
        click.echo(f"you are not logged in at {plane.address}")
        return 0
    keep(plane.url, None)
    is_revoked = not login.refresh_token or trio.run(login.provider().revoke, login.refresh_token)
    click.echo(f"logged out at {plane.address}")
    if not is_revoked:
        click.echo(f"{login.issuer} has not revoked the refresh token, which is forgotten here", err=True)
    return 0
