"""``mesh-pilot delete``: remove objects from a control plane's config store."""

from __future__ import annotations

import time
from typing import Any

import click

from mesh_pilot.cli.lib.file_arguments import files_flag, is_file, together
from mesh_pilot.cli.lib.options import SectionedCommand, examples
from mesh_pilot.cli.lib.terminal import print_value
from mesh_pilot.cli.plane.admin_flags import gives_orders
from mesh_pilot.cli.plane.client import PlaneClient
from mesh_pilot.cli.plane.completion import namespace_option
from mesh_pilot.cli.plane.completion import references as references_begun
from mesh_pilot.cli.plane.config_objects import (
    delivery_lines,
    dry_run_option,
    objects_of,
    output_option,
    patient,
    refusal,
    report,
    wait_option,
)
from mesh_pilot.cli.plane.references import DEFAULT_NAMESPACE, PROXY, SERVICE, Name, references

_NOT_FOUND = 404


@click.command(
    "delete",
    cls=SectionedCommand,
    epilog=examples(
        "mesh-pilot delete vs reviews -n shop --wait 30s",
        "mesh-pilot delete VirtualService/reviews -n shop --dry-run",
        "mesh-pilot delete reviews.yaml --ignore-not-found",
    ),
)
@click.argument("words", nargs=-1, metavar="KIND/NAME...|FILE...", shell_complete=references_begun)
@files_flag("File, folder or - (standard input) that names the objects.")
@namespace_option("The namespace of the objects.")
@dry_run_option
@wait_option
@click.option("--ignore-not-found", is_flag=True, help="An object that is not there is no failure.")
@output_option
@gives_orders
def command(
    *,
    plane: PlaneClient,
    words: tuple[str, ...],
    files: tuple[str, ...],
    namespace: str | None,
    dry_run: bool,
    wait: float | None,
    ignore_not_found: bool,
    output: str,
) -> int:
    """Delete objects from the config store of a control plane: those of these names, or those in files.

    An object is KIND/NAME, KIND/NAMESPACE/NAME, or KIND NAME...; KIND is VirtualService, virtualservices or vs, in any
    case. With --wait the command ends once no proxy has anything of them.

    It needs the role operate, and a control plane with --config-store. Exits with 0, or 1 if an object cannot be
    deleted, or --wait is over before all proxies have answered.
    """
    end = time.monotonic() + (wait or 0.0)
    plane = patient(plane, wait)
    has_failed = False
    answers: list[dict[str, Any]] = []
    for name in _named(plane, words, files, namespace):
        query = {"dryRun": "true" if dry_run else None, "wait": _wait(wait, end) if not dry_run else None}
        status, answer = plane.answer("DELETE", name.path, query)
        if status == _NOT_FOUND and ignore_not_found:
            continue
        if status != 200:
            has_failed = True
            answers.append({"action": "refused", "object": str(name), "status": status, **answer})
            click.echo(refusal("", str(name), status, answer), err=True)
            continue
        answers.append(answer)
        delivery = answer.get("delivery")
        has_failed |= delivery is not None and not delivery["complete"]
        if output == "text":
            shown = report(answer, in_dry_run=dry_run)
            for line in delivery_lines(shown, delivery) if delivery is not None else ():
                click.echo(line, err=not delivery["complete"])
    if output == "json":
        print_value(answers, "json")
    return int(has_failed)


def _wait(wait: float | None, end: float) -> str | None:
    return None if wait is None else f"{max(1.0, end - time.monotonic()):.1f}"


def _named(plane: PlaneClient, words: tuple[str, ...], files: tuple[str, ...], namespace: str | None) -> list[Name]:
    """The objects that are meant. Raises UsageError, and ClickException for files."""
    paths = together(files, filter(is_file, words))
    if paths:
        if not all(map(is_file, words)):
            raise click.UsageError("files name the objects: KIND and NAME exclude them")
        found = [*objects_of(paths, namespace or DEFAULT_NAMESPACE)]
        for each in found:
            if each.problem:
                raise click.ClickException(f"{each.place}: {each.problem}; nothing was deleted")
        return [each.name for each in reversed(found) if each.name is not None]
    if not words:
        raise click.UsageError("name objects by KIND and NAME, or by FILE")
    kind, wanted = references(plane, words, namespace)
    if not wanted:
        raise click.UsageError(f"name the objects of kind {kind} to delete")
    for name in wanted:
        if name.kind in (SERVICE, PROXY):
            raise click.UsageError(f"{name} is not configuration: only objects can be deleted")
    return wanted
