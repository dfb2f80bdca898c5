"""``mesh-pilot plan``: what a change would do to each proxy, before anything is applied."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from mesh_pilot.cli.lib.file_arguments import takes_files, together
from mesh_pilot.cli.lib.options import SectionedCommand, output_option
from mesh_pilot.cli.lib.terminal import has_colour
from mesh_pilot.cli.plane.client import PlaneClient, asks_a_plane
from mesh_pilot.cli.plane.completion import proxies as proxies_begun

if TYPE_CHECKING:
    from mesh_pilot.explain.plan.files import ReadFiles
    from mesh_pilot.explain.plan.picture import ConnectedProxy, PlanePicture
    from mesh_pilot.explain.plan.planning import Plan
    from mesh_pilot.model.events import Item
    from mesh_pilot.model.proxy import Proxy

CHANGES = 3
"""The exit code for changes; 2 is that of a wrong flag."""

PICTURE_SECONDS = 120.0
"""The time that a control plane has for its picture: one of 10,000 services takes seconds."""

EXAMPLES = """\b
Examples:
  mesh-pilot plan reviews.yaml
  mesh-pilot plan mesh/ --delete --proxies 'web-*' --pilot 10.0.0.5:8080
  mesh-pilot plan mesh/ --against main/mesh/ -o json
  sed 's/weight: 90/weight: 50/' reviews.yaml | mesh-pilot plan -
"""


@click.command("plan", cls=SectionedCommand, epilog=EXAMPLES)
@takes_files("File, folder or - (standard input) of objects.", required=True)
@click.option(
    "--against",
    multiple=True,
    metavar="PATH",
    help="Compare with these files instead of a control plane. Folder with folder: objects that are gone go.",
)
@click.option("--delete", is_flag=True, help="FILE... is all that the source has: objects that are not in it go.")
@click.option("--source", default="", help="The source to change, such as files.  [default: the one with the object]")
@click.option("--secrets-dir", multiple=True, metavar="FOLDER", help="Folder of credentials that belong to FILE...")
@click.option(
    "--proxies",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    shell_complete=proxies_begun,
    help="Only for these proxies: 'web-*'.",
)
@click.option("--proxy-file", multiple=True, metavar="FILE", help="Plan for the nodes in this file, as JSON.")
@output_option
@click.option("--full", is_flag=True, help="Print everything, however long.")
@click.option("--detailed-exitcode", is_flag=True, help=f"Exit with {CHANGES} if something changes.")
@asks_a_plane
def command(
    plane: PlaneClient,
    *,
    files: tuple[str, ...],
    against: tuple[str, ...],
    delete: bool,
    source: str,
    secrets_dir: tuple[str, ...],
    patterns: tuple[str, ...],
    proxy_file: tuple[str, ...],
    output: str,
    full: bool,
    detailed_exitcode: bool,
) -> int:
    """Say what applying each FILE (a file, a folder, or - for standard input) would do, and apply nothing.

    Prints the objects that change, what each proxy would be sent and why, what the analyzers newly say, and what is
    refused. The objects are laid over those that the control plane has, by kind, namespace and name. The plan is
    computed here, by the code that serves; private keys never leave the control plane.

    Exits with 0 if there is a plan, 1 if anything is refused, an analyzer newly finds an error, or nothing can be
    planned, 2 for a wrong flag; with --detailed-exitcode, 3 if there is a plan and it changes something.
    """
    from mesh_pilot.cli.lib.logs import LogFormat, LogLevels, configure
    from mesh_pilot.explain.plan.files import PlanFileError
    from mesh_pilot.explain.plan.picture import PictureError
    from mesh_pilot.model.events import item_key

    # The two exit codes follow diff and terraform: a refusal is an error even where nobody asked for a detailed code.
    together(against, files)
    configure(LogLevels(logging.ERROR), LogFormat.TEXT, sys.stderr)
    try:
        picture, proxies = _folders(against) if against else _live(plane)
        connected = [each.proxy for each in proxies] if picture.is_whole else None
        read = _read(files, picture, secrets_dir)
        if proxy_file:
            proxies = [proxy for file in proxy_file for proxy in _nodes(file)]
        deletes = delete or _are_folders(against, files)
        plan = _plan(
            picture,
            proxies,
            connected,
            read,
            patterns,
            source=source,
            deletes=deletes,
            has_credentials=bool(secrets_dir) or any(item_key(item)[0] == "secret" for item in read.items),
        )
    except PlanFileError as error:
        raise click.ClickException(str(error)) from None
    except PictureError as error:
        raise click.ClickException(f"cannot read what {plane.address} answers: {error}") from None
    _print(plan, read, output, full)
    if read.refused or plan.failures or any(each.type.level.value == "error" for each in plan.new_findings):
        return 1
    return CHANGES if detailed_exitcode and plan.objects else 0


def _are_folders(against: Sequence[str], paths: Sequence[str]) -> bool:
    """True if folders are compared with folders: each is then all that there is."""
    return bool(against) and all(Path(path).is_dir() for path in (*against, *paths))


def _live(plane: PlaneClient) -> tuple[PlanePicture, list[ConnectedProxy]]:
    """The picture of a plane, and its proxies."""
    from mesh_pilot import __version__
    from mesh_pilot.explain.plan.picture import read_picture, read_proxies

    patient = attrs.evolve(plane, timeout_seconds=PICTURE_SECONDS)
    picture, proxies = read_picture(patient.get("/picture")), read_proxies(patient.get("/picture/proxies"))
    if picture.version != __version__:
        text = f"note: the control plane is mesh-pilot {picture.version}, this is {__version__}: it may serve otherwise"
        click.echo(text, err=True)
    if picture.unsynced:
        text = f"note: the control plane does not have all yet of {', '.join(picture.unsynced)}"
        click.echo(text, err=True)
    return picture, proxies


def _folders(against: Sequence[str]) -> tuple[PlanePicture, list[ConnectedProxy]]:
    """The picture of a plane that has these files; no proxies."""
    from mesh_pilot.explain.plan.files import FilesReader
    from mesh_pilot.explain.plan.objects import FILES, MESH
    from mesh_pilot.explain.plan.picture import PlanePicture
    from mesh_pilot.model.events import item_key
    from mesh_pilot.world import World

    settings = World().settings
    read = FilesReader(settings["root_namespace"]).read(against, sys.stdin.buffer)
    for refused in read.refused:
        click.echo(f"note: refused, and left out of what is compared with: {refused}", err=True)
    items: dict[str, dict[tuple[str, ...], Item]] = {MESH: {}, FILES: {}}
    for item in read.items:
        key = item_key(item)
        items[MESH if key[0] in ("mesh", "networks") else FILES][key] = item
    return PlanePicture(items, settings, is_whole=False), []


def _read(paths: Sequence[str], picture: PlanePicture, credentials: Sequence[str]) -> ReadFiles:
    from mesh_pilot.explain.plan.files import FilesReader

    read = FilesReader(picture.settings["root_namespace"]).read(paths, sys.stdin.buffer, credentials)
    if read.passed_over:
        click.echo(f"note: passed over, as they hold no objects: {', '.join(read.passed_over)}", err=True)
    return read


def _nodes(file: str) -> list[ConnectedProxy]:
    from mesh_pilot.explain.plan.files import read_nodes

    return read_nodes(file)


def _plan(
    picture: PlanePicture,
    proxies: list[ConnectedProxy],
    connected: list[Proxy] | None,
    read: ReadFiles,
    patterns: Sequence[str],
    *,
    source: str,
    deletes: bool,
    has_credentials: bool,
) -> Plan:
    from mesh_pilot.explain.plan.made_up import made_up_proxies
    from mesh_pilot.explain.plan.objects import FILES, changes_of
    from mesh_pilot.explain.plan.past_world import past_world
    from mesh_pilot.explain.plan.planning import Planner
    from mesh_pilot.explain.plan.report import printable

    if source and source not in picture.items:
        raise click.ClickException(f"there is no source {source}; there are {', '.join(picture.items)}")
    if deletes and not read.is_whole:
        click.echo("note: a part of the files can't be read: nothing is taken to be deleted", err=True)
        deletes = False
    # A file that cannot be read says nothing of its objects, and a picture without private keys nothing of credentials:
    # neither may make a plan say that something is deleted.
    kept = read.refused_keys
    if deletes and picture.is_whole and not has_credentials:
        stay = {key for key in picture.items.get(source or FILES, {}) if key[0] == "secret"}
        if stay:
            text = f"note: credentials ({len(stay)}) are taken to stay; --secrets-dir names the folder that has them"
            click.echo(text, err=True)
        kept |= stay
    changes = changes_of(picture.items, read.items, source=source, deletes=deletes, kept=kept)
    if not proxies:
        before = past_world(picture.items, picture.settings)
        after = past_world(picture.items, picture.settings)
        after.apply(change.event for change in changes)
        proxies = made_up_proxies(before, after)
        click.echo(f"note: no proxies are known; {len(proxies)} are made up from services and gateways", err=True)
    if patterns:
        wanted = [each for each in proxies if any(fnmatchcase(each.proxy.name, pattern) for pattern in patterns)]
        if proxies and not wanted:
            known = printable(", ".join(each.proxy.name for each in proxies[:5]))
            more = ", ..." if len(proxies) > 5 else ""
            raise click.ClickException(f"no proxy is called {' or '.join(patterns)}; there are {known}{more}")
        proxies = wanted
    return Planner(picture, proxies, connected).plan(changes)


def _print(plan: Plan, read: ReadFiles, output: str, full: bool) -> None:
    from mesh_pilot.explain.plan.report import plan_json, plan_lines

    if output == "text":
        for line in plan_lines(plan, read.refused, full=full):
            click.echo(_coloured(line))
        return
    value: Mapping[str, Any] = plan_json(plan, read.refused)
    if output == "json":
        click.echo(json.dumps(value, indent=2, ensure_ascii=False))
    else:
        import yaml

        click.echo(yaml.safe_dump(json.loads(json.dumps(value)), sort_keys=False, allow_unicode=True).rstrip())


_COLOURS = {"+": "green", "-": "red", "~": "yellow"}


def _coloured(line: str) -> str:
    colour = _COLOURS.get(line.strip()[:1])
    return click.style(line, fg=colour) if colour and has_colour(sys.stdout) else line
