"""What EnvoyFilters ask for that can't be done: for people, on pages, in metrics and logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mesh_pilot.envoy.patches.hosts import edited_host, patched_host
from mesh_pilot.envoy.patches.parsed import parsed
from mesh_pilot.envoy.patches.patch import PatchProblem
from mesh_pilot.envoy.patches.plans import (
    Membership,
    cluster_membership,
    extension_membership,
    listener_membership,
    patched_clusters,
    patched_extensions,
    patched_listeners,
    patched_route,
)
from mesh_pilot.envoy.patches.resources import (
    Edited,
    edited_cluster,
    edited_listener,
    edited_table,
    patched_cluster,
    patched_listener,
    patched_table,
)
from mesh_pilot.envoy.patches.selection import FilterRef
from mesh_pilot.envoy.scope import Call
from mesh_pilot.envoy.virtual_hosts import patched_hosts
from mesh_pilot.incremental import Query
from mesh_pilot.world.view import View

_MEMBERSHIPS: dict[Callable[..., Any], Callable[..., Membership]] = {
    patched_clusters: cluster_membership,
    patched_listeners: listener_membership,
    patched_extensions: extension_membership,
}
_EDITS: dict[Callable[..., Any], Callable[..., Edited]] = {
    patched_cluster: edited_cluster,
    patched_listener: edited_listener,
    patched_table: edited_table,
    patched_host: edited_host,
}


def problems(view: View, filters: tuple[FilterRef, ...]) -> tuple[PatchProblem, ...]:
    """What is wrong with these EnvoyFilters wherever they are applied. What is said of patches that are for other
    proxies only is left out."""
    return tuple(
        problem
        for ref in filters
        for problem in view.get(parsed, ref.config).problems
        if problem.patch not in ref.skipped
    )


def plan_problems(view: View, plan: Query) -> Iterator[PatchProblem]:
    """What patches could not do to a plan and its resources; nothing for plans without patches."""
    function, key = plan
    membership = _MEMBERSHIPS.get(function)
    if membership is not None:
        held = view.get(membership, *key)
        yield from held.problems
        for call in held.plan.values():
            yield from _call_problems(view, call)
    elif function is patched_hosts:
        for call in view.get(patched_hosts, *key).values():
            yield from _call_problems(view, call)


def table_problems(view: View, tables: Query, names: Iterable[str]) -> Iterator[PatchProblem]:
    """What patches could not do to the route tables of these names; ``tables`` is a translator of names."""
    function, key = tables
    if function is patched_route:
        task, (base, base_key) = key
        for name in names:
            yield from _call_problems(view, (patched_table, (task, (base, (*base_key, name)))))


def _call_problems(view: View, call: Call) -> tuple[PatchProblem, ...]:
    function, key = call
    edited = _EDITS.get(function)
    return view.get(edited, *key).problems if edited is not None else ()
