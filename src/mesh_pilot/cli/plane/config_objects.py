"""Objects for ``mesh-pilot apply``, ``get`` and ``delete``: read from files, named in paths of the API, reported."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from mesh_pilot.cli.lib.options import duration
from mesh_pilot.cli.lib.terminal import plain
from mesh_pilot.cli.plane.client import PlaneClient
from mesh_pilot.cli.plane.references import NO_NAMESPACE, Name

if TYPE_CHECKING:
    from mesh_pilot.istio.reading.yaml import Document

MARGIN_SECONDS = 60.0
"""The time that an answer may take besides the wait that was asked for."""

NAMED = 5
"""Proxies that are named."""


@attrs.frozen
class FileObject:
    """An object of a file, or why there is none."""

    place: str
    """File and line."""
    name: Name | None = None
    document: dict[str, Any] = attrs.field(factory=dict, repr=False)
    problem: str = ""
    """Why it cannot be read."""
    passed_over: str = ""
    """The kind, if it is one that is not read."""


wait_option = click.option(
    "--wait", type=duration, metavar="DURATION", help="Wait until all proxies have it, at most this long: 30s."
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Check everything at the control plane, change nothing.")
output_option = click.option(
    "--output", "-o", type=click.Choice(["text", "json"]), default="text", help="How to print what was done."
)


def patient(plane: PlaneClient, wait: float | None) -> PlaneClient:
    """The client with the time that such an answer may take."""
    return attrs.evolve(plane, timeout_seconds=(wait or 0.0) + MARGIN_SECONDS)


def objects_of(paths: Sequence[str], namespace: str) -> Iterator[FileObject]:
    """The objects of files and folders, in order. Raises ClickException for a path that cannot be read."""
    for path in paths:
        for file, data in _contents(path):
            yield from _objects_in(file, data, namespace)


def _contents(path: str) -> Iterator[tuple[str, bytes]]:
    from mesh_pilot.sources.files.roots import ConfigRoot, read_file

    if path == "-":
        yield "stdin", sys.stdin.buffer.read()
        return
    try:
        if not Path(path).is_dir():
            yield path, read_file(Path(path))
            return
        listing = ConfigRoot(path, "files").list(set())
        for file, reason in listing.faults.items():
            raise click.ClickException(f"{file}: {reason}")
        for file in sorted(listing.units):
            yield file, read_file(Path(file))
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror or error}") from None


def _objects_in(file: str, data: bytes, namespace: str) -> Iterator[FileObject]:
    from mesh_pilot.model.config import ConfigError, Origin
    from mesh_pilot.sources.config_store.documents import objects_in

    for found in objects_in(data, Origin("files", file)):
        if isinstance(found, ConfigError):
            yield FileObject(str(found.origin), problem="; ".join(map(str, found.problems)))
        else:
            yield _file_object(file, found, namespace)


def _file_object(file: str, found: Document, namespace: str) -> FileObject:
    from mesh_pilot.istio.kinds import KindError, lookup

    # The order is that of usefulness: a file without apiVersion is not an object at all, one of an unknown kind belongs
    # to somebody else and is passed over, and only then is a missing name a mistake.
    place, data = f"{file}:{found.line}", dict(found.data)
    api_version, written = str(data.get("apiVersion") or ""), str(data.get("kind") or "")
    metadata = data.get("metadata")
    try:
        kind = lookup(api_version, written) if api_version and written else None
    except KindError as error:
        return FileObject(place, problem=str(error))
    if not (api_version and written):
        return FileObject(place, problem="apiVersion or kind is missing")
    if kind is None:
        return FileObject(place, passed_over=f"{api_version} {written}")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str) or not metadata["name"]:
        return FileObject(place, problem="metadata.name is missing")
    own = NO_NAMESPACE if kind.cluster_scoped else str(metadata.get("namespace") or namespace)
    return FileObject(place, Name(kind.name, own, metadata["name"]), data)


def delivery_lines(name: str, delivery: dict[str, Any]) -> Iterator[str]:
    """How far a change has come, for people."""
    reached = f"{delivery['have']} of {delivery['proxies']} proxies have it"
    if delivery["revision"]:
        reached += f" (revision {delivery['revision']}, sent to {delivery['sent']})"
    if delivery["complete"]:
        yield f"{name}: {reached}"
        return
    yield f"{name}: NOT everywhere: {reached}"
    if delivery["waiting"]:
        more = f" and {delivery['waiting'] - NAMED} more" if delivery["waiting"] > NAMED else ""
        yield f"  no answer from {', '.join(map(plain, delivery['waiting_names'][:NAMED]))}{more}"
    for each in delivery["nacks"][:NAMED]:
        yield f"  refused by {plain(each['proxy'])} ({each['type']}): {plain(each['reason'])}"
    if delivery["reason"]:
        yield f"  {plain(delivery['reason'])}"


def report(answer: dict[str, Any], *, in_dry_run: bool) -> str:
    """One line on standard output for what was done, and on standard error for each warning."""
    name = plain(str(answer["object"])).replace("//", "/")
    suffix = " (dry run)" if in_dry_run else ""
    click.echo(f"{name} {answer['action']}{suffix}")
    for warning in answer["warnings"]:
        path = f"{warning['path']}: " if warning["path"] else ""
        click.echo(f"warning: {name}: {plain(path + warning['reason'])}", err=True)
    return name


def refusal(place: str, name: str, status: int, answer: Any) -> str:
    """An object that the control plane has refused, for people: a line, and one for each problem."""
    problems = [each for each in answer.get("problems") or () if each["severity"] == "error"]
    where = f"{place}: " if place else ""
    if not problems:
        return f"{where}{name} refused: {plain(str(answer.get('error') or status))}"
    lines = [f"{each['path']}: {each['reason']}" if each["path"] else each["reason"] for each in problems]
    return "\n".join([f"{where}{name} refused:", *(f"  {plain(line)}" for line in lines)])
