"""``mesh-pilot delete``: remove objects from a control plane's config store."""

from __future__ import annotations

import time
from typing import Any

import click

from mesh_pilot.cli.lib.options import SectionedCommand, examples
from mesh_pilot.cli.lib.terminal import print_value
from mesh_pilot.cli.plane.admin_flags import gives_orders
from mesh_pilot.cli.plane.client import PlaneClient
from mesh_pilot.cli.plane.config_objects import (
    NO_NAMESPACE,
    Name,
    delivery_lines,
    dry_run_option,
    files_option,
    namespace_option,
    objects_of,
    output_option,
    patient,
    refusal,
    report,
    wait_option,
)

_NOT_FOUND = 404


@click.command(
    "delete",
    cls=SectionedCommand,
    epilog=examples(
        "mesh-pilot delete vs reviews -n shop --wait 30s",
        "mesh-pilot delete VirtualService/reviews -n shop --dry-run",
        "mesh-pilot delete -f reviews.yaml --ignore-not-found",
    ),
)
@click.argument("kind", required=False)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@files_option("File, folder or - (standard input) that names the objects.  Repeatable.", required=False)
@namespace_option("Of the objects.")
@dry_run_option
@wait_option
@click.option("--ignore-not-found", is_flag=True, help="An object that is not there is no failure.")
@output_option
@gives_orders
def command(
    *,
    plane: PlaneClient,
    kind: str | None,
    names: tuple[str, ...],
    files: tuple[str, ...],
    namespace: str,
    dry_run: bool,
    wait: float | None,
    ignore_not_found: bool,
    output: str,
) -> int:
    """Delete objects from the config store of a control plane: those of these names, or those in files.

    KIND is VirtualService, virtualservices or vs, in any case; VirtualService/NAME is one object. With --wait the
    command ends once no proxy has anything of them.

    It needs the role operate, and a control plane with --config-store. Exits with 0, or 1 if an object cannot be
    deleted, or --wait is over before all proxies have answered.
    """
    end = time.monotonic() + (wait or 0.0)
    plane = patient(plane, wait)
    has_failed = False
    answers: list[dict[str, Any]] = []
    for name in _named(kind, names, files, namespace):
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


def _named(kind: str | None, names: tuple[str, ...], files: tuple[str, ...], namespace: str) -> list[Name]:
    """The objects that are meant. Raises UsageError, and ClickException for files."""
    if files:
        if kind is not None:
            raise click.UsageError("-f names the objects: KIND and NAME exclude it")
        found = [*objects_of(files, namespace)]
        for each in found:
            if each.problem:
                raise click.ClickException(f"{each.place}: {each.problem}; nothing was deleted")
        return [each.name for each in reversed(found) if each.name is not None]
    if kind is None:
        raise click.UsageError("name objects by KIND and NAME, or by -f FILE")
    kind, _, name = kind.partition("/")
    wanted = (name, *names) if name else names
    if not wanted:
        raise click.UsageError(f"name the objects of kind {kind} to delete")
    from mesh_pilot.istio.kinds import kind_named

    known = kind_named(kind)
    if known is None:
        raise click.ClickException(f"there is no kind {kind!r}: write VirtualService, virtualservices or vs")
    own = NO_NAMESPACE if known.cluster_scoped else namespace
    return [Name(known.name, own, each) for each in wanted]
