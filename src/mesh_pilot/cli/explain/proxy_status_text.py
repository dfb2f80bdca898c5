"""The table of ``mesh-pilot proxy-status``, and what follows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import click

from mesh_pilot.cli.lib.terminal import coloured, plain, table, width
from mesh_pilot.model.resource import ENVOY_TYPES

SHORT_TYPES = tuple(resource_type.short for resource_type in ENVOY_TYPES.values())
COLUMNS = ("NAME", "TYPE", "ENVOY", "XDS", *SHORT_TYPES, "WITHHELD", "AGENT", "AGE")
PILOT = "PILOT"
"""The column of the control plane, where several are asked."""
COLOURS = {"NACK": "red", "WARMING": "yellow", "STALE": "yellow"}
_NONE = "-"
"""An empty cell: in a pipe every line has the same number of words."""

Entry: TypeAlias = "Mapping[str, Any]"
"""A stream, as in ``/api/v1/proxies``, or a withheld object, as in ``/api/v1/rejections``."""

NAMED = 3
"""Proxies named next to a withheld object."""


def print_status(entries: Sequence[Entry], objects: Mapping[tuple[str, str], Entry], *, several: bool) -> None:
    """Print the table, the reasons of refusals, and what is withheld; `several`: with the control plane of each."""
    # A pipe gets every column, so that scripts can count on them. A terminal gets those in use, and where even they do
    # not fit, a block of lines for each proxy.
    columns = width()
    names = (*COLUMNS, PILOT) if several else COLUMNS
    now = datetime.now(UTC)
    rows = [_row(entry, now)[: len(names)] for entry in entries]
    if columns is None:
        lines = table([names, *([cell.replace(" ", "_") for cell in row] for row in rows)])
    else:
        used = [
            index
            for index, name in enumerate(names)
            if name not in (*SHORT_TYPES, "WITHHELD", "AGENT") or any(r[index] != _NONE for r in rows)
        ]
        lines = _fitting(columns, [[row[index] for index in used] for row in (names, *rows)])
        if max(map(len, lines)) > columns:
            lines = [line for entry in entries for line in _stacked(entry)]
    for line in lines:
        for word, colour in COLOURS.items():
            line = coloured(line, word, fg=colour)
        click.echo(line)
    for entry in entries:
        for record in entry.get("refused", ()):
            made_from = f" (made from {', '.join(record['configs'])})" if record["configs"] else ""
            click.echo(f"\n{entry['proxy']} refuses {record['type']} {', '.join(record['resources'])}{made_from}:")
            click.echo(f"  {' '.join(str(record['reason']).split())}")
            if record.get("held"):
                click.echo(f"  on hold: {record['held']}")
        for record in entry.get("warming", ()):
            waits_for = ", ".join(record["waits_for"]) or "something else"
            click.echo(f"\n{entry['proxy']} has accepted {record['type']} {record['resource']} and does not use it:")
            click.echo(f"  it waits for {waits_for}, {record['seconds']} s or more by now")
            if record.get("held"):
                click.echo(f"  on hold: {record['held']}")
        if entry.get("trial"):
            click.echo(f"\n{entry['proxy']} is briefly served without {', '.join(entry['trial'])},")
            click.echo("  to find the object that it refuses")
    _print_withheld(entries, objects)
    _print_failing(entries)
    _print_equal_names(entries)


def _print_withheld(entries: Sequence[Entry], objects: Mapping[tuple[str, str], Entry]) -> None:
    """Each withheld object once, with the proxies that it is withheld from."""
    proxies: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        for named in entry.get("withheld", ()):
            proxies.setdefault(object_key(named), []).append(entry["proxy"])
    for key, names in proxies.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        click.echo(f"\n{key[0]} is withheld from {', '.join(names[:NAMED])}{more}")
        if key in objects:
            found = objects[key]
            places = ", ".join(filter(None, (found["where"], *found["fields"])))
            click.echo(f"  {places or 'no file'}; since {found['since']}; served instead: {found['served']}")
            what = " ".join((found["type"], *found["resources"][:NAMED]))
            click.echo(f"  {found['proxy']} refused {what}: {' '.join(str(found['reason']).split())}")


def _print_failing(entries: Sequence[Entry]) -> None:
    """Each internal error once, with the proxies that it concerns."""
    concerned: dict[str, dict[str, None]] = {}
    for entry in entries:
        for record in entry.get("failing", ()):
            failure = f"internal error: {record['failure']}: {record['error']}"
            concerned.setdefault(failure, {})[str(entry["proxy"])] = None
    for failure, proxies in concerned.items():
        names = list(proxies)
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        click.echo(f"\n{failure}\n  at {', '.join(names[:3])}{more}")


def _print_equal_names(entries: Sequence[Entry]) -> None:
    """Each name that several proxies have, with what they can be asked for by."""
    of_name: dict[str, dict[tuple[str, str], str]] = {}
    for entry in entries:
        node, address, addresses = entry["proxy_id"], entry.get("address", ""), entry.get("addresses", ())
        where = "" if address in addresses else f", connected from {address}"
        of_name.setdefault(str(entry["proxy"]), {})[node, address] = f"{node} ({', '.join(addresses)}{where})"
    for name, shown in of_name.items():
        if len(shown) > 1:
            click.echo(f"\n{len(shown)} proxies are called {name}: other commands take a node id or an address")
            for line in shown.values():
                click.echo(f"  {plain(line)}")


def _row(entry: Entry, now: datetime) -> list[str]:
    status = entry["status"]
    cells = [entry["proxy"], entry["proxy_type"], entry["proxy_version"], entry["xds"]]
    cells += [status.get(name, "") for name in SHORT_TYPES]
    cells += [str(count_withheld(entry) or ""), entry.get("agent", ""), _age(entry["connected_at"], now)]
    return [plain(str(cell)) or _NONE for cell in (*cells, entry["pilot"])]


def _fitting(columns: int, rows: Sequence[Sequence[str]]) -> list[str]:
    """A table; without the column AGE if it is too wide with it."""
    lines = table(rows)
    age = rows[0].index("AGE")
    return lines if max(map(len, lines)) <= columns else table([[*row[:age], *row[age + 1 :]] for row in rows])


def _age(connected_at: str, now: datetime) -> str:
    """The time since then in its two largest units: ``3d4h``, ``12m5s``."""
    try:
        seconds = max(0, int((now - datetime.fromisoformat(connected_at)).total_seconds()))
    except (ValueError, TypeError):
        return ""
    parts = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    first = next((index for index, (count, _) in enumerate(parts) if count), len(parts) - 1)
    return "".join(f"{count}{unit}" for count, unit in parts[first : first + 2] if count or first == len(parts) - 1)


def count_withheld(entry: Entry) -> int:
    """The number of objects that a proxy is served otherwise than they are in force."""
    return len(entry.get("withheld", ())) + len(entry.get("trial", ()))


def object_key(entry: Entry) -> tuple[str, str]:
    """The name of a withheld object, and what it is withheld from."""
    return entry["object"], entry["from"]


def _stacked(entry: Entry) -> list[str]:
    """A proxy in two lines, for terminals too narrow for the table: its name, and the types by state."""
    by_state: dict[str, list[str]] = {}
    for name in SHORT_TYPES:
        if name in entry["status"]:
            by_state.setdefault(entry["status"][name], []).append(name)
    if count := count_withheld(entry):
        by_state["withheld:"] = [str(count)]
    states = ", ".join(f"{state} {' '.join(names)}" for state, names in by_state.items())
    who = " ".join(filter(None, (entry["proxy"], entry["proxy_type"], entry["proxy_version"], entry["xds"])))
    return [who, f"  {states or 'asked for nothing'}"]
