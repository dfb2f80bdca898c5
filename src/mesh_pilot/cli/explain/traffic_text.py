"""The table of ``mesh-pilot traffic``, and the lines around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from mesh_pilot.cli.lib.terminal import coloured, plain, table, width
from mesh_pilot.cli.lib.traffic_cells import success
from mesh_pilot.model.counts import counted, short_rate

COLUMNS = ("CALLER", "CALLED", "UNIT", "A SECOND", "SUCCESS", "BEFORE", "IN FLIGHT", "NOTES")
UNUSED_IF_ALIKE = {"UNIT": "requests", "IN FLIGHT": "-", "NOTES": "-"}
"""Columns that a terminal does not show where every cell is this."""

WORSE = "worse"

LISTENERS = 5
"""Listeners in which requests ended that are listed."""

NOTED = {
    "timeouts": "timeouts",
    "retries": "retries",
    "none_healthy": "without a healthy endpoint",
    "connect_failures": "connections refused or timed out",
}


def print_traffic(found: Mapping[str, Any]) -> None:
    """Print the answer for people."""
    edges = found["edges"]
    if found["advice"]:
        click.echo(found["advice"])
    elif not edges:
        click.echo("no calls in the last minute, and none ten minutes ago")
    else:
        before = f"against {found['before_seconds']:g} s up to ten minutes ago"
        against = before if found["before_seconds"] else "the first that is known"
        click.echo(f"The last {found['seconds']:g} s, {against}.")
        for service in found["services"]:
            for line in service_lines(service):
                click.echo(plain(line))
        click.echo()
        for line in _lines(edges):
            click.echo(coloured(line, WORSE, fg="red"))
    for line in _notes(found):
        click.echo(plain(line))


def _lines(edges: list[dict[str, Any]]) -> list[str]:
    rows = [[plain(cell) or "-" for cell in _cells(edge)] for edge in edges]
    if width() is None:
        return table([[name.replace(" ", "_") for name in COLUMNS], *([c.replace(" ", "_") for c in r] for r in rows)])
    used = [
        index
        for index, name in enumerate(COLUMNS)
        if name not in UNUSED_IF_ALIKE or any(row[index] != UNUSED_IF_ALIKE[name] for row in rows)
    ]
    return table([[row[index] for index in used] for row in (COLUMNS, *rows)])


def _cells(edge: Mapping[str, Any]) -> Iterator[str]:
    caller, called = edge["caller"], edge["called"]
    has_space = caller["kind"] not in ("namespace", "proxy") and caller["namespace"]
    yield f"{caller['name']}.{caller['namespace']}" if has_space else caller["name"]
    port = f":{called['port']}" if called["port"] else ""
    yield f"{called['name']}{port}{'/' if called['subset'] else ''}{called['subset']}"
    yield edge["unit"]
    yield short_rate(edge["per_second"])
    yield success(edge)
    yield success(edge["before"]) if edge["before"] is not None else ""
    yield str(edge["in_flight"] or "")
    notes = [WORSE] if edge["is_worse"] else []
    notes += [f"{edge[name]:,} {words}" for name, words in NOTED.items() if edge[name]]
    notes += [f"policies denied {edge['denied']:,} calls there"] if edge["denied"] else []
    notes += ["some proxies only"] if edge["is_partial"] else []
    notes += ["incomplete"] if not edge["is_complete"] else []
    yield ", ".join(notes)


def service_lines(service: Mapping[str, Any]) -> Iterator[str]:
    """The calls to a service in lines: its callers' sum, what its own proxies counted, and what policies denied."""
    name, unit = service["service"]["name"], service["unit"]
    share = success(service)
    calls = f"{short_rate(service['per_second'])} {unit} a second from {counted(service['callers'], 'workload')}"
    yield f"{name}: {calls}{f', {share} of them succeed' if share else ''}"
    inbound = service["inbound"]
    if inbound is not None:
        shared = ", with other services at the same port" if service["is_shared"] else ""
        text = f"  its own proxies counted {short_rate(inbound['per_second'])} {inbound['unit']} a second{shared}"
        outside = f"; {service['outside']:,} came from outside the mesh" if service["outside"] else ""
        yield f"{text}{outside}"
    if service["denied"]:
        yield f"  policies denied {service['denied']:,} calls"
    if not service["routed_by"]:
        yield "  no VirtualService or route names it"


def _worst(listeners: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(listeners, key=lambda row: -row["no_route"] - row["no_cluster"])[:LISTENERS]


def _lost(row: Mapping[str, Any]) -> str:
    """A listener in which requests ended, in a line."""
    ends = [f"{counted(row['no_route'], 'request')} matched no route (404)"] if row["no_route"] else []
    if row["no_cluster"]:
        ends.append(f"{counted(row['no_cluster'], 'request')} went to a cluster that does not exist (503)")
    return f"{row['proxy']} at {row['listener']}: {', '.join(ends)}"


def _notes(found: Mapping[str, Any]) -> Iterator[str]:
    """Lines that say what is not in the table."""
    lines = [_lost(row) for row in _worst(found["listeners"])]
    if len(found["listeners"]) > LISTENERS:
        lines.append(f"and at {len(found['listeners']) - LISTENERS} more listeners")
    if found["edges"] and not found["is_complete"]:
        lines.append("Counts are incomplete: some proxies began to report within this time, or lost an interval.")
    if found["by_load_reports"]:
        of = counted(found["by_load_reports"], "proxy sends", "proxies send")
        lines.append(f"{of} load reports alone, which tell attempts: run the Envoy by mesh-pilot proxy for requests.")
    if found["silent"] and not found["advice"]:
        lines.append(f"{counted(found['silent'], 'connected proxy reports', 'connected proxies report')} nothing:")
        lines += [f"  {each['proxy']}: {each['why']}" for each in found["silent_proxies"]]
        if found["silent"] > len(found["silent_proxies"]):
            lines.append("  and others; all: mesh-pilot request GET '/api/v1/traffic/proxies?state=nothing'")
    if lines:
        yield ""
        yield from lines
