"""``mesh-pilot login``: a person's login at a control plane, confirmed in any browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import click

from mesh_pilot.cli.lib.options import SectionedCommand, examples
from mesh_pilot.cli.lib.terminal import plain
from mesh_pilot.cli.operate.whoami import roles_text
from mesh_pilot.cli.plane.client import PlaneClient, asks_a_plane
from mesh_pilot.cli.plane.logins import Login, keep

if TYPE_CHECKING:
    from mesh_pilot.identity.openid.provider import DeviceCode


@click.command(
    "login",
    cls=SectionedCommand,
    epilog=examples("mesh-pilot login", "mesh-pilot login --context prod", "mesh-pilot login --pilot pilot.test:8080"),
)
@asks_a_plane
def command(*, plane: PlaneClient) -> int:
    """Log in at a control plane as yourself: at its issuer, with a code that you confirm in a browser.

    The login is kept in ~/.config/mesh-pilot/logins.json, for you alone, and renewed by the commands that use it.
    --token-file, MESH_PILOT_TOKEN and the admin socket go before it.

    Exits with 0; with 1 if the login fails.
    """
    import trio

    from mesh_pilot.identity.openid.device import log_in
    from mesh_pilot.identity.openid.provider import ProviderError

    if plane.address.startswith("unix:"):
        raise click.ClickException("the admin socket asks for no login")
    plane = attrs.evolve(plane, has_login=False, token="", token_file=None)
    known = plane.get("/login")
    login = Login(
        issuer=known["issuer"], client_id=known["client_id"], scopes=tuple(known["scopes"]), id_token="", until=0.0
    )
    try:
        tokens = trio.run(log_in, login.provider(), _show)
    except ProviderError as error:
        raise click.ClickException(str(error)) from None
    keep(plane.url, login.again(tokens))
    who = attrs.evolve(plane, has_login=True).get("/whoami")
    click.echo(f"logged in at {plane.address} as {plain(who['name'])}: {roles_text(who['roles'])}")
    return 0


def _show(code: DeviceCode) -> None:
    """Say what to do, where output does not get in the way of a pipe."""
    if code.full_url:
        click.echo(f"Open {plain(code.full_url)} in a browser, and compare the code: {plain(code.user_code)}", err=True)
    else:
        click.echo(f"Open {plain(code.url)} in a browser, and type the code {plain(code.user_code)}", err=True)
