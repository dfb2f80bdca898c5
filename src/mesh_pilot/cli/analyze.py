"""``mesh-pilot analyze``: checks configuration as ``discovery`` reads it, without serving it."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from mesh_pilot.cli.terminal import coloured

if TYPE_CHECKING:
    from mesh_pilot.cli.analysis import Analysis, Finding

_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


@click.command("analyze")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--output", "-o", type=click.Choice(["text", "json"]), default="text", help="How to print it.")
def command(paths: tuple[str, ...], output: str) -> int:
    """Check the Istio configuration at each PATH: a file, a folder, or - for standard input.

    Prints each problem with file, line, object, field and reason, and the objects and files that are ignored. A
    mesh.yaml is checked as MeshConfig.

    Exits with 0 if there are no errors (warnings are allowed), 1 if there are errors or a path cannot be read, 2 for a
    wrong flag.
    """
    from mesh_pilot.cli.analysis import UnreadablePathError, analyze
    from mesh_pilot.cli.logs import LogFormat, LogLevels, configure

    configure(LogLevels(logging.WARNING), LogFormat.TEXT, sys.stderr)
    try:
        found = analyze(paths, sys.stdin.buffer)
    except UnreadablePathError as error:
        raise click.ClickException(str(error)) from None
    if output == "json":
        click.echo(json.dumps(_as_json(found), indent=2, ensure_ascii=False))
    else:
        for severity, line in _lines(found):
            click.echo(coloured(line, f": {severity}:", fg=_COLOURS[severity]))
        ignored = sum(len(kind.where) for kind in found.ignored)
        summary = f"{found.objects} objects are good, {len(found.errors)} errors, {len(found.warnings)} warnings"
        click.echo(f"{summary}, {ignored} ignored" if ignored else summary)
    return 1 if found.errors else 0


def _lines(found: Analysis) -> Iterator[tuple[str, str]]:
    """Severity and text of each line."""
    for finding in (*found.errors, *found.warnings):
        yield finding.severity.value, str(finding)
    for kind in found.ignored:
        first, *others = kind.where
        also = f" ({len(kind.where)} of them, also at {', '.join(others[:3])}{', ...' if others[3:] else ''})"
        yield "note", f"{first}: note: ignored: {kind.kind} of {kind.api_version}{also if others else ''}"
    for note in found.notes:
        yield "note", f"{note.where}: note: {note.what}"


def _as_json(found: Analysis) -> dict[str, object]:
    return {
        "objects": found.objects,
        "errors": [_finding(finding) for finding in found.errors],
        "warnings": [_finding(finding) for finding in found.warnings],
        "ignored": [{"apiVersion": k.api_version, "kind": k.kind, "where": list(k.where)} for k in found.ignored],
        "notes": [{"where": note.where, "what": note.what} for note in found.notes],
    }


def _finding(finding: Finding) -> dict[str, str]:
    values = {"where": finding.where, "object": finding.object, "field": finding.field, "reason": finding.reason}
    return {key: value for key, value in values.items() if value}
