"""Outbound route tables of sidecars, by the name under which listeners ask for them (see ``TableName``).

A table is put together from encoded shards of its virtual hosts, so that a change encodes one shard again.
"""

from __future__ import annotations

from mesh_pilot.envoy.routes.catch_all import catch_all
from mesh_pilot.envoy.routes.split import split_table
from mesh_pilot.envoy.routes.virtual_host import EncodedShard, encode_shard, joined_table, route_table
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.virtual_hosts.sidecar_tables import (
    TableShard,
    parse_table,
    planned_hosts,
    shard_hosts,
    table_shards,
)
from mesh_pilot.model.resource import Resource
from mesh_pilot.world import View


@derived
def route_configuration(view: View, scope: OutboundScope, name: str) -> Resource | None:
    """The route table of this name for a scope; None if no sidecar can have a table of this name."""
    table = parse_table(name)
    if table is None:
        return None
    if scope.split and not table.sniffed:
        return split_table(view, name)
    if table.sniffed:
        return route_table(view, name, planned_hosts(view, scope, table))
    last = catch_all(view, scope.sidecar)
    return joined_table(name, [_encoded_shard(view, shard) for shard in table_shards(view, scope, table)], last)


@derived
def _encoded_shard(view: View, shard: TableShard) -> EncodedShard:
    return encode_shard(view, shard_hosts(view, shard))
