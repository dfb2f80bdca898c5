"""What EnvoyFilters ask for that can't be done: for people, on pages, in metrics and logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from mesh_pilot.envoy.envoy_filter.hosts import edited_host, patched_host, patched_hosts
from mesh_pilot.envoy.envoy_filter.parsed import parsed
from mesh_pilot.envoy.envoy_filter.patch import PatchProblem
from mesh_pilot.envoy.envoy_filter.plans import (
    Membership,
    cluster_membership,
    extension_membership,
    listener_membership,
    patched_clusters,
    patched_extensions,
    patched_listeners,
    patched_route,
)
from mesh_pilot.envoy.envoy_filter.resources import (
    Edited,
    edited_cluster,
    edited_listener,
    edited_table,
    patched_cluster,
    patched_listener,
    patched_table,
)
from mesh_pilot.incremental import ByName, Derived, Query
from mesh_pilot.mesh.envoy_filter_selection import FilterRef
from mesh_pilot.mesh.proxy.scope import Plan, PlanShards, ResourceQuery
from mesh_pilot.world.view import View

_MEMBERSHIPS: dict[Derived[..., Any], Derived[..., Membership]] = {
    patched_clusters: cluster_membership,
    patched_listeners: listener_membership,
    patched_extensions: extension_membership,
}
_EDITS: dict[Derived[..., Any], Derived[..., Edited]] = {
    patched_cluster: edited_cluster,
    patched_listener: edited_listener,
    patched_table: edited_table,
    patched_host: edited_host,
}


def problems(view: View, filters: tuple[FilterRef, ...]) -> tuple[PatchProblem, ...]:
    """What is wrong with these EnvoyFilters wherever they are applied. What is said of patches that are for other
    proxies only is left out."""
    return tuple(
        problem for ref in filters for problem in parsed(view, ref.config).problems if problem.patch not in ref.skipped
    )


def plan_problems(view: View, plan: Query[Plan | PlanShards]) -> Iterator[PatchProblem]:
    """What patches could not do to a plan and its resources; nothing for plans without patches."""
    membership = _MEMBERSHIPS.get(plan.derived)
    if membership is not None:
        held = membership(view, *plan.args)
        yield from held.problems
        for call in held.plan.values():
            yield from _call_problems(view, call)
    elif plan.derived is patched_hosts:
        for call in patched_hosts(view, *plan.args).values():
            yield from _call_problems(view, call)


def table_problems(view: View, tables: ByName[Any], names: Iterable[str]) -> Iterator[PatchProblem]:
    """What patches could not do to the route tables of these names; nothing for other resources by name."""
    if tables.derived is patched_route:
        task, base = tables.args
        for name in names:
            yield from _call_problems(view, patched_table.query(task, base.query(name)))


def _call_problems(view: View, call: ResourceQuery) -> tuple[PatchProblem, ...]:
    edited = _EDITS.get(call.derived)
    return edited(view, *call.args).problems if edited is not None else ()
