"""``mesh-pilot proxy-config log``: the log levels of a live Envoy."""

from __future__ import annotations

import json
import re

import click

from mesh_pilot.cli.envoy_admin import ADMIN, EnvoyAdmin, admin_address
from mesh_pilot.cli.options import examples
from mesh_pilot.cli.terminal import plain

LEVELS = ("trace", "debug", "info", "warning", "error", "critical", "off")
DEFAULT = "warning"


@click.command(
    "log",
    epilog=examples(
        "mesh-pilot proxy-config log",
        "mesh-pilot pc log --level http:debug,router:debug",
        "mesh-pilot pc log --admin /run/envoy/admin.sock --level info",
        "mesh-pilot pc log --reset",
    ),
)
@click.option(
    "--admin",
    metavar="ADDRESS",
    default=ADMIN,
    show_default=True,
    callback=admin_address,
    help="Envoy's admin interface: HOST:PORT, or the path of a Unix socket.",
)
@click.option("--level", default="", metavar="[LOGGER:]LEVEL,...", help="Set the level of loggers, or of all.")
@click.option("--reset", "-r", is_flag=True, help=f"Set all loggers to {DEFAULT}.")
@click.option("--output", "-o", type=click.Choice(["short", "json"]), default="short", help="How to print it.")
def command(*, admin: str, level: str, reset: bool, output: str) -> None:
    """Show or set the log levels of a live Envoy.

    LEVEL is trace, debug, info, warning, error, critical or off. The change lasts until the Envoy ends.

    Exits with 0, 1 if the Envoy does not answer, 2 for a wrong flag or a logger that it does not have.
    """
    if reset and level:
        raise click.UsageError("--level and --reset exclude each other")
    envoy = EnvoyAdmin(admin)
    changes = _changes(DEFAULT if reset else level)
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
