"""``mesh-pilot analyze``: what is wrong with configuration, read as ``discovery`` reads it, without serving it."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import click
import trio

from mesh_pilot.cli.logs import LogFormat, LogLevels, configure
from mesh_pilot.model.config import Severity
from mesh_pilot.model.events import Event, Synced
from mesh_pilot.ops.changes import WITHOUT_EFFECT, describe
from mesh_pilot.ops.patches import in_configs
from mesh_pilot.ops.world_pages import configs, warnings
from mesh_pilot.sources.files import file_source
from mesh_pilot.world import World


@click.command("analyze")
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
def command(folders: tuple[Path, ...]) -> int:
    """Check the Istio configuration in FOLDERS.

    Prints each problem with file, line, object, field and reason. Exits with 1 when there are errors; warnings alone
    are fine.
    """
    for folder in folders:
        try:
            any(folder.iterdir())
        except OSError as error:
            raise click.ClickException(f"cannot read the folder {folder}: {error.strerror}") from None
    configure(LogLevels(logging.WARNING), LogFormat.TEXT, sys.stderr)
    world = trio.run(_read, folders)
    errors = [line for rejected in world.rejections() for line in describe(rejected)]
    doubts = [*warnings(world), *_without_effect(world)]
    for severity, line in in_configs(world):
        (errors if severity is Severity.ERROR else doubts).append(line)
    for line in errors:
        click.echo(_sentence("error", line))
    for line in doubts:
        click.echo(_sentence("warning", line))
    held = sum(world.statistics().configs.values())
    click.echo(f"{held} objects are good, {len(errors)} errors, {len(doubts)} warnings")
    return 1 if errors else 0


async def _read(folders: tuple[Path, ...]) -> World:
    """The World as it is once all files are read and what is broken is known to be broken, not half-written."""
    world = World()
    source = file_source([str(folder) for folder in folders])
    send, receive = trio.open_memory_channel[Event](100)
    events: list[Event] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(source.run, send)
        async for event in receive:
            events.append(event)
            if isinstance(event, Synced):
                break
        nursery.cancel_scope.cancel()
    world.apply(events)
    return world


def _without_effect(world: World) -> list[dict[str, str]]:
    reason = "this kind is checked, but has no effect in this version"
    return [
        {"where": str(config.origin), "object": str(config.key), "reason": reason}
        for config in configs(world)
        if config.key.kind in WITHOUT_EFFECT
    ]


def _sentence(severity: str, line: dict[str, str]) -> str:
    return ": ".join(
        [line.get("where", ""), severity, *(line[k] for k in ("object", "field", "reason") if line.get(k))]
    )
