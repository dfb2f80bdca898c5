"""``mesh-pilot admin``: orders to a control plane, over its Unix socket or its API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import click

from mesh_pilot.cli.lib.options import ListOption, output_option
from mesh_pilot.cli.lib.suggestions import CommandGroup
from mesh_pilot.cli.lib.terminal import print_value
from mesh_pilot.cli.operate.admin_profile import profile
from mesh_pilot.cli.plane.admin_flags import gives_orders
from mesh_pilot.cli.plane.client import PlaneClient
from mesh_pilot.cli.plane.completion import proxies, sources
from mesh_pilot.model.counts import counted

NAMED = 20
"""Held objects of a source that are named, except in JSON."""


@click.group("admin", cls=CommandGroup, context_settings={"show_default": True})
def command() -> None:
    """Give orders to a control plane.

    By default to that on this machine: over a Unix socket in its state folder, which only the user that it runs as, and
    root, may use. To another with --pilot or --context, and a token of role operate.
    """


@command.command("status")
@gives_orders
@click.option("--output", "-o", type=click.Choice(["text", "json"]), default="text", help="How to print it.")
def status(*, plane: PlaneClient, output: str) -> int:
    """Show the sources that are stale or blind, or of which something is held.

    stale: the picture of an earlier run is in force, because the source has not given a full one in this run.
    held: objects that the source lost at once are kept.
    blind: the source's credentials do not see everything; what it gave before is kept.

    Exits with 0, or with 1 if there are any, or if the control plane does not answer.

    \b
    Examples:
      mesh-pilot admin status
      mesh-pilot admin status -o json --pilot pilot.internal:8080
    """
    found = [condition for source in plane.get("/sources") for condition in source["conditions"]]
    if output == "json":
        print_value(found, "json")
    elif not found:
        click.echo("every source confirms what is in force")
    else:
        for entry in found:
            click.echo("\n".join(_lines(entry)))
    return int(bool(found))


def _lines(entry: Mapping[str, Any]) -> list[str]:
    ago = timedelta(seconds=entry["seconds"])
    lines = [f"{entry['source']}: {entry['state']} since {entry['since']} ({ago} ago): {entry['reason']}"]
    if entry["state"] == "held":
        security = [str(name) for name in entry.get("security", ())]
        shown = list(dict.fromkeys((*security, *(str(name) for name in entry["names"][:NAMED]))))
        lines += [f"  {counted(entry['objects'], 'object')}:", *(f"    {name}" for name in shown)]
        lines += [f"    and {entry['objects'] - len(shown)} more: see -o json"] if entry["objects"] > len(shown) else []
    lines += [f"  {entry['effect']}"]
    if entry["state"] == "held":
        lines += [f"  to let them go: {entry['to_let_them_go']}"]
    return lines


@command.command("accept")
@click.argument("source", shell_complete=sources)
@gives_orders
def accept(*, source: str, plane: PlaneClient) -> None:
    """Drop what is held of SOURCE: it is gone for good.

    The names of sources are in mesh-pilot admin status, and on the web page.

    \b
    Examples:
      mesh-pilot admin accept consul
    """
    answer = plane.post(f"/sources/{quote(source, safe='')}/accept")
    gone = counted(answer["gone"], "object goes", "objects go")
    click.echo(f"{answer['source']}: {gone}: {answer['first']}")


@command.command("log")
@click.option("--level", cls=ListOption, metavar="SCOPE:LEVEL,...", help="Set levels, until the control plane ends.")
@click.option("--reset", is_flag=True, help="Back to the levels that it was started with.")
@output_option
@gives_orders
def log(*, level: str | None, reset: bool, output: str, plane: PlaneClient) -> None:
    """Show the levels of the log, or set them at run time, in all workers.

    A level is debug, info, warn, error or none; without a scope it is that of all scopes for which none is set.

    \b
    Examples:
      mesh-pilot admin log
      mesh-pilot admin log --level xds:debug,world:debug
      mesh-pilot admin log --reset
    """
    if level is not None and reset:
        raise click.UsageError("--level and --reset exclude each other")
    if level is not None or reset:
        found = plane.post("/logs", {"reset": True} if reset else {"level": level})
    else:
        found = plane.get("/logs")
    if output != "text":
        click.echo(_written(found, output))
        return
    width = max(len(scope["name"]) for scope in found["scopes"])
    for scope in found["scopes"]:
        click.echo(f"{scope['name']:{width}}  {scope['level']:7}  {scope['description']}")


@command.command("push")
@click.argument("proxy", default="", shell_complete=proxies)
@gives_orders
def push(*, proxy: str, plane: PlaneClient) -> int:
    """Send PROXY, or all proxies, everything that they hold once more, changed or not.

    PROXY: web-1.shop, web-1 if one namespace has it, a node id, an address, or a pattern such as 'web-*' for all of it.

    Exits with 0, or with 1 if no connected proxy has the name, or if the control plane does not answer.

    \b
    Examples:
      mesh-pilot admin push
      mesh-pilot admin push 'web-*'
    """
    found = plane.post("/push", proxy=proxy or None)
    if proxy and not found["streams"]:
        raise click.ClickException(f"no connected proxy is called {proxy!r}")
    click.echo(f"everything was sent again to {_streams(found)}")
    return 0


@command.command("disconnect")
@click.argument("proxy", shell_complete=proxies)
@gives_orders
def disconnect(*, proxy: str, plane: PlaneClient) -> None:
    """End the streams of PROXY, which connects again, perhaps to another replica.

    PROXY: web-1.shop, web-1 if one namespace has it, a node id, an address, or a pattern such as 'web-*' for all of it.

    \b
    Examples:
      mesh-pilot admin disconnect web-1.shop
    """
    click.echo(f"ended {_streams(plane.post(f'/proxies/{quote(proxy, safe=str())}/disconnect'))}")


def _streams(found: Mapping[str, Any]) -> str:
    names = ", ".join(found["proxies"][:NAMED]) + (", ..." if len(found["proxies"]) > NAMED else "")
    count = counted(found["streams"], "stream")
    return f"{count}: {names}" if names else count


def _written(value: Any, output: str) -> str:
    if output == "json":
        return json.dumps(value, indent=2, ensure_ascii=False)
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True)).rstrip()


command.add_command(profile)
