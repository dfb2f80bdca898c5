"""``mesh-pilot history``: the revisions that a control plane has published, from its state folder or its API."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mesh_pilot.cli.lib.options import duration, one_line
from mesh_pilot.cli.lib.state_folder import default_folder
from mesh_pilot.cli.lib.suggestions import CommandGroup
from mesh_pilot.cli.lib.terminal import coloured, table
from mesh_pilot.cli.plane.completion import object_names, proxies
from mesh_pilot.cli.plane.history_flags import may_ask_a_plane
from mesh_pilot.cli.plane.references import part_of_a_name
from mesh_pilot.model.counts import counted

if TYPE_CHECKING:
    from mesh_pilot.cli.plane.client import PlaneClient
    from mesh_pilot.safety.state.reader import HistoryReader, ProxyPosition

F = TypeVar("F", bound=Callable[..., Any])

SHOWN = 20
"""Revisions that are listed, unless ``-n`` says otherwise."""


def _common_options(command: F) -> F:
    folder = click.option(
        "--state-dir",
        type=click.Path(path_type=Path),
        envvar="MESH_PILOT_STATE_DIR",
        help="Folder of the control plane's state.  [default: the system's, such as /var/lib/mesh-pilot]",
    )
    output = click.option(
        "--output", "-o", type=click.Choice(["text", "json", "yaml"]), help="How to print it.  [default: text]"
    )
    return folder(output(command))


def _list_options(command: F) -> F:
    for option in (
        click.option("-n", "--number", type=click.IntRange(min=1), help=f"Most to list.  [default: {SHOWN}]"),
        click.option("--since", type=duration, help="Only those since this long ago, such as 2h."),
        click.option(
            "--object",
            "object_name",
            default="",
            shell_complete=object_names,
            help="Only those that changed it: vs/shop/reviews, reviews.shop, or a part such as shop/reviews.",
        ),
        click.option(
            "--proxy",
            default="",
            shell_complete=proxies,
            help="Only those of which this proxy refused something: web-1.shop.",
        ),
    ):
        command = option(command)
    return command


@click.group("history", cls=CommandGroup, invoke_without_command=True)
@_list_options
@may_ask_a_plane
@_common_options
@click.pass_context
def command(context: click.Context, /, **options: Any) -> int | None:
    """List, show and compare the revisions that a control plane has published.

    With --pilot or --context, or if a variable or the current context says which, a control plane is asked. Otherwise,
    or with --state-dir, the state folder is read (docs/history.md): on the same machine, as the same user or root; the
    control plane may be running or not. Without a subcommand: list.
    """
    context.obj = options
    return context.invoke(list_, **options) if context.invoked_subcommand is None else None


@command.command("list")
@_list_options
@may_ask_a_plane
@_common_options
@click.pass_context
def list_(
    context: click.Context,
    *,
    number: int | None,
    since: float | None,
    object_name: str,
    proxy: str,
    plane: PlaneClient | None,
    state_dir: Path | None,
    output: str | None,
) -> int:
    """List revisions, the newest first."""
    from mesh_pilot.cli.change.history_plane import PlaneHistory
    from mesh_pilot.cli.change.history_text import COLUMNS, revision_json, revision_row, utc_now

    now, object_name = utc_now(), part_of_a_name(object_name)
    limit, after = number or SHOWN, now - timedelta(seconds=since) if since is not None else None
    if (asked := _asked(context, plane)) is not None:
        found, has_any = PlaneHistory(asked).revisions(limit=limit, since=after, object_name=object_name, proxy=proxy)
    else:
        with _opened(context, state_dir) as history:
            found = history.revisions(limit=limit, since=after, object_name=object_name, proxy=proxy)
            has_any = bool(history.latest)
    if _style(context, output) != "text":
        _dump([revision_json(record) for record in found], _style(context, output))
    elif found:
        _echo(table([COLUMNS, *(revision_row(record, now) for record in found)]))
    else:
        click.echo("there are no such revisions" if has_any else "there are no revisions yet")
    return 0


@command.command("show")
@click.argument("revision", type=click.IntRange(min=1))
@may_ask_a_plane
@_common_options
@click.pass_context
def show(
    context: click.Context, *, revision: int, plane: PlaneClient | None, state_dir: Path | None, output: str | None
) -> int:
    """Show everything about a revision: its cause, the objects that it changed, and what proxies refused."""
    from mesh_pilot.cli.change.history_plane import PlaneHistory
    from mesh_pilot.cli.change.history_text import change_json, nack_json, revision_json, show_lines, utc_now

    if (asked := _asked(context, plane)) is not None:
        record, changes, nacks = PlaneHistory(asked).revision(revision)
    else:
        with _opened(context, state_dir) as history:
            record, changes, nacks = history.revision(revision), history.changes(revision), history.nacks(revision)
    if _style(context, output) != "text":
        more = {"changes": [*map(change_json, changes)], "refused": [*map(nack_json, nacks)]}
        _dump({**revision_json(record), **more}, _style(context, output))
    else:
        _echo(show_lines(record, changes, nacks, utc_now()))
    return 0


@command.command("diff")
@click.argument("older", type=click.IntRange(min=1), metavar="REVISION")
@click.argument("newer", type=click.IntRange(min=1), metavar="[REVISION]", required=False)
@click.option("--proxy", default="", help="Compare what this proxy was sent, instead: web-1.shop.")
@may_ask_a_plane
@_common_options
@click.pass_context
def diff(
    context: click.Context,
    *,
    older: int,
    newer: int | None,
    proxy: str,
    plane: PlaneClient | None,
    state_dir: Path | None,
    output: str | None,
) -> int:
    """Compare the objects of two revisions; without the second: those of a revision and of now.

    With --proxy: the resources that the proxy was sent, made again from the objects. No certificates or keys are made.
    This needs the state folder.

    Exits with 0 if they are equal, 1 if they differ or cannot be compared.
    """
    from mesh_pilot.cli.change.history_plane import PlaneHistory
    from mesh_pilot.explain.plan.past_world import past_world, resources_of
    from mesh_pilot.model.json import as_json
    from mesh_pilot.ops.values.differences import object_differences, resource_differences

    style = _style(context, output)
    if (asked := _asked(context, plane)) is not None:
        if proxy:
            raise click.UsageError(
                "--proxy needs the state folder: run it on the control plane's machine, with --state-dir"
            )
        answer = PlaneHistory(asked).differences(older, newer)
        if answer["total"] > len(answer["items"]):
            click.echo(f"note: the first {len(answer['items'])} of {answer['total']} objects that differ", err=True)
        return _print_differences(answer["from"], answer["to"], answer["items"], answer["not_kept"], style)
    with _opened(context, state_dir) as history:
        newer = newer or history.latest
        pictures = history.items_at(older), history.items_at(newer)
        node = _proxy(history, proxy).proxy if proxy else None
    if node is not None:
        before, after = (resources_of(past_world(each.items, each.settings), node) for each in pictures)
        found = list(resource_differences(before, after))
    else:
        found = list(object_differences(*pictures))
    unknown = {*pictures[0].unknown, *pictures[1].unknown}
    return _print_differences(older, newer, [as_json(each.shown(older, newer)) for each in found], len(unknown), style)


@command.command("proxy")
@click.argument("name", default="", required=False)
@_common_options
@click.pass_context
def proxy(context: click.Context, *, name: str, state_dir: Path | None, output: str | None) -> int:
    """Say which revision each proxy is at, or the proxy of a name: web-1.shop, or web-1.

    A proxy is at the last revision of which it has, and has accepted, everything. One that refuses something stays
    where it was.
    """
    from mesh_pilot.cli.change.history_text import PROXY_COLUMNS, proxy_json, proxy_row, utc_now

    with _opened(context, state_dir) as history:
        found = [_proxy(history, name)] if name else history.proxies()
        latest = history.latest
    if _style(context, output) != "text":
        _dump([proxy_json(position, latest) for position in found], _style(context, output))
    elif found:
        lines = table([PROXY_COLUMNS, *(proxy_row(position, latest, utc_now()) for position in found)])
        _echo(coloured(line, "refuses what follows", fg="red") for line in lines)
    else:
        click.echo("no proxy has connected yet")
    return 0


@contextmanager
def _opened(context: click.Context, state_dir: Path | None) -> Iterator[HistoryReader]:
    """The history in the folder. What goes wrong is one line.

    Print after the block: while it is open, the control plane's log next to the file cannot be cut, and a pager waits.
    """
    from mesh_pilot.cli.lib.logs import LogFormat, LogLevels, configure
    from mesh_pilot.safety.state.reader import HistoryError, HistoryReader

    configure(LogLevels(logging.WARNING), LogFormat.TEXT, sys.stderr)
    folder = state_dir or (context.obj or {}).get("state_dir") or default_folder(os.environ)
    with one_line(HistoryError), HistoryReader.open(folder) as history:
        yield history


def _asked(context: click.Context, plane: PlaneClient | None) -> PlaneClient | None:
    """The control plane that is asked, by flags of the command or of the group; None: the folder is read."""
    asked: PlaneClient | None = plane or (context.obj or {}).get("plane")
    return asked


def _style(context: click.Context, output: str | None) -> str:
    return output or (context.obj or {}).get("output") or "text"


def _proxy(history: HistoryReader, name: str) -> ProxyPosition:
    """The proxy of a name, a connected one first."""
    everything = history.proxies()
    found = [p for p in everything if name in (p.proxy.name, p.proxy.id, p.proxy.name.partition(".")[0])]
    if not found:
        known = ", ".join(sorted({position.proxy.name for position in everything})) or "none"
        raise click.ClickException(f"no proxy {name} has connected lately; known: {known}")
    names = {position.proxy.name for position in found}
    if len(names) > 1:
        raise click.ClickException(f"several proxies are called {name}: {', '.join(sorted(names))}")
    return max(found, key=lambda position: (position.is_connected, position.seen))


def _print_differences(older: int, newer: int, found: list[Any], not_kept: int, style: str) -> int:
    """The exit code; ``found`` as ``Difference.as_json`` has them."""
    if not_kept:
        click.echo(f"note: {counted(not_kept, 'object')} not kept, and not compared (docs/history.md)", err=True)
    if style != "text":
        _dump({"from": older, "to": newer, "differences": found}, style)
        return 1 if found else 0
    for each in found:
        for line in each["diff"]:
            click.echo(click.style(line, fg=_COLOURS.get(line[:1])) if sys.stdout.isatty() else line)
    if not found:
        click.echo(f"revisions {older} and {newer} do not differ in this")
    return 1 if found else 0


_COLOURS: Mapping[str, str] = {"+": "green", "-": "red", "@": "cyan"}


def _dump(value: object, style: str) -> None:
    if style == "json":
        click.echo(json.dumps(value, indent=2, ensure_ascii=False))
    else:
        import yaml

        click.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=True).rstrip())


def _echo(lines: Iterator[str] | list[str]) -> None:
    for line in lines:
        click.echo(line)
