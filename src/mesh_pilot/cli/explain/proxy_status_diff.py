"""The comparison that ``mesh-pilot proxy-status NAME --diff`` prints."""

from __future__ import annotations

import sys
from typing import Any

import click

from mesh_pilot.cli.lib.terminal import has_colour, plain, print_value
from mesh_pilot.cli.plane.client import PlaneClient
from mesh_pilot.cli.plane.envoy_admin import EnvoyAdmin
from mesh_pilot.cli.proxy_config.source import DumpSource, plane_dump
from mesh_pilot.explain.inspection.comparison import ResourceDifference, TypeComparison, compare
from mesh_pilot.explain.inspection.dump import ConfigDump
from mesh_pilot.explain.inspection.listings.listing import made_from

COLOURS = {"-": "red", "+": "green", "@": "cyan"}
"""Colours of lines of a unified diff, by their first character."""


def print_differences(plane: PlaneClient, proxy: str, admin: EnvoyAdmin | None, file: str | None, output: str) -> int:
    """Print how an Envoy differs from what it was sent; the exit code: 1 if it does."""
    sent = plane_dump(plane, proxy)
    held = DumpSource("", plane, admin, file or "").dump()
    found = compare(sent, held)
    if output == "text":
        for each in found:
            _print(each, sent)
    else:
        print_value({"proxy": proxy, "types": [_as_json(each, sent) for each in found]}, output)
    return int(not all(each.matches for each in found))


def _print(found: TypeComparison, sent: ConfigDump) -> None:
    if found.matches:
        click.echo(f"{found.title} Match ({found.compared})")
        return
    click.echo(f"{found.title} Don't Match ({len(found.differences)} of {found.compared})")
    for each in found.differences:
        origin = f" (made from {made_from(sent, each.made_from)})" if each.made_from else ""
        note = f": {each.note}" if each.note else ""
        click.echo(plain(f"  {found.type} {each.name} {each.kind}{origin}{note}"))
        for line in each.lines:
            _print_line(plain(line))


def _print_line(line: str) -> None:
    colour = COLOURS.get(line[:1])
    click.echo(f"    {click.style(line, fg=colour) if colour and has_colour(sys.stdout) else line}")


def _as_json(found: TypeComparison, sent: ConfigDump) -> dict[str, Any]:
    return {
        "type": found.type,
        "match": found.matches,
        "compared": found.compared,
        "differences": [_difference(each, sent) for each in found.differences],
    }


def _difference(each: ResourceDifference, sent: ConfigDump) -> dict[str, Any]:
    origins = [{"object": key, "place": sent.place(key)} for key in each.made_from]
    return {
        "name": each.name,
        "kind": str(each.kind),
        "note": each.note,
        "made_from": origins,
        "diff": list(each.lines),
    }
