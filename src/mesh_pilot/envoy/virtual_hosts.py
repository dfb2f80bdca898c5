"""The virtual hosts of one route table as resources, for proxies that get them so (``route.split``)."""

from __future__ import annotations

from mesh_pilot.envoy.gateways import gateway_table_hosts
from mesh_pilot.envoy.patches.hosts import patched_host
from mesh_pilot.envoy.patches.resources import Task
from mesh_pilot.envoy.route.planned import Share, share_hosts
from mesh_pilot.envoy.route.split import catch_all_plan, host_plan
from mesh_pilot.envoy.routes import parse_table, table_shares
from mesh_pilot.envoy.scope import Plan, Plans, Scope, Workload, joined
from mesh_pilot.incremental import ByName, derived
from mesh_pilot.world import View


@derived
def sidecar_hosts(view: View, scope: Scope, table: str) -> Plans:
    """Those of a sidecar's table; none where the table is sent whole, or can't be a sidecar's."""
    parsed = parse_table(table)
    if parsed is None or parsed.sniffed:
        return ()
    shares = (_share_plan.query(table, share) for share in table_shares(view, scope, parsed))
    return (*shares, catch_all_plan.query(table, scope.sidecar))


@derived
def _share_plan(view: View, table: str, share: Share) -> Plan:
    return host_plan(table, share_hosts(view, share))


@derived
def gateway_hosts(view: View, workload: Workload, table: str) -> Plan:
    """Those of a router's table; none where no server has it."""
    return host_plan(table, gateway_table_hosts(view, workload, table))


@derived
def patched_hosts(view: View, task: Task, base: ByName[Plan | Plans], table: str) -> Plan:
    """The virtual hosts of a table with patches; ``base`` has those of any table, without."""
    planned = base.query(table).get(view)
    plan = joined(view, planned) if isinstance(planned, tuple) else planned
    return {name: patched_host.query(task, call) for name, call in plan.items()}
