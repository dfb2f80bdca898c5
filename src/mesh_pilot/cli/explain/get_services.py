"""``mesh-pilot get services``: the services of a control plane, merged over their sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from mesh_pilot.cli.lib.terminal import plain, print_value, table
from mesh_pilot.cli.plane.client import PlaneClient
from mesh_pilot.cli.plane.references import DEFAULT_NAMESPACE, Name, service_named

HEAD = ("NAMESPACE", "HOST", "PORTS", "ENDPOINTS", "REGISTRY")


def print_services(
    plane: PlaneClient, wanted: Sequence[Name], namespace: str | None, output: str, *, all_namespaces: bool
) -> int:
    """Print all services of a namespace, or those that are named; the exit code."""
    space = None if all_namespaces else namespace or DEFAULT_NAMESPACE
    if wanted:
        rows = [_row(plane, service_named(plane, each)) for each in wanted]
    else:
        rows = plane.items("/services", namespace=space)
    if output in ("json", "yaml"):
        print_value(rows, output)
        return 0
    for line in _lines(rows, output):
        click.echo(plain(line))
    if not rows:
        click.echo(f"No services{f' in namespace {space}' if space else ''}.", err=True)
    return 0


def _lines(rows: Sequence[dict[str, Any]], output: str) -> list[str]:
    if output == "name":
        return [f"service/{row['host']}" for row in rows]
    return table([HEAD, *([plain(cell) for cell in _cells(row)] for row in rows)]) if rows else []


def _row(plane: PlaneClient, name: Name) -> dict[str, Any]:
    rows = plane.items("/services", q=name.name, namespace=name.namespace)
    return next(row for row in rows if row["host"] == name.name)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    ports = ", ".join(f"{port['number']}/{port['protocol']}" for port in row["ports"])
    healthy = f"{row['healthy']}/{row['endpoints']}"
    return row["namespace"], row["host"], ports, healthy, row["registry"]
