"""``mesh-pilot context``: control planes by name, so that no command needs ``--pilot``."""

from __future__ import annotations

from pathlib import Path

import click

from mesh_pilot.cli.lib.suggestions import CommandGroup
from mesh_pilot.cli.plane.contexts import Contexts, completed_contexts
from mesh_pilot.cli.plane.requests import plane_address

_PATH = click.Path(path_type=Path)


@click.group("context", cls=CommandGroup)
def command() -> None:
    """Name control planes, and choose the current one, which commands ask unless --pilot or --context say otherwise.

    They are kept in ~/.config/mesh-pilot/contexts.yaml, or the file that MESH_PILOT_CONTEXTS names.

    \b
    Examples:
      mesh-pilot context add prod --pilot https://pilot.internal:8080 --token-file ~/prod.token --pilot-ca ca.pem
      mesh-pilot context use prod
      mesh-pilot proxy-status
      mesh-pilot proxy-status --context here
    """


@command.command("list")
def list_() -> None:
    """List the contexts; * marks the current one.

    \b
    Examples:
      mesh-pilot context list
    """
    contexts = Contexts.read()
    for name in contexts.names:
        click.echo(f"{'*' if name == contexts.current else ' '} {name}  {contexts.found[name]['pilot']}")
    if not contexts.found:
        click.echo("there is none; mesh-pilot context add NAME --pilot ADDRESS", err=True)


@command.command("use")
@click.argument("name", shell_complete=completed_contexts)
def use(*, name: str) -> None:
    """Make a context the current one.

    \b
    Examples:
      mesh-pilot context use prod
    """
    contexts = Contexts.read()
    contexts.client(name)
    Contexts(contexts.file, name, contexts.found).write()


@command.command("add")
@click.argument("name")
@click.option("--pilot", type=plane_address, metavar="ADDRESS", required=True, help="As of the commands that ask it.")
@click.option("--token-file", type=_PATH, help="File with our token there.")
@click.option("--pilot-ca", type=_PATH, help="PEM file of the CA of https.")
@click.option("--pilot-cert", type=_PATH, help="PEM file of our certificate.")
@click.option("--pilot-key", type=_PATH, help="PEM file of its key.")
def add(
    *,
    name: str,
    pilot: str,
    token_file: Path | None,
    pilot_ca: Path | None,
    pilot_cert: Path | None,
    pilot_key: Path | None,
) -> None:
    """Add a context, or replace it. The first one is the current one.

    \b
    Examples:
      mesh-pilot context add here --pilot unix:///var/lib/mesh-pilot/admin.sock
    """
    files = {"token_file": token_file, "ca": pilot_ca, "certificate": pilot_cert, "key": pilot_key}
    contexts = Contexts.read()
    context = {"pilot": pilot, **{part: str(path.expanduser().absolute()) for part, path in files.items() if path}}
    Contexts(contexts.file, contexts.current or name, {**contexts.found, name: context}).write()


@command.command("remove")
@click.argument("name", shell_complete=completed_contexts)
def remove(*, name: str) -> None:
    """Remove a context.

    \b
    Examples:
      mesh-pilot context remove prod
    """
    contexts = Contexts.read()
    contexts.client(name)
    rest = {each: context for each, context in contexts.found.items() if each != name}
    Contexts(contexts.file, "" if contexts.current == name else contexts.current, rest).write()
