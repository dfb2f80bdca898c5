"""``mesh-pilot proxy-config log``: the log levels of a live Envoy."""

from __future__ import annotations

import json
import re

import click

from mesh_pilot.cli.lib.options import ListOption, examples
from mesh_pilot.cli.lib.terminal import plain
from mesh_pilot.cli.plane.envoy_admin import ADMIN, EnvoyAdmin, admin_address

LEVELS = ("trace", "debug", "info", "warning", "error", "critical", "off")
DEFAULT = "warning"


@click.command(
    "log",
    epilog=examples(
        "mesh-pilot proxy-config log",
        "mesh-pilot pc log web-1.shop --level http:debug,router:debug",
        "mesh-pilot pc log --admin /run/envoy/admin.sock --level info",
        "mesh-pilot pc log --reset",
    ),
)
@click.argument("proxy", default="", required=False)
@click.option(
    "--admin",
    metavar="ADDRESS",
    default=ADMIN,
    show_default=True,
    callback=admin_address,
    help="Envoy's admin interface: HOST:PORT, or the path of a Unix socket.",
)
@click.option(
    "--level", cls=ListOption, default="", metavar="[LOGGER:]LEVEL,...", help="Set the level of loggers, or of all."
)
@click.option("--reset", "-r", is_flag=True, help=f"Set all loggers to {DEFAULT}.")
@click.option("--output", "-o", type=click.Choice(["short", "json"]), default="short", help="How to print it.")
def command(*, proxy: str, admin: str, level: str, reset: bool, output: str) -> None:
    """Show or set the log levels of a live Envoy.

    The control plane cannot reach an Envoy's admin interface: run this on the Envoy's machine, or with --admin. With
    PROXY, web-1.shop or web-1, nothing is shown or set unless it is that Envoy.

    LEVEL is trace, debug, info, warning, error, critical or off. The change lasts until the Envoy ends.

    Exits with 0, 1 if the Envoy does not answer or is another than PROXY, 2 for a wrong flag or a logger that it does
    not have.
    """
    if reset and level:
        raise click.UsageError("--level and --reset exclude each other")
    envoy = EnvoyAdmin(admin)
    changes = _changes(DEFAULT if reset else level)
    if proxy:
        _check_name(envoy, proxy)
    levels = _read(envoy.post("/logging"))
    unknown = [name for name, _ in changes if name and name not in levels]
    if unknown:
        raise click.UsageError(f"the Envoy has no logger {', '.join(unknown)}; mesh-pilot pc log lists them")
    for name, wanted in changes:
        levels = _read(envoy.post("/logging", **{name or "level": wanted}))
    if output == "json":
        click.echo(json.dumps(levels, indent=2))
        return
    click.echo("active loggers:")
    for name, each in levels.items():
        click.echo(f"  {plain(name)}: {plain(each)}")


def _check_name(envoy: EnvoyAdmin, proxy: str) -> None:
    """Raises ClickException if it is not the Envoy of this name."""
    try:
        node = str(json.loads(envoy.get("/server_info"))["node"]["id"])
    except (ValueError, KeyError, TypeError):
        raise click.ClickException(f"the answer of {envoy.address} is not that of an Envoy") from None
    name = (node.split("~") + [""] * 3)[2] or node
    if proxy not in (node, name, name.partition(".")[0]):
        is_another = f"the Envoy at {envoy.address} is {plain(name)}, not {plain(proxy)}"
        raise click.ClickException(f"{is_another}: run this on the machine of {plain(proxy)}, or name its --admin")


def _changes(text: str) -> list[tuple[str, str]]:
    """Loggers and their new levels; an empty name stands for all, and comes first."""
    found = []
    for part in filter(None, text.split(",")):
        *names, level = re.split("[:=]", part.strip(), maxsplit=1)
        if level not in LEVELS or names == [""]:
            raise click.BadParameter(f"{part!r} is not [LOGGER:]LEVEL; levels are {', '.join(LEVELS)}")
        found.append(("".join(names), level))
    return sorted(found, key=lambda change: bool(change[0]))


def _read(answer: bytes) -> dict[str, str]:
    """The levels that Envoy lists."""
    lines = (line.strip() for line in answer.decode(errors="replace").splitlines()[1:])
    return dict(line.split(": ", 1) for line in lines if ": " in line)
