"""``mesh-pilot proxy-status``: the proxies of control planes, and the resources each accepted or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import click

from mesh_pilot.cli.explain.proxy_status_text import SHORT_TYPES, Entry, count_withheld, object_key, print_status
from mesh_pilot.cli.lib.options import SectionedCommand, examples, output_option
from mesh_pilot.cli.lib.terminal import WATCH_SECONDS, print_value, watched
from mesh_pilot.cli.plane.client import PlaneClient, asks_planes
from mesh_pilot.cli.plane.completion import proxies
from mesh_pilot.cli.plane.envoy_admin import ADMIN, EnvoyAdmin, admin_address


@click.command(
    "proxy-status",
    cls=SectionedCommand,
    context_settings={"show_default": True},
    epilog=examples(
        "mesh-pilot proxy-status",
        "mesh-pilot ps 'web-*' -w",
        "mesh-pilot proxy-status --pilot 10.0.0.1:8080 --pilot 10.0.0.2:8080 -o json",
        "mesh-pilot proxy-status web-1.shop --diff --admin 127.0.0.1:15000",
        "ssh web-1 curl -s localhost:15000/config_dump?include_eds | mesh-pilot ps web-1.shop --file -",
    ),
)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=proxies)
@asks_planes
@output_option
@click.option("--watch", "-w", is_flag=True, help=f"Print it again every {WATCH_SECONDS:g} seconds, until Ctrl-C.")
@click.option("--diff", is_flag=True, help="Compare what one Envoy has with what it was sent; see --admin and --file.")
@click.option(
    "--admin", metavar="ADDRESS", callback=admin_address, help=f"Envoy's admin interface.  [default: {ADMIN}]"
)
@click.option("--file", "-f", metavar="DUMP", help="A file with the Envoy's config dump, - for standard input.")
def command(
    *,
    names: tuple[str, ...],
    planes: Sequence[PlaneClient],
    output: str,
    watch: bool,
    diff: bool,
    admin: str | None,
    file: str | None,
) -> int:
    """List connected proxies and whether they accepted their configuration.

    NAME shows only proxies of that name: web-1.shop, web-1 in any namespace, or a pattern such as 'web-*'; or the one
    of a node id or an address.

    SYNCED: accepted. STALE: sent, not answered yet. NACK: refused; the proxy keeps its previous configuration, and the
    reason follows below. WARMING: accepted, but not in use after 10 s; what it waits for follows below. NOT SENT:
    requested, but there are no resources. In a pipe every line has all columns, with - for empty cells and NOT_SENT in
    one word; a terminal shows only the types that some proxy requests. Below are also internal errors of mesh-pilot,
    because of which a listed proxy has something stale, or lacks it, and names that several proxies have.

    WITHHELD: the number of objects that the proxy is served in their last accepted version, or without, because it or
    another proxy refused them. They follow below, with file and line, and the proxy's reason.

    AGENT: the version of its mesh-pilot proxy. AGE: for how long it has been connected. PILOT: the control plane
    that it is connected to, if several are asked.

    With --diff, --admin or --file and one NAME: the difference between what the Envoy has and what it was sent, as a
    unified diff of each resource, from the control plane's to Envoy's. An Envoy in sync has none.

    Exits with 0, or with 1 if a listed proxy refuses something or does not use what it accepted, something is withheld
    from it, no proxy has the name, an Envoy has not what it was sent, or a control plane does not answer.
    """
    # Each of the three flags asks for the comparison, as nobody names an Envoy for anything else. It reads one Envoy.
    if diff or admin or file:
        from mesh_pilot.cli.explain.proxy_status_diff import print_differences

        if admin and file:
            raise click.UsageError("--admin and --file exclude each other")
        if len(names) != 1 or len(planes) != 1 or watch:
            raise click.UsageError("a comparison is of one proxy at one control plane, without --watch: name it")
        return print_differences(planes[0], names[0], EnvoyAdmin(admin or ADMIN) if not file else None, file, output)
    if watch:
        watched(lambda: _show(names, planes, output))
    return _show(names, planes, output)


def _show(names: Sequence[str], planes: Sequence[PlaneClient], output: str) -> int:
    """Print the proxies once; the exit code."""
    # A plane that does not answer must not look like one without proxies, so it counts in the exit code; what the
    # others say is printed all the same. Withheld objects are asked for only where a shown proxy has some: the page is
    # large.
    everything, silent = _streams(planes)
    shown = [entry for entry in everything if not names or any(_has_name(entry, name) for name in names)]
    if names and not shown:
        known = ", ".join(sorted({str(entry["proxy"]) for entry in everything}))
        raise click.ClickException(f"no connected proxy is called {' or '.join(names)}; connected: {known or 'none'}")
    objects = _quarantined(
        [each for each in planes if any(e["pilot"] == each.address and e.get("withheld") for e in shown)]
    )
    if output != "text":
        print_value([_as_json(entry, objects) for entry in shown], output)
    elif shown:
        print_status(shown, objects, several=len(planes) > 1)
    else:
        click.echo("no proxy is connected")
    bad = any("NACK" in e["status"].values() or e.get("warming") or count_withheld(e) for e in shown)
    return int(bad or silent)


def _streams(planes: Sequence[PlaneClient]) -> tuple[list[Entry], bool]:
    """The streams of all planes by name, and whether a plane does not answer; raises ClickException if none does."""
    found: list[Entry] = []
    errors: list[click.ClickException] = []
    for plane in planes:
        try:
            entries = _ask(
                plane, "/proxies", lambda page: [e for e in page if e["proxy"] and isinstance(e["status"], dict)]
            )
        except click.ClickException as error:
            errors.append(error)
            continue
        found += [{**entry, "pilot": plane.address} for entry in entries]
    if len(errors) == len(planes):
        raise errors[0]
    for each in errors:
        click.echo(f"mesh-pilot: {each.format_message()}", err=True)
    return sorted(found, key=lambda entry: (str(entry["proxy"]), entry["pilot"])), bool(errors)


def _quarantined(planes: Sequence[PlaneClient]) -> Mapping[tuple[str, str], Entry]:
    """The withheld objects, by name and by what they are withheld from."""
    found = [entry for plane in planes for entry in _ask(plane, "/rejections", lambda page: page["quarantined"])]
    return {object_key(entry): entry for entry in found if "object" in entry}


def _ask(plane: PlaneClient, path: str, read: Callable[[Any], Sequence[Entry]]) -> Sequence[Entry]:
    """A list of the API. Raises ClickException if it is not available."""
    try:
        return read(plane.get(path))
    except (ValueError, TypeError, KeyError):
        hint = "--pilot takes the address of its web page (--http-addr, by default 127.0.0.1:8080)"
        raise click.ClickException(f"what answers at {plane.address} is not mesh-pilot's API: {hint}") from None


def _has_name(entry: Entry, name: str) -> bool:
    full = str(entry["proxy"])
    exact = (entry["proxy_id"], entry.get("address"), *entry.get("addresses", ()))
    return name in exact or fnmatchcase(full, name) or fnmatchcase(full.partition(".")[0], name)


def _as_json(entry: Entry, objects: Mapping[tuple[str, str], Entry]) -> Mapping[str, object]:
    """The format described in ``docs/operating.md``."""
    refused = ("type", "at", "resources", "reason", "configs", "held")
    quarantined = ("object", "where", "fields", "from", "since", "served", "proxy", "type", "resources", "reason")
    withheld = (objects.get(object_key(named), named) for named in entry.get("withheld", ()))
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
        "warming": list(entry.get("warming", ())),
        "withheld": [{key: each[key] for key in quarantined if key in each} for each in withheld],
        "trial": list(entry.get("trial", ())),
        "failing": list(entry.get("failing", ())),
        "pilot": entry["pilot"],
    }
