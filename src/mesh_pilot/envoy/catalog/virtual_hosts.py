"""The virtual hosts of a route table as resources (VHDS), for proxies with ``OutboundScope.split``."""

from __future__ import annotations

from mesh_pilot.envoy.gateway.routes import gateway_table_hosts
from mesh_pilot.envoy.routes.virtual_host import catch_all_plan, host_plan
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.proxy.scope import OutboundScope, Plan, PlanShards, Workload
from mesh_pilot.mesh.virtual_hosts.sidecar_tables import TableShard, parse_table, shard_hosts, table_shards
from mesh_pilot.world import View


@derived
def sidecar_hosts(view: View, scope: OutboundScope, table: str) -> PlanShards:
    """A table's virtual hosts for a sidecar; none if the table contains them, or is no table of sidecars."""
    parsed = parse_table(table)
    if parsed is None or parsed.sniffed:
        return ()
    shards = (_shard_plan.query(table, shard) for shard in table_shards(view, scope, parsed))
    return (*shards, catch_all_plan.query(table, scope.sidecar))


@derived
def _shard_plan(view: View, table: str, shard: TableShard) -> Plan:
    return host_plan(table, shard_hosts(view, shard))


@derived
def gateway_hosts(_: View, workload: Workload, table: str) -> PlanShards:
    """The virtual hosts of a router's table; none if no server has such a table."""
    return (_gateway_plan.query(workload, table),)


@derived
def _gateway_plan(view: View, workload: Workload, table: str) -> Plan:
    return host_plan(table, gateway_table_hosts(view, workload, table))
