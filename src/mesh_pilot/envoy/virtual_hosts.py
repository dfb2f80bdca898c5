"""The virtual hosts of one route table as resources, for proxies that get them so (``route.split``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mesh_pilot.envoy.gateways import gateway_table_hosts
from mesh_pilot.envoy.patches.hosts import patched_host
from mesh_pilot.envoy.patches.resources import Task
from mesh_pilot.envoy.route.planned import Share, share_hosts
from mesh_pilot.envoy.route.split import catch_all_plan, host_plan
from mesh_pilot.envoy.routes import parse_table, table_shares
from mesh_pilot.envoy.scope import Plan, Plans, Scope, Workload, joined
from mesh_pilot.world import View

HostsCall = tuple[Callable[..., Plan | Plans], tuple[Any, ...]]
"""A translator of names of tables to their virtual hosts, and the key before the name."""


def sidecar_hosts(view: View, scope: Scope, table: str) -> Plans:
    """Those of a sidecar's table; none where the table is sent whole, or can't be a sidecar's."""
    parsed = parse_table(table)
    if parsed is None or parsed.sniffed:
        return ()
    shares = ((_share_plan, (table, share)) for share in table_shares(view, scope, parsed))
    return (*shares, (catch_all_plan, (table, scope.sidecar)))


def _share_plan(view: View, table: str, share: Share) -> Plan:
    return host_plan(table, share_hosts(view, share))


def gateway_hosts(view: View, workload: Workload, table: str) -> Plan:
    """Those of a router's table; none where no server has it."""
    return host_plan(table, view.get(gateway_table_hosts, workload, table))


def patched_hosts(view: View, task: Task, base: HostsCall, table: str) -> Plan:
    """The virtual hosts of a table with patches; ``base`` is a translator of names of tables."""
    function, key = base
    planned: Plan | Plans = view.get(function, *key, table)
    plan = joined(view, planned) if isinstance(planned, tuple) else planned
    return {name: (patched_host, (task, call)) for name, call in plan.items()}
