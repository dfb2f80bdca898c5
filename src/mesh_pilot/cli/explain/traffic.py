"""``mesh-pilot traffic``: who calls whom and how well, against ten minutes ago."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from mesh_pilot.base.suggestions import asked, nearest
from mesh_pilot.cli.explain.traffic_text import print_traffic
from mesh_pilot.cli.lib.options import SectionedCommand, examples, output_option
from mesh_pilot.cli.lib.terminal import WATCH_SECONDS, print_value, watched
from mesh_pilot.cli.plane.client import PlaneClient, asks_planes
from mesh_pilot.cli.plane.completion import namespaces, services_or_proxies
from mesh_pilot.cli.plane.requests import PAGE

SUMMED = (
    *("requests", "errors", "client_errors", "timeouts", "retries", "none_healthy", "connections", "connect_failures"),
    *("attempts", "failed_attempts", "in_flight", "tries", "failures", "per_second"),
)
"""The members of an edge that are summed over control planes."""

NAMED = 3
"""Proxies without reports that are named."""


@click.command(
    "traffic",
    cls=SectionedCommand,
    epilog=examples(
        "mesh-pilot traffic",
        "mesh-pilot traffic -n shop -w",
        "mesh-pilot traffic reviews.shop.svc.cluster.local",
        "mesh-pilot traffic web-1.shop -o json",
        "mesh-pilot traffic --context 'eu-*'",
    ),
)
@click.argument("name", required=False, metavar="[SERVICE|PROXY]", shell_complete=services_or_proxies)
@click.option(
    "--namespace", "-n", metavar="NAMESPACE", shell_complete=namespaces, help="Only calls from it or to its services."
)
@asks_planes
@output_option
@click.option("--watch", "-w", is_flag=True, help=f"Print it again every {WATCH_SECONDS:g} seconds, until Ctrl-C.")
def command(*, name: str | None, namespace: str | None, planes: Sequence[PlaneClient], output: str, watch: bool) -> int:
    """List who calls whom: calls a second, success, and the same ten minutes ago. What got worse comes first.

    SERVICE is the host of a service, or the first part of it: its callers, and what its own proxies counted. PROXY is
    NAME.NAMESPACE or a node id: what this proxy calls. Several control planes are summed.

    Numbers are of the last minute. UNIT is requests where an agent counts them: as the caller saw them, a request with
    retries once. Where there are load reports alone it is attempts, or connections. ? stands for what is not known.
    BEFORE is the success of the oldest minute that is remembered, ten minutes ago if there is as much. "worse" is said
    only of what chance does not explain. Below the table are requests that no route matched, or whose cluster does not
    exist.

    Exits with 0; with 1 if nothing has the name, or a control plane does not answer.
    """
    if watch:
        watched(lambda: _show(name, namespace, planes, output))
    return _show(name, namespace, planes, output)


def _show(name: str | None, namespace: str | None, planes: Sequence[PlaneClient], output: str) -> int:
    """Print it once; the exit code."""
    found: list[dict[str, Any]] = []
    errors: list[click.ClickException] = []
    for plane in planes:
        try:
            found.append(_asked(plane, name, namespace))
        except click.ClickException as error:
            errors.append(error)
    if not found:
        raise errors[0]
    for each in errors:
        click.echo(f"mesh-pilot: {each.format_message()}", err=True)
    whole = _together(found)
    if output != "text":
        print_value(whole, output)
    else:
        print_traffic(whole)
    return int(bool(errors))


def _asked(plane: PlaneClient, name: str | None, namespace: str | None) -> dict[str, Any]:
    """The answer of one plane. Raises ClickException."""
    meant = _meant(plane, name, namespace) if name else {}
    found = _whole(plane, "/traffic", namespace=namespace, **meant)
    services: list[dict[str, Any]] = []
    if "service" in meant:
        services = _whole(plane, "/traffic/services", namespace=namespace, **meant)["items"]
    silent = plane.get("/traffic/proxies", state="nothing", limit=NAMED)["items"] if found["silent"] else []
    lost: list[dict[str, Any]] = []
    if "service" not in meant:
        rows = plane.get("/traffic/listeners", namespace=namespace, limit=PAGE, **meant)["listeners"]["items"]
        lost = [row for row in rows if row["no_route"] or row["no_cluster"]]
    return {**found, "services": services, "silent_proxies": silent, "listeners": lost}


def _whole(plane: PlaneClient, path: str, **query: str | None) -> dict[str, Any]:
    """An answer with the entries of all pieces."""
    found: dict[str, Any] = plane.get(path, limit=PAGE, **query)
    while len(found["items"]) < found["total"]:
        more = plane.get(path, limit=PAGE, offset=len(found["items"]), **query)["items"]
        if not more:
            break
        found["items"] += more
    return found


def _meant(plane: PlaneClient, name: str, namespace: str | None) -> dict[str, str]:
    """The parameters of the API for a service or a proxy. Raises ClickException for a name that is neither's."""
    known = [*_names(plane, name, namespace)]
    wanted = name.lower()
    exact = [each for each in known if each[1].lower() == wanted]
    found = exact or [each for each in known if each[1].lower().startswith(f"{wanted}.")]
    if len({*found}) > 1:
        names = ", ".join(dict.fromkeys(each for _, each in found))
        raise click.ClickException(f"{name} may be {names}; write one of them")
    if not found:
        everything = [row["host"] for row in plane.items("/services", namespace=namespace)]
        everything += [row["proxy"] for row in plane.items("/traffic/proxies", namespace=namespace)]
        by_name = {part: whole for whole in everything for part in (whole.partition(".")[0], whole)}
        where = f" in namespace {namespace}" if namespace else ""
        meant = by_name.get(nearest(name, by_name), "")
        raise click.ClickException(f"neither a service nor a proxy is called {name}{where}{asked(meant)}")
    kind, chosen = found[0]
    return {kind: chosen}


def _names(plane: PlaneClient, name: str, namespace: str | None) -> Iterator[tuple[str, str]]:
    """Services and proxies whose names have this part."""
    for row in plane.items("/services", q=name, namespace=namespace):
        yield "service", row["host"]
    for row in plane.items("/traffic/proxies", q=name, namespace=namespace):
        yield "proxy", row["proxy"]
        if row["proxy_id"] == name:
            yield "proxy", name


# -- several planes


def _together(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The answers of several planes as one: edges with the same ends and the same unit are summed."""
    # Of one plane edges are left as they came. Attempts are never added to requests: they are lines of their own.
    edges = [edge for answer in answers for edge in answer["items"]]
    services = [each for answer in answers for each in answer["services"]]
    return {
        "is_on": any(answer["is_on"] for answer in answers),
        "advice": answers[0]["advice"] if not edges else "",
        "seconds": max(answer["seconds"] for answer in answers),
        "before_seconds": max(answer["before_seconds"] for answer in answers),
        "is_complete": all(answer["is_complete"] for answer in answers),
        **{name: sum(answer[name] for answer in answers) for name in ("by_agents", "by_load_reports", "silent")},
        "silent_proxies": [each for answer in answers for each in answer["silent_proxies"]][:NAMED],
        "services": services,
        "listeners": [each for answer in answers for each in answer["listeners"]],
        "edges": edges if len(answers) == 1 else _summed(edges),
    }


def _summed(edges: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for edge in edges:
        key = (*(str(edge[end][part]) for end in ("caller", "called") for part in edge[end]), edge["unit"])
        groups.setdefault(key, []).append(edge)
    found = [own[0] if len(own) == 1 else _sum_of_edges(own) for own in groups.values()]
    return sorted(found, key=_order)


def _order(edge: dict[str, Any]) -> tuple[bool, float, float]:
    """The place of an edge: what got worse first, as the API has it."""
    failures = edge["failures"] or 0
    more = failures if edge["more_failures"] is None else edge["more_failures"]
    return (not edge["is_worse"], -more if edge["is_worse"] else -failures, -edge["per_second"])


def _sum_of_edges(edges: Sequence[dict[str, Any]]) -> dict[str, Any]:
    now = _sum_of_counts(edges)
    earlier = [edge["before"] for edge in edges if edge["before"] is not None]
    before = _sum_of_counts(earlier) if earlier else None
    rates = now["rate"], before["rate"] if before is not None else None
    return {
        **edges[0],
        **now,
        "before": before,
        "worse_by": rates[0] - rates[1] if None not in rates else None,
        "more_failures": _sum(edge["more_failures"] for edge in edges),
        "is_worse": any(edge["is_worse"] for edge in edges),
        "proxies": sum(edge["proxies"] for edge in edges),
        "denied": _sum(edge["denied"] for edge in edges),
    }


def _sum_of_counts(every: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found = {name: _sum(each[name] for each in every) for name in SUMMED}
    return {
        "unit": every[0]["unit"],
        **found,
        "rate": found["failures"] / found["tries"] if found["tries"] and found["failures"] is not None else None,
        "is_partial": any(each["is_partial"] for each in every),
        "is_complete": all(each["is_complete"] for each in every),
    }


def _sum(every: Iterator[Any]) -> Any:
    """The sum of what is known; None if nothing is."""
    known = [each for each in every if each is not None]
    return sum(known) if known else None
