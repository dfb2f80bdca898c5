"""What the swarm reads of responses: their fields by hand, and of resources only the names that others are found by.

Every result is remembered by the bytes it came from, so that a hundred clients that are sent the same cost one reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import attrs
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_components_pb2 as rc
from envoy.config.route.v3 import route_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from envoy.extensions.filters.network.tcp_proxy.v3 import tcp_proxy_pb2

PREFIX = "type.googleapis.com/envoy.config."
CDS = PREFIX + "cluster.v3.Cluster"
EDS = PREFIX + "endpoint.v3.ClusterLoadAssignment"
LDS = PREFIX + "listener.v3.Listener"
RDS = PREFIX + "route.v3.RouteConfiguration"
VHDS = PREFIX + "route.v3.VirtualHost"
TYPES = {"CDS": CDS, "EDS": EDS, "LDS": LDS, "RDS": RDS, "VHDS": VHDS}
SHORT = {url: short for short, url in TYPES.items()}


@attrs.frozen
class Item:
    """One resource as it came."""

    name: str
    version: str
    """Of Delta; empty in State of the World."""
    body: bytes


@attrs.frozen(eq=False)
class Content:
    """What a response says of resources; the same object for the same content, whatever its nonce."""

    items: tuple[Item, ...]
    removed: tuple[str, ...]


@attrs.frozen(eq=False)
class Message:
    """A response of either variant."""

    type_url: str
    version: str
    nonce: str
    content: Content


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Each field between two offsets: its number, where its content starts and ends; of numbers, the value twice."""
    while at < end:
        tag, at = varint(data, at)
        match tag & 7:
            case 2:
                size, at = varint(data, at)
                yield tag >> 3, at, at + size
                at += size
            case 0:
                value, at = varint(data, at)
                yield tag >> 3, value, value
            case 1:
                at += 8
            case 5:
                at += 4
            case kind:
                raise ValueError(f"wire type {kind} at {at}")


def varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7


@lru_cache(maxsize=64)
def read_message(data: bytes, delta: bool) -> Message:
    """A ``DiscoveryResponse``, or a ``DeltaDiscoveryResponse``."""
    texts = {1: "", 4: "", 5: ""}
    items, removed = [], []
    for number, start, end in fields(data, 0, len(data)):
        if number == 2:
            items.append(_delta_item(data, start, end) if delta else _item(data, start, end, ""))
        elif number in texts:
            texts[number] = data[start:end].decode()
        elif number == 6 and delta:
            removed.append(data[start:end].decode())
    return Message(texts[4], texts[1], texts[5], _content(tuple(items), tuple(removed)))


@lru_cache(maxsize=64)
def _content(items: tuple[Item, ...], removed: tuple[str, ...]) -> Content:
    return Content(items, removed)


def _delta_item(data: bytes, at: int, end: int) -> Item:
    name = version = ""
    item = None
    for number, start, stop in fields(data, at, end):
        if number == 3:
            name = data[start:stop].decode()
        elif number == 1:
            version = data[start:stop].decode()
        elif number == 2:
            item = _item(data, start, stop, "")
    return Item(name or (item.name if item else ""), version, item.body if item else b"")


def _item(data: bytes, at: int, end: int, version: str) -> Item:
    """From an ``Any``; every type of resource has its name as field 1."""
    for number, start, stop in fields(data, at, end):
        if number == 2:
            for inner, name_start, name_end in fields(data, start, stop):
                if inner == 1:
                    return Item(data[name_start:name_end].decode(), version, data[start:stop])
            return Item("", version, data[start:stop])
    return Item("", version, b"")


@lru_cache(maxsize=100_000)
def endpoints_name(cluster: bytes) -> str:
    """Of a ``Cluster``: by what name it gets its endpoints over EDS; empty when it does not."""
    name = service_name = ""
    is_eds = False
    for number, start, end in fields(cluster, 0, len(cluster)):
        if number == 1:
            name = cluster[start:end].decode()
        elif number == 2:
            is_eds = start == 3
        elif number == 3:
            for inner, at, stop in fields(cluster, start, end):
                if inner == 2:
                    service_name = cluster[at:stop].decode()
    return (service_name or name) if is_eds else ""


@attrs.frozen
class References:
    """What a resource names."""

    routes: frozenset[str] = frozenset()
    clusters: frozenset[str] = frozenset()


@lru_cache(maxsize=10_000)
def listener_references(listener: bytes) -> References:
    message = listener_pb2.Listener.FromString(listener)
    routes: set[str] = set()
    clusters: set[str] = set()
    chains = [*message.filter_chains]
    if message.HasField("default_filter_chain"):
        chains.append(message.default_filter_chain)
    for any_config in [filter_.typed_config for chain in chains for filter_ in chain.filters]:
        if any_config.type_url.endswith(".HttpConnectionManager"):
            manager = hcm_pb2.HttpConnectionManager.FromString(any_config.value)
            if manager.HasField("rds"):
                routes.add(manager.rds.route_config_name)
            clusters |= _clusters_of(manager.route_config)
        elif any_config.type_url.endswith("tcp_proxy.v3.TcpProxy"):
            proxy = tcp_proxy_pb2.TcpProxy.FromString(any_config.value)
            clusters |= {proxy.cluster} if proxy.cluster else {c.name for c in proxy.weighted_clusters.clusters}
    return References(frozenset(routes), frozenset(clusters))


@lru_cache(maxsize=64)
def route_references(route: bytes) -> References:
    return References(clusters=frozenset(_clusters_of(route_pb2.RouteConfiguration.FromString(route))))


@lru_cache(maxsize=100_000)
def host_references(host: bytes) -> References:
    return References(clusters=frozenset(_clusters_of_host(rc.VirtualHost.FromString(host))))


@lru_cache(maxsize=1000)
def is_split(route: bytes) -> bool:
    """True if the virtual hosts of a table come by themselves."""
    return any(number == 9 for number, _, _ in fields(route, 0, len(route)))


def table_of(host: str) -> str:
    """The table that a virtual host which comes on its own is in."""
    return host.rpartition("/")[0]


def _clusters_of(message: route_pb2.RouteConfiguration) -> set[str]:
    return {name for host in message.virtual_hosts for name in _clusters_of_host(host)}


def _clusters_of_host(host: rc.VirtualHost) -> set[str]:
    found: set[str] = set()
    for route in host.routes:
        action = route.route
        if action.cluster:
            found.add(action.cluster)
        found.update(weighted.name for weighted in action.weighted_clusters.clusters)
        found.update(mirror.cluster for mirror in action.request_mirror_policies if mirror.cluster)
    return found
