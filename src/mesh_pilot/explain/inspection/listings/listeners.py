"""Listeners, as ``istioctl proxy-config listeners`` lists them: a row for each filter chain."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from mesh_pilot.base.reading import as_object, as_objects, as_string, as_strings
from mesh_pilot.explain.inspection.datagrams import datagram_clusters, is_udp
from mesh_pilot.explain.inspection.dump import ConfigDump, DumpedResource, Message, number_of
from mesh_pilot.explain.inspection.listings.endpoints import address_of
from mesh_pilot.explain.inspection.listings.listing import Listing, Row, listing
from mesh_pilot.explain.inspection.listings.routes import describe_match
from mesh_pilot.model.resource import LISTENER

COLUMNS = ("ADDRESSES", "PORT", "MATCH", "DESTINATION")
SHORT_COLUMNS = ("ADDRESSES", "PORT", "TYPE")

HTTP_FILTER = ".HttpConnectionManager"
TCP_FILTER = ".TcpProxy"
BLACK_HOLE = "BlackHoleCluster"

_ALPN = {
    ("http/1.0", "http/1.1", "h2c"): "App: HTTP",
    ("istio", "istio-http/1.0", "istio-http/1.1", "istio-h2"): "App: Istio HTTP Plain",
    ("http/1.0", "http/1.1", "h2c", "istio-http/1.0", "istio-http/1.1", "istio-h2"): "App: HTTP TLS",
    ("istio-peer-exchange", "istio"): "App: TCP TLS",
}
"""The lists of ALPN names that Istio's listeners have, and what they stand for."""


@attrs.frozen
class ListenerFilter:
    """The listeners to list; what is empty lets all through."""

    address: str = ""
    port: int = 0
    type: str = ""
    """``HTTP``, ``TCP``, ``HTTP+TCP``, ``UDP`` or ``UNKNOWN``."""


def list_listeners(dump: ConfigDump, wanted: ListenerFilter, *, verbose: bool = True) -> Listing:
    """The listeners by port, address and type; `verbose`: with the match and destination of each filter chain."""
    found = [resource for resource in dump.of(LISTENER) if _admits(wanted, resource.message)]
    found.sort(key=lambda each: (_port(each.message), addresses(each.message), listener_type(each.message)))
    if not verbose:
        rows = [Row((*_where(each.message), listener_type(each.message)), each) for each in found]
        return listing(dump, SHORT_COLUMNS, rows)
    return listing(dump, COLUMNS, [row for each in found for row in _rows(each)])


def filter_chains(listener: Message) -> list[Message]:
    """The filter chains, the default one last."""
    default = as_object(listener, "default_filter_chain")
    return [*as_objects(listener, "filter_chains"), *([default] if default else [])]


def addresses(listener: Message) -> list[str]:
    """The addresses that a listener has, or stands for."""
    further = [as_object(each, "address") for each in as_objects(listener, "additional_addresses")]
    first = as_object(listener, "address")
    return [address_of(each)[0] for each in (first, *further) if each]


def listener_type(listener: Message) -> str:
    """``HTTP``, ``TCP``, ``HTTP+TCP``, ``UDP`` or ``UNKNOWN``. A chain that only closes connections does not count."""
    if is_udp(listener):
        return "UDP"
    found = set()
    for chain in filter_chains(listener):
        for _, config in _filters(chain):
            kind = as_string(config, "@type")
            if kind.endswith(HTTP_FILTER):
                found.add("HTTP")
            elif kind.endswith(TCP_FILTER) and config.get("cluster") != BLACK_HOLE:
                found.add("TCP")
    return "+".join(sorted(found)) or "UNKNOWN"


def match_of(chain: Message) -> str:
    """The connections that a filter chain is for: ``SNI: a.test; Trans: tls; Addr: 10.0.0.1/32:80``."""
    match = as_object(chain, "filter_chain_match")
    found = []
    if names := as_strings(match, "server_names"):
        found.append(f"SNI: {','.join(names)}")
    if transport := as_string(match, "transport_protocol"):
        found.append(f"Trans: {transport}")
    if protocols := as_strings(match, "application_protocols"):
        found.append(_ALPN.get(tuple(protocols), f"App: {','.join(protocols)}"))
    port = f":{number_of(match.get('destination_port'))}" if match.get("destination_port") else ""
    ranges = _ranges(match.get("prefix_ranges"))
    if ranges or port:
        found.append(f"Addr: {','.join(ranges) or '*'}{port}")
    if sources := _ranges(match.get("source_prefix_ranges")):
        found.append(f"Source: {','.join(sources)}")
    return "; ".join(found) or "ALL"


def destination_of(chain: Message) -> str:
    """The destination of a filter chain: ``Route: 9080``, ``Cluster: outbound|...``."""
    for _, config in _filters(chain):
        kind = as_string(config, "@type")
        if kind.endswith(HTTP_FILTER):
            return _http(config)
        if kind.endswith(TCP_FILTER):
            return _tcp(config)
    return "Non-HTTP/Non-TCP"


def _http(manager: Message) -> str:
    if name := as_string(manager, "rds", "route_config_name"):
        return f"Route: {name}"
    table = as_object(manager, "route_config")
    if not table:
        return "HTTP"
    hosts = as_objects(table, "virtual_hosts")
    if cluster := _only_cluster(hosts):
        return _cluster(cluster)
    shown = []
    for host in hosts:
        domains = as_strings(host, "domains")
        matches = ", ".join(describe_match(as_object(route, "match")) for route in as_objects(host, "routes"))
        shown.append(matches if domains == ["*"] else f"{'/'.join(domains)} {matches}")
    return f"Inline Route: {'; '.join(shown)}"


def _only_cluster(hosts: Sequence[Message]) -> str:
    """The cluster of a table that sends everything to it."""
    if len(hosts) != 1 or as_strings(hosts[0], "domains") != ["*"]:
        return ""
    routes = as_objects(hosts[0], "routes")
    if len(routes) != 1 or as_object(routes[0], "match").get("prefix") != "/":
        return ""
    return as_string(routes[0], "route", "cluster")


def _tcp(proxy: Message) -> str:
    if cluster := as_string(proxy, "cluster"):
        return _cluster(cluster)
    weighted = as_objects(proxy, "weighted_clusters", "clusters")
    shares = [f"{as_string(each, 'name')} {number_of(each.get('weight'))}" for each in weighted]
    return f"Clusters: {', '.join(shares)}" if shares else "TCP"


def _datagrams(shares: Sequence[tuple[str, float]]) -> str:
    if len(shares) == 1:
        return _cluster(shares[0][0])
    return f"Clusters: {', '.join(f'{name} {share:.3g}%' for name, share in shares)}" if shares else "UDP"


def _cluster(name: str) -> str:
    return name if "Cluster" in name else f"Cluster: {name}"


def _filters(chain: Message) -> list[tuple[str, Message]]:
    """The network filters of a chain: their names and settings."""
    return [(as_string(each, "name"), as_object(each, "typed_config")) for each in as_objects(chain, "filters")]


def _ranges(value: object) -> list[str]:
    return [f"{as_string(each, 'address_prefix')}/{number_of(each.get('prefix_len'))}" for each in as_objects(value)]


def _rows(resource: DumpedResource) -> list[Row]:
    where = _where(resource.message)
    if is_udp(resource.message):
        return [Row((*where, "UDP", _datagrams(datagram_clusters(resource.message))), resource)]
    chains = [(match_of(chain), destination_of(chain)) for chain in filter_chains(resource.message)]
    if not chains:
        return [Row((*where, "", ""), resource)]
    return [Row((*where, *chain), resource) for chain in sorted(chains, key=lambda chain: chain[1], reverse=True)]


def _where(listener: Message) -> tuple[str, str]:
    return ",".join(addresses(listener)), str(_port(listener) or "")


def _port(listener: Message) -> int:
    return address_of(listener.get("address"))[1]


def _admits(wanted: ListenerFilter, listener: Message) -> bool:
    return (
        (not wanted.address or wanted.address.lower() in [address.lower() for address in addresses(listener)])
        and wanted.port in (0, _port(listener))
        and wanted.type.lower() in ("", listener_type(listener).lower())
    )
