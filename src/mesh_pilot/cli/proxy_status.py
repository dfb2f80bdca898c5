"""``mesh-pilot proxy-status``: the proxies of a running control plane, and the resources each accepted or refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import click

from mesh_pilot.cli.options import address
from mesh_pilot.cli.terminal import coloured, table, width
from mesh_pilot.model.resource import ENVOY_TYPES

SHORT_TYPES = tuple(resource_type.short for resource_type in ENVOY_TYPES.values())
COLUMNS = ("NAME", "TYPE", "ENVOY", "XDS", *SHORT_TYPES, "WITHHELD", "AGENT")
_NONE = "-"
"""An empty cell: in a pipe every line has the same number of words."""

Entry: TypeAlias = "Mapping[str, Any]"
"""A stream, as in ``/debug/syncz``, or a withheld object, as in ``/debug/rejections``."""

NAMED = 3
"""Proxies named beside a withheld object."""


@click.command("proxy-status", context_settings={"show_default": True})
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--pilot", type=address, default="127.0.0.1:8080", help="The control plane's --http-addr.")
@click.option("--output", "-o", type=click.Choice(["text", "json"]), default="text", help="How to print it.")
def command(*, names: tuple[str, ...], pilot: str, output: str) -> int:
    """List connected proxies and whether they accepted their configuration.

    NAME shows only proxies of that name: web-1.shop, web-1 in any namespace, or a pattern such as 'web-*'.

    SYNCED: accepted. STALE: sent, not answered yet. NACK: refused; the proxy keeps its previous configuration, and the
    reason follows below. NOT SENT: requested, but there are no resources. In a pipe every line has all columns, with -
    for empty cells and NOT_SENT in one word; a terminal shows only the types that some proxy requests. Below are also
    internal errors of mesh-pilot, because of which a listed proxy has something stale, or lacks it.

    WITHHELD: the number of objects that the proxy is served in their last accepted version, or without, because it or
    another proxy refused them. They follow below, with file and line, and the proxy's reason.

    AGENT: the version of mesh-pilot proxy beside it.

    Exits with 0, or with 1 if a listed proxy refuses something, something is withheld from it, no proxy has the name,
    or the control plane does not answer.
    """
    everything = sorted(_streams(pilot), key=lambda entry: str(entry["proxy"]))
    shown = [entry for entry in everything if not names or any(_has_name(entry, name) for name in names)]
    if names and not shown:
        known = ", ".join(sorted({str(entry["proxy"]) for entry in everything}))
        raise click.ClickException(f"no connected proxy is called {' or '.join(names)}; connected: {known or 'none'}")
    objects = _quarantined(pilot) if any(entry.get("withheld") for entry in shown) else {}
    if output == "json":
        click.echo(json.dumps([_as_json(entry, objects) for entry in shown], indent=2, ensure_ascii=False))
    elif shown:
        _print(shown, objects)
    else:
        click.echo("no proxy is connected")
    return int(any("NACK" in entry["status"].values() or _count_withheld(entry) for entry in shown))


def _streams(pilot: str) -> Sequence[Entry]:
    """The control plane's list of streams. Raises ClickException if it is not available."""
    return _ask(pilot, "/debug/syncz", lambda found: [e for e in found if e["proxy"] and isinstance(e["status"], dict)])


def _quarantined(pilot: str) -> Mapping[tuple[str, str], Entry]:
    """The withheld objects, by name and by what they are withheld from."""
    found = _ask(pilot, "/debug/rejections", lambda found: found["quarantined"])
    return {_object_key(entry): entry for entry in found if "object" in entry}


def _object_key(entry: Entry) -> tuple[str, str]:
    return entry["object"], entry["from"]


def _ask(pilot: str, path: str, read: Callable[[Any], Sequence[Entry]]) -> Sequence[Entry]:
    """A list on a page. Raises ClickException if it is not available."""
    import httpx

    url = f"http://{pilot}{path}"
    hint = "--pilot takes the address of its web page (--http-addr, by default 127.0.0.1:8080)"
    try:
        reply = httpx.get(url, trust_env=False, timeout=10)
    except httpx.ConnectError as error:
        raise click.ClickException(f"cannot ask {url}: {error}; is it running? {hint}") from None
    except (httpx.ReadError, httpx.RemoteProtocolError):
        raise click.ClickException(f"what listens on {pilot} does not speak HTTP/1.1: {hint}") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise click.ClickException(f"cannot ask {url}: {error or type(error).__name__}") from None
    if reply.status_code != 200:
        raise click.ClickException(f"{url} answers {reply.status_code} {reply.reason_phrase}: {hint}")
    try:
        return read(reply.json())
    except (ValueError, TypeError, KeyError):
        raise click.ClickException(f"{url} is not a page of mesh-pilot: {hint}") from None


def _has_name(entry: Entry, name: str) -> bool:
    full = str(entry["proxy"])
    return fnmatchcase(full, name) or fnmatchcase(full.partition(".")[0], name)


def _count_withheld(entry: Entry) -> int:
    return len(entry.get("withheld", ())) + len(entry.get("trial", ()))


def _as_json(entry: Entry, objects: Mapping[tuple[str, str], Entry]) -> Mapping[str, object]:
    """The format described in ``docs/operating.md``."""
    refused = ("type", "at", "resources", "reason", "configs", "held")
    quarantined = ("object", "where", "fields", "from", "since", "served", "proxy", "type", "resources", "reason")
    withheld = (objects.get(_object_key(named), named) for named in entry.get("withheld", ()))
    return {
        "proxy": entry["proxy"],
        "id": entry["proxy_id"],
        "type": entry["proxy_type"],
        "envoy": entry["proxy_version"],
        "agent": entry.get("agent", ""),
        "xds": entry["xds"],
        "connected_at": entry["connected_at"],
        "status": {name: entry["status"][name] for name in SHORT_TYPES if name in entry["status"]},
        "refused": [{key: record.get(key, "") for key in refused} for record in entry.get("refused", ())],
        "withheld": [{key: each[key] for key in quarantined if key in each} for each in withheld],
        "trial": list(entry.get("trial", ())),
        "failing": list(entry.get("failing", ())),
    }


def _print(entries: Sequence[Entry], objects: Mapping[tuple[str, str], Entry]) -> None:
    columns = width()
    rows = [_row(entry) for entry in entries]
    if columns is None:
        lines = table([COLUMNS, *([cell.replace(" ", "_") for cell in row] for row in rows)])
    else:
        used = [
            index
            for index, name in enumerate(COLUMNS)
            if name not in (*SHORT_TYPES, "WITHHELD", "AGENT") or any(r[index] != _NONE for r in rows)
        ]
        lines = table([[row[index] for index in used] for row in (COLUMNS, *rows)])
        if max(map(len, lines)) > columns:
            lines = [line for entry in entries for line in _stacked(entry)]
    for line in lines:
        click.echo(coloured(coloured(line, "NACK", fg="red"), "STALE", fg="yellow"))
    for entry in entries:
        for record in entry.get("refused", ()):
            made_from = f" (made from {', '.join(record['configs'])})" if record["configs"] else ""
            click.echo(f"\n{entry['proxy']} refuses {record['type']} {', '.join(record['resources'])}{made_from}:")
            click.echo(f"  {' '.join(str(record['reason']).split())}")
            if record.get("held"):
                click.echo(f"  on hold: {record['held']}")
        if entry.get("trial"):
            click.echo(f"\n{entry['proxy']} is served without {', '.join(entry['trial'])} for a moment,")
            click.echo("  to find the object that it refuses")
    _print_withheld(entries, objects)
    _print_failing(entries)


def _print_withheld(entries: Sequence[Entry], objects: Mapping[tuple[str, str], Entry]) -> None:
    """Each withheld object once, with the proxies that it is withheld from."""
    proxies: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        for named in entry.get("withheld", ()):
            proxies.setdefault(_object_key(named), []).append(entry["proxy"])
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


def _row(entry: Entry) -> list[str]:
    status = entry["status"]
    cells = [entry["proxy"], entry["proxy_type"], entry["proxy_version"], entry["xds"]]
    cells += [status.get(name, "") for name in SHORT_TYPES]
    cells += [str(_count_withheld(entry) or ""), entry.get("agent", "")]
    return [cell or _NONE for cell in cells]


def _stacked(entry: Entry) -> list[str]:
    """A proxy in two lines, for terminals too narrow for the table: its name, and the types by state."""
    by_state: dict[str, list[str]] = {}
    for name in SHORT_TYPES:
        if name in entry["status"]:
            by_state.setdefault(entry["status"][name], []).append(name)
    if count := _count_withheld(entry):
        by_state["withheld:"] = [str(count)]
    states = ", ".join(f"{state} {' '.join(names)}" for state, names in by_state.items())
    who = " ".join(filter(None, (entry["proxy"], entry["proxy_type"], entry["proxy_version"], entry["xds"])))
    return [who, f"  {states or 'asked for nothing'}"]
