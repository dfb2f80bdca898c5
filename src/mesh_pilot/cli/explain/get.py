"""``mesh-pilot get``: the objects of a control plane, as kubectl shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import click

from mesh_pilot.base.suggestions import did_you_mean
from mesh_pilot.cli.explain.get_services import print_services
from mesh_pilot.cli.lib.options import SectionedCommand, examples
from mesh_pilot.cli.lib.terminal import plain, print_value, table
from mesh_pilot.cli.plane.client import PlaneClient, asks_a_plane
from mesh_pilot.cli.plane.completion import namespace_option
from mesh_pilot.cli.plane.completion import references as begun
from mesh_pilot.cli.plane.config_objects import patient
from mesh_pilot.cli.plane.references import DEFAULT_NAMESPACE, NO_NAMESPACE, PROXY, SERVICE, Name, references
from mesh_pilot.model.counts import counted


@click.command(
    "get",
    cls=SectionedCommand,
    epilog=examples(
        "mesh-pilot get vs -A",
        "mesh-pilot get VirtualService reviews -n shop -o yaml > reviews.yaml",
        "mesh-pilot get dr -n shop -o name",
        "mesh-pilot get services -A",
    ),
)
@click.argument("words", nargs=-1, required=True, metavar="KIND [NAME]...|KIND/NAME...", shell_complete=begun)
@namespace_option("The namespace of the objects.")
@click.option("--all-namespaces", "-A", is_flag=True, help="Objects of all namespaces.")
@click.option(
    "--output", "-o", type=click.Choice(["table", "yaml", "json", "name"]), default="table", help="How to print them."
)
@asks_a_plane
def command(
    *,
    plane: PlaneClient,
    words: tuple[str, ...],
    namespace: str | None,
    all_namespaces: bool,
    output: str,
) -> int:
    """Print objects of a KIND: all of a namespace, or those of these names.

    KIND is VirtualService, virtualservices or vs, in any case; KIND/NAME and KIND/NAMESPACE/NAME are one object. The
    table has the objects of all sources with their STATE: whether proxies have them as they are written, and if not,
    why. FINDINGS counts what mesh-pilot analyze says about each. yaml and json have each object as it is in the config
    store, with its version as metadata.resourceVersion for mesh-pilot apply. Services (svc) are those of all sources,
    merged, with the number of healthy endpoints and of all.

    Exits with 0, or 1 if an object that is named is not there.
    """
    kind, names = references(plane, words, namespace)
    if len({kind, *(each.kind for each in names)}) > 1:
        raise click.UsageError("objects of one kind at a time can be printed")
    if names and all_namespaces:
        raise click.UsageError("an object that is named is in one namespace: --all-namespaces excludes NAME")
    # As kubectl: what is there is printed even where something else that was named is missing, which only the exit code
    # and standard error tell; and no objects of a kind is not an error.
    plane = patient(plane, None)
    if kind == PROXY:
        raise click.UsageError("mesh-pilot proxy-status lists proxies, and mesh-pilot describe proxy describes one")
    if kind == SERVICE:
        return print_services(plane, names, namespace, output, all_namespaces=all_namespaces)
    everywhere = ["" if all_namespaces else namespace or DEFAULT_NAMESPACE]
    spaces = sorted({each.namespace for each in names}) or everywhere
    rows = [row for space in spaces for row in _listed(plane, kind, space)]
    missing: list[Name] = []
    if names:
        by_name = {Name(kind, row["namespace"] or NO_NAMESPACE, row["name"]): row for row in rows}
        missing = [each for each in names if each not in by_name]
        rows = [by_name[each] for each in names if each in by_name]
    if output == "table":
        _print_table(rows, _findings(plane) if rows else {}, all_namespaces)
    elif output == "name":
        for row in rows:
            click.echo(plain(f"{row['kind']}/{row['name']}"))
    else:
        for row in rows:
            if row["why"]:
                name = f"{row['kind']}/{row['namespace']}/{row['name']}"
                click.echo(plain(f"# {name} is not in force as it is written: {_state(row)}"), err=True)
        _print_objects([_object(plane, row) for row in rows], output, is_list=not names or len(names) > 1)
    for each in missing:
        click.echo(f"mesh-pilot: {_missing(plane, each)}", err=True)
    if not rows and not missing and output == "table":
        where = "" if all_namespaces else f" in namespace {namespace or DEFAULT_NAMESPACE}"
        click.echo(f"No objects of kind {plain(kind)}{where}.", err=True)
    return int(bool(missing))


def _listed(plane: PlaneClient, kind: str, namespace: str) -> list[dict[str, Any]]:
    """The objects in force."""
    from mesh_pilot.istio.kinds import KINDS

    return plane.items("/objects", kind=kind, namespace=None if KINDS[kind].cluster_scoped else namespace or None)


def _missing(plane: PlaneClient, name: Name) -> str:
    """The reason why nothing is printed of an object, and where one of its name is."""
    here = "" if name.namespace == NO_NAMESPACE else f" in namespace {name.namespace}"
    rows = plane.items("/objects", kind=name.kind, q=name.name)
    others = ", ".join(str(row["namespace"]) for row in rows if row["name"] == name.name and row["namespace"])
    near = f"; there is one in {others}: -n" if others else did_you_mean(name.name, (row["name"] for row in rows))
    return f"there is no {name.kind} {name.name}{here}{near}"


def _object(plane: PlaneClient, row: dict[str, Any]) -> Any:
    name = Name(row["kind"], row["namespace"] or NO_NAMESPACE, row["name"])
    return plane.get(name.path)["object"]


def _findings(plane: PlaneClient) -> dict[str, str]:
    """The number of errors and warnings that the analyzers have for objects, by object."""
    found: dict[str, Counter[str]] = {}
    answer = plane.get("/analysis")
    for level in ("errors", "warnings"):
        for row in answer[level]:
            found.setdefault(row.get("object", ""), Counter())[level.removesuffix("s")] += 1
    return {name: ", ".join(counted(n, level) for level, n in counts.items()) for name, counts in found.items()}


def _print_table(rows: list[dict[str, Any]], findings: Mapping[str, str], all_namespaces: bool) -> None:
    if not rows:
        return
    head = ("NAMESPACE",) * all_namespaces + ("NAME", "STATE", "FINDINGS", "WHERE")
    cells = []
    for row in rows:
        told = findings.get("/".join(filter(None, (row["kind"], row["namespace"], row["name"]))), "")
        space = (row["namespace"] or NO_NAMESPACE,) * all_namespaces
        cells.append((*space, row["name"], row["state"], told, row["origin"]))
    for line in table([head, *([plain(cell) for cell in each] for each in cells)]):
        click.echo(line)


def _state(row: dict[str, Any]) -> str:
    return ": ".join(filter(None, (row["state"], row["why"])))


def _print_objects(objects: list[Any], output: str, *, is_list: bool) -> None:
    if output == "json":
        found = {"apiVersion": "v1", "kind": "List", "items": objects} if is_list else next(iter(objects), None)
        if found is not None:
            print_value(found, "json")
        return
    from mesh_pilot.sources.config_store.documents import as_yaml

    for number, each in enumerate(objects):
        click.echo("---\n" * bool(number) + as_yaml(each).decode("utf-8", "replace"), nl=False)
