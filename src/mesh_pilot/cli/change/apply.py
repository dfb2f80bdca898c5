"""``mesh-pilot apply``: put objects of files into a control plane's config store."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from mesh_pilot.cli.lib.file_arguments import takes_files
from mesh_pilot.cli.lib.options import SectionedCommand, examples
from mesh_pilot.cli.lib.terminal import print_value
from mesh_pilot.cli.plane.admin_flags import gives_orders
from mesh_pilot.cli.plane.client import PlaneClient
from mesh_pilot.cli.plane.completion import namespace_option
from mesh_pilot.cli.plane.config_objects import (
    FileObject,
    delivery_lines,
    dry_run_option,
    objects_of,
    output_option,
    patient,
    refusal,
    report,
    wait_option,
)
from mesh_pilot.cli.plane.references import DEFAULT_NAMESPACE, Name


@click.command(
    "apply",
    cls=SectionedCommand,
    epilog=examples(
        "mesh-pilot apply reviews.yaml --wait 30s",
        "mesh-pilot apply mesh/ --dry-run",
        "mesh-pilot get vs reviews -n shop -o yaml | sed 's/weight: 90/weight: 50/' | mesh-pilot apply -",
    ),
)
@takes_files("File, folder or - (standard input) of objects in YAML or JSON.", required=True)
@namespace_option("Namespace of objects that do not name one.")
@dry_run_option
@wait_option
@click.option("--force", is_flag=True, help="Overwrite also what has changed since the object was read.")
@output_option
@gives_orders
def command(
    *,
    plane: PlaneClient,
    files: tuple[str, ...],
    namespace: str | None,
    dry_run: bool,
    wait: float | None,
    force: bool,
    output: str,
) -> int:
    """Create the objects of files in the config store of a control plane, or replace them there.

    Each is told as created, configured, unchanged or refused; one that is refused does not stop the others. An object
    with metadata.resourceVersion, as mesh-pilot get -o yaml prints it, is refused if it has changed since. With --wait
    the command ends once every proxy has accepted what follows from the objects.

    It needs the role operate, and a control plane with --config-store. Exits with 0, or 1 if an object is refused, a
    proxy refuses what follows from one, or --wait is over before all proxies have answered.
    """
    end = time.monotonic() + (wait or 0.0)
    run = _ApplyRun(patient(plane, wait), dry_run, force, output == "text")
    found = [*objects_of(files, namespace or DEFAULT_NAMESPACE)]
    if not found:
        raise click.ClickException(f"there is no object in {', '.join(files)}")
    for each in found:
        run.apply(each)
    if wait is not None and not dry_run:
        for name in run.applied:
            run.wait(name, max(1.0, end - time.monotonic()))
    if output == "json":
        print_value(run.answers, "json")
    return int(run.has_failed)


class _ApplyRun:
    """One run of the command. State: what was applied, what was answered, and whether anything has failed."""

    def __init__(self, plane: PlaneClient, dry_run: bool, force: bool, is_text: bool) -> None:
        self._plane = plane
        self._query = {"dryRun": "true" if dry_run else None, "force": "true" if force else None}
        self._dry_run = dry_run
        self._is_text = is_text
        self.applied: list[Name] = []
        self.answers: list[dict[str, Any]] = []
        self.has_failed = False

    def apply(self, each: FileObject) -> None:
        if each.passed_over:
            click.echo(f"{each.place}: {each.passed_over} passed over: not a kind of configuration", err=True)
            return
        if each.name is None:
            self._refused(each.place, "", 422, {"error": each.problem})
            return
        body = json.dumps(each.document).encode("utf-8", "surrogatepass")
        status, answer = self._plane.answer("PUT", each.name.path, self._query, body)
        if status != 200:
            self._refused(each.place, str(each.name), status, answer)
            return
        self.answers.append({**answer, "file": each.place})
        self.applied.append(each.name)
        if self._is_text:
            report(answer, in_dry_run=self._dry_run)

    def wait(self, name: Name, seconds: float) -> None:
        """Wait until the fleet has an object."""
        status, answer = self._plane.answer("GET", name.path, {"wait": f"{seconds:.1f}"})
        delivery = answer.get("delivery") if status == 200 else None
        if delivery is None:
            self._refused("", str(name), status, answer)
            return
        self.has_failed |= not delivery["complete"]
        next(each for each in self.answers if _names(each["object"], name))["delivery"] = delivery
        if self._is_text:
            for line in delivery_lines(str(name), delivery):
                click.echo(line, err=not delivery["complete"])

    def _refused(self, place: str, name: str, status: int, answer: Any) -> None:
        self.has_failed = True
        self.answers.append({"action": "refused", "file": place, "object": name, "status": status, **answer})
        click.echo(refusal(place, name or "an object", status, answer), err=True)


def _names(key: str, name: Name) -> bool:
    return key in (str(name), f"{name.kind}//{name.name}")
