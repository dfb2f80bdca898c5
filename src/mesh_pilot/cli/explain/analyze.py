"""``mesh-pilot analyze``: checks configuration as ``discovery`` reads it, without serving it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from mesh_pilot.cli.lib.file_arguments import takes_files
from mesh_pilot.cli.lib.options import SectionedCommand, days_option, one_line
from mesh_pilot.cli.lib.terminal import coloured, plain
from mesh_pilot.cli.plane.client import PlaneClient, asks_a_plane
from mesh_pilot.model.counts import counted

if TYPE_CHECKING:
    from mesh_pilot.explain.analysis.command_line import Analysis, LivePlane
    from mesh_pilot.explain.analysis.suppressions import Suppressions

_COLOURS = {"error": "red", "warning": "yellow", "info": "cyan", "note": "cyan"}
_SELF_EXPLAINING = frozenset(("IST0002", "IST0106", "IST0133", "MP0001", "MP0003", "MP0004", "MP0007", "MP0009"))
"""Codes whose messages say all that can be said."""

_LEVELS = ("error", "warning", "info")
_EXAMPLES = """\b
Examples:
  mesh-pilot analyze ./config mesh.yaml
  mesh-pilot analyze ./config --secrets-dir ./secrets --failure-threshold warning
  mesh-pilot analyze ./config --suppress IST0134=ServiceEntry/legacy/*
  mesh-pilot analyze ./config -o sarif > analysis.sarif
  helm template . | mesh-pilot analyze -
  mesh-pilot analyze --pilot 10.0.0.1:8080
  mesh-pilot analyze --traffic --days 30
  mesh-pilot analyze change.yaml --pilot 10.0.0.1:8080
"""


@click.command("analyze", cls=SectionedCommand, epilog=_EXAMPLES)
@takes_files("File, folder or - (standard input) to check.", required=False)
@click.option(
    "--output", "-o", type=click.Choice(["text", "json", "sarif", "junit"]), default="text", help="How to print it."
)
@click.option(
    "--secrets-dir",
    "secrets",
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    help="Folder of credentials, as for discovery. Without one, credentials that the files do not hold are not looked"
    " for.",
)
@click.option(
    "--suppress",
    multiple=True,
    metavar="CODE[=KIND/NAMESPACE/NAME]",
    help="Do not report this message, for these objects only (with * and ?). Repeatable.",
)
@click.option(
    "--failure-threshold",
    type=click.Choice(_LEVELS),
    default="error",
    help="The lightest level that makes the command exit with 1.",
)
@click.option("--traffic", is_flag=True, help="Also say what no traffic has used. Of a control plane only.")
@days_option
@asks_a_plane
def command(
    files: tuple[str, ...],
    output: str,
    secrets: tuple[str, ...],
    suppress: tuple[str, ...],
    failure_threshold: str,
    traffic: bool,
    days: int,
    plane: PlaneClient,
) -> int:
    """Check the Istio configuration of each FILE: a file, a folder, or - for standard input.

    Without a FILE, check what is in force at a control plane. With both, check what would be in force there if the
    objects were added, or put in the place of those of the same name.

    Prints each problem with file, line, object, field, reason, a code, and how to fix it; also the objects and files
    that are ignored. A mesh.yaml is checked as MeshConfig. docs/analysis.md explains each code. With --traffic it also
    finds services, subsets and VirtualServices that nothing has called, and rules of policies that nothing has met.

    Exits with 0 if there are no errors (warnings are allowed), 1 if there are errors or a path cannot be read, 2 for a
    wrong flag.
    """
    from mesh_pilot.cli.lib.logs import LogFormat, LogLevels, configure
    from mesh_pilot.explain.analysis.suppressions import SuppressionError, Suppressions

    configure(LogLevels(logging.WARNING), LogFormat.TEXT, sys.stderr)
    try:
        suppressions = Suppressions.parse(suppress)
    except SuppressionError as error:
        raise click.BadParameter(str(error), param_hint="--suppress") from None
    if files and traffic:
        raise click.UsageError("--traffic is about what a control plane has counted: name no FILE")
    if files:
        given = map(click.get_current_context().get_parameter_source, ("pilot", "context"))
        is_asked = ParameterSource.COMMANDLINE in given  # not for a context that is always there
        found = _of_files(files, secrets, suppressions, _live(plane) if is_asked else None)
    else:
        from mesh_pilot.cli.explain.analysis_output import of_plane

        found = of_plane(plane.get("/analysis", suppress=list(suppress), traffic=days if traffic else None))
    _print(found, output)
    fatal = _LEVELS[: _LEVELS.index(failure_threshold) + 1]
    return 1 if any(finding.level.value in fatal for finding in found.findings) else 0


def _live(plane: PlaneClient) -> LivePlane:
    from mesh_pilot.explain.analysis.command_line import LivePlane
    from mesh_pilot.explain.plan.picture import PictureError, read_picture, read_proxies

    try:
        picture = read_picture(plane.get("/picture"))
        proxies = tuple(each.proxy for each in read_proxies(plane.get("/picture/proxies")))
    except PictureError as error:
        raise click.ClickException(f"cannot read the picture of {plane.address}: {error}") from None
    return LivePlane(picture.items, picture.settings, proxies)


def _of_files(
    paths: tuple[str, ...], secrets: tuple[str, ...], suppressions: Suppressions, plane: LivePlane | None
) -> Analysis:
    from mesh_pilot.explain.analysis.command_line import UnreadablePathError, analyze

    with one_line(UnreadablePathError):
        return analyze(paths, sys.stdin.buffer, secrets=secrets, suppressions=suppressions, plane=plane)


def _print(found: Analysis, output: str) -> None:
    from mesh_pilot.cli.explain import analysis_output

    match output:
        case "json":
            click.echo(analysis_output.as_json(found))
        case "sarif":
            click.echo(analysis_output.as_sarif(found))
        case "junit":
            click.echo(analysis_output.as_junit(found))
        case _:
            for severity, line in _lines(found):
                click.echo(coloured(line, f": {severity}:", fg=_COLOURS[severity]))
            click.echo(_summary(found))


def as_text(found: Analysis) -> str:
    """The text that is printed, without colours."""
    return "\n".join([*(line for _, line in _lines(found)), _summary(found)])


def _summary(found: Analysis) -> str:
    from mesh_pilot.explain.analysis.findings import Level

    errors, warnings, infos = (len(found.of(level)) for level in Level)
    ignored = sum(len(kind.where) for kind in found.ignored)
    good = f"{counted(found.objects, 'object')} {'is' if found.objects == 1 else 'are'} good"
    parts = [good, counted(errors, "error"), counted(warnings, "warning")]
    parts += [counted(infos, "info")] if infos else []
    parts += [f"{ignored} ignored"] if ignored else []
    parts += [f"{found.suppressed} suppressed"] if found.suppressed else []
    return ", ".join(parts)


def _lines(found: Analysis) -> Iterator[tuple[str, str]]:
    """Severity and text of each line."""
    for finding in found.findings:
        fix = f"\n    {plain(finding.fix)}" if finding.fix and finding.code not in _SELF_EXPLAINING else ""
        yield finding.level.value, f"{plain(str(finding))} [{finding.code}]{fix}"
    for kind in found.ignored:
        first, *others = kind.where
        also = f" ({len(kind.where)} of them, also at {', '.join(others[:3])}{', ...' if others[3:] else ''})"
        yield "note", plain(f"{first}: note: ignored: {kind.kind} of {kind.api_version}{also if others else ''}")
    for note in found.notes:
        yield "note", plain(f"{note.where}: note: {note.what}")
