"""Routes, as ``istioctl proxy-config routes`` lists them."""

from __future__ import annotations

from collections.abc import Sequence

from mesh_pilot.base.reading import as_object, as_objects, as_string, as_strings
from mesh_pilot.explain.inspection.dump import ConfigDump, DumpedResource, Message
from mesh_pilot.explain.inspection.listings.listing import Listing, Row, listing, named
from mesh_pilot.model.resource import ROUTE, plain_table_name

COLUMNS = ("NAME", "VHOST NAME", "DOMAINS", "MATCH", "VIRTUAL SERVICE")
SHORT_COLUMNS = ("NAME", "VIRTUAL HOSTS")

DOMAINS = 2
"""Domains named in a cell; the others are counted."""

PASSTHROUGH = "PassthroughCluster"


def list_routes(dump: ConfigDump, name: str = "", *, verbose: bool = True) -> Listing:
    """The route tables, by number and name; `verbose`: with their routes, but for those to where clients called."""
    found = sorted((each for each in _tables(dump) if name in ("", each.name, plain_table_name(each.name))), key=_order)
    if not verbose:
        rows = [Row((each.name, str(len(as_objects(each.message, "virtual_hosts")))), each) for each in found]
        return listing(dump, SHORT_COLUMNS, rows)
    return listing(dump, COLUMNS, [row for each in found for row in _rows(dump, each)])


def _tables(dump: ConfigDump) -> list[DumpedResource]:
    """All tables; those in use with the virtual hosts that came over VHDS."""
    plain, whole = dump.in_use(ROUTE), dump.routes
    return [whole[each.name] if plain.get(each.name) is each else each for each in dump.of(ROUTE)]


def _order(table: DumpedResource) -> tuple[bool, int, str]:
    name = plain_table_name(table.name)
    number = int(name) if name.isascii() and name.isdigit() and len(name) < 6 else 0
    return not number, number, table.name


def _rows(dump: ConfigDump, table: DumpedResource) -> list[Row]:
    rows = []
    for host in as_objects(table.message, "virtual_hosts"):
        name, domains = as_string(host, "name"), describe_domains(as_strings(host, "domains"))
        routes = as_objects(host, "routes")
        keys = host_objects(dump, table, host) if dump.object_hosts else None
        service = named(keys or (), "VirtualService")
        for route in routes:
            if as_object(route, "route").get("cluster") != PASSTHROUGH:
                match = describe_match(as_object(route, "match"))
                rows.append(Row((table.name, name, domains, match, service), table, keys))
        if not routes:
            rows.append(Row((table.name, name, domains, "/*", "404"), table, keys))
    return rows


def host_objects(dump: ConfigDump, table: DumpedResource, host: Message) -> tuple[str, ...]:
    """The objects of a table that are for one of its virtual hosts: of each kind the one with the closest host."""
    name = as_string(host, "name").rpartition("/")[2]
    names = {name, name.rpartition(":")[0], *as_strings(host, "domains")}
    best: dict[str, tuple[int, str]] = {}
    for key in table.made_from:
        kind = key.partition("/")[0]
        for pattern in dump.object_hosts.get(key, ()):
            closeness = len(pattern) + 1000 * (pattern in names)
            if closeness > best.get(kind, (0, ""))[0] and (pattern in names or _covers(pattern, names)):
                best[kind] = (closeness, key)
    return tuple(key for key in table.made_from if key in {chosen for _, chosen in best.values()})


def _covers(pattern: str, names: set[str]) -> bool:
    return pattern.startswith("*") and any(name.endswith(pattern[1:]) for name in names)


def describe_domains(domains: Sequence[str]) -> str:
    """The domains of a virtual host: the first without a port, without longer forms of the same name."""
    if len(domains) <= 1:
        return "".join(domains)
    without_port = [each for each in domains if ":" not in each or each.endswith("]")]
    known = set(without_port)
    shown = [each for each in without_port if not any(_is_longer(each, end, known) for end in _SUFFIXES)]
    more = f" + {len(shown) - DOMAINS} more..." if len(shown) > DOMAINS else ""
    return ", ".join(shown[:DOMAINS]) + more


_SUFFIXES = (".svc.cluster.local", ".svc")


def _is_longer(domain: str, suffix: str, known: set[str]) -> bool:
    return domain.endswith(suffix) and domain.removesuffix(suffix) in known


def describe_match(match: Message) -> str:
    """The paths that a route is for: ``/api*``, ``PathPrefix:/api``, ``regex ...``. Headers are left out."""
    found = []
    if prefix := as_string(match, "prefix"):
        found.append(f"{prefix}*")
    if prefix := as_string(match, "path_separated_prefix"):
        found.append(f"PathPrefix:{prefix}")
    if path := as_string(match, "path"):
        found.append(path)
    if regex := as_string(match, "safe_regex", "regex"):
        found.append(f"regex {regex}")
    return " ".join(found)
