"""Outbound route tables of sidecars, by the name under which listeners ask for them.

``8080`` is the table for all HTTP services on a port, ``host:8080`` the one for a service whose protocol is detected,
``http_proxy`` that of the explicit HTTP proxy, and a Unix socket's address that of a Sidecar's egress listener there.

Which virtual hosts a table has is worked out in shares (see ``route.planned``), and it is put together from those.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from mesh_pilot.envoy.routes.catch_all import catch_all
from mesh_pilot.envoy.routes.planned import Source, TableShard, port_is_used, share_hosts, shares, sniffed_hosts
from mesh_pilot.envoy.routes.split import split_table
from mesh_pilot.envoy.routes.virtual_host import EncodedShard, PlannedHost, encode_shard, joined_table, route_table
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.names import UNIX_PREFIX
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.sidecar_scope import Egress, egress_listeners
from mesh_pilot.model.resource import Resource
from mesh_pilot.model.service import Protocol
from mesh_pilot.world import View

HTTP_PROXY = "http_proxy"

MAX_PORT = 65535


@attrs.frozen(cache_hash=True)
class Table:
    """What a table's name says."""

    port: int = 0
    """0: all ports (HTTP proxies, Unix sockets)."""
    sniffed: str = ""
    """``host:port`` of the one service that it is for."""
    bind: str = ""


@derived
def route_configuration(view: View, scope: OutboundScope, name: str) -> Resource | None:
    """The route table of this name for a scope; None for names that no table of a sidecar can have."""
    table = parse_table(name)
    if table is None:
        return None
    if scope.split and not table.sniffed:
        return split_table(view, name)
    if table.sniffed:
        return route_table(view, name, planned_hosts(view, scope, table))
    last = catch_all(view, scope.sidecar)
    return joined_table(name, [_piece(view, share) for share in table_shares(view, scope, table)], last)


@derived
def planned_hosts(view: View, scope: OutboundScope, table: Table) -> tuple[PlannedHost, ...]:
    """The virtual hosts of a table, without the one for everything else."""
    if table.sniffed:
        source = _source(view, scope, table)
        host = table.sniffed.rpartition(":")[0]
        return sniffed_hosts(view, source, host, table.sniffed) if source is not None else ()
    return tuple(host for share in table_shares(view, scope, table) for host in share_hosts(view, share))


def table_shares(view: View, scope: OutboundScope, table: Table) -> tuple[TableShard, ...]:
    """The shares of the virtual hosts of a table that is for more than one service.

    A table may be asked for while its listener goes away: it is empty then.
    """
    source = _source(view, scope, table)
    if source is None or (source.port and not port_is_used(view, scope, source.egress, source.port)):
        return ()
    return shares(view, source)


def _source(view: View, scope: OutboundScope, table: Table) -> Source | None:
    egress = _egress_for(egress_listeners(view, scope), table)
    if egress is None:
        return None
    # An explicit HTTP proxy is asked for every port.
    return Source(scope, egress, 0 if egress.protocol is Protocol.HTTP_PROXY else table.port)


@derived
def _piece(view: View, share: TableShard) -> EncodedShard:
    return encode_shard(view, share_hosts(view, share))


def parse_table(name: str) -> Table | None:
    """What a table's name says; None if it is not one of a sidecar's."""
    if name == HTTP_PROXY:
        return Table()
    if name.startswith(UNIX_PREFIX):
        return Table(bind=name)
    host, colon, number = name.rpartition(":")
    # Ports have five digits: to read more of them as a number takes long.
    if not number.isdecimal() or len(number) > 5 or not 0 < int(number) <= MAX_PORT or (colon and not host):
        return None
    return Table(int(number), name if colon else "")


def _egress_for(listeners: Iterable[Egress], table: Table) -> Egress | None:
    """The listener that a table belongs to: the one on its port, else the first that catches all."""
    for egress in listeners:
        if not egress.port and not egress.bind.startswith(UNIX_PREFIX):
            return egress
        if table.port and egress.port == table.port:
            return egress
        if table.bind and egress.bind == table.bind:
            return egress
    return None
