"""Plans with patches: which resources a proxy has once EnvoyFilters have added and removed some.

A name that no patch is for keeps the translator's own call, so that its resource is shared with proxies that have
no EnvoyFilters.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import attrs

from mesh_pilot.envoy.envoy_filter.match import cluster_matches, listener_may_match
from mesh_pilot.envoy.envoy_filter.parsed import patches_for
from mesh_pilot.envoy.envoy_filter.patch import ApplyTo, Operation, Patch, PatchProblem
from mesh_pilot.envoy.envoy_filter.resources import (
    CLUSTER_KINDS,
    PatchTask,
    added,
    listener_kinds,
    patched_cluster,
    patched_listener,
    patched_table,
)
from mesh_pilot.incremental import ByName, Derived, Query, derived
from mesh_pilot.mesh.names import Direction, parse_cluster
from mesh_pilot.mesh.proxy.instances import instances
from mesh_pilot.mesh.proxy.scope import Plan, PlanShards, ResourceQuery, Workload, merged_plan
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.resource import Resource
from mesh_pilot.world.view import View


@attrs.frozen(cache_hash=True)
class PatchedPart:
    """A translator's plan, to be patched for the task that it is for."""

    task: PatchTask
    base: Query[Plan | PlanShards]
    workload: Workload | None = None
    """Whose inbound clusters they are: whose services ``cluster.service`` means."""
    beside: PatchedPart | None = None
    """Another part that a proxy has of the same type: no name may be in both. Given for the part that fewer proxies
    share, so that the other depends on nothing of theirs. What is added for any task is in the other."""


@attrs.frozen
class Membership:
    """Which resources there are."""

    plan: Plan
    problems: tuple[PatchProblem, ...]


Added = tuple[ConfigKey, int]
"""The patch that adds a resource: its EnvoyFilter, and its place there."""


@derived
def patched_clusters(view: View, part: PatchedPart) -> Plan:
    """The clusters of a part."""
    return cluster_membership(view, part).plan


@derived
def patched_listeners(view: View, part: PatchedPart) -> Plan:
    """The listeners of a part. One that a patch removes is planned, and comes out as None."""
    return listener_membership(view, part).plan


@derived
def patched_extensions(view: View, part: PatchedPart) -> Plan:
    """The configs of extensions that a proxy asks for by name."""
    return extension_membership(view, part).plan


@derived
def patched_route(view: View, task: PatchTask, base: ByName[Resource | None], name: str) -> Resource | None:
    """The route table of this name."""
    return patched_table(view, task, base.query(name))


@derived
def cluster_membership(view: View, part: PatchedPart) -> Membership:
    task = part.task
    patches = patches_for(view, task.filters, task.context, CLUSTER_KINDS)
    named = any(p.match.cluster is not None and p.match.cluster.service for p in patches)
    hosts = _hosts_at(view, part.workload) if named and part.workload is not None else {}
    plan: dict[str, ResourceQuery] = {}
    for name, call in _base(view, part).items():
        own = hosts.get(_inbound_port(name), ()) if hosts else ()
        meant = [p for p in patches if cluster_matches(p.match.cluster, name, own)]
        if not any(p.operation is Operation.REMOVE for p in meant):
            merged = any(p.is_merge for p in meant)
            plan[name] = patched_cluster.query(task, own, call) if merged else call
    return _with_added(view, "cluster", cluster_membership, part, plan, patches)


@derived
def listener_membership(view: View, part: PatchedPart) -> Membership:
    task = part.task
    patches = patches_for(view, task.filters, task.context, listener_kinds(task.context))
    plan: dict[str, ResourceQuery] = {}
    for name, call in _base(view, part).items():
        meant = any(listener_may_match(p, name) for p in patches)
        plan[name] = patched_listener.query(task, call) if meant else call
    own = [p for p in patches if p.apply_to is ApplyTo.LISTENER]
    return _with_added(view, "listener", listener_membership, part, plan, own)


@derived
def extension_membership(view: View, part: PatchedPart) -> Membership:
    # Whoever asks for a name gets it, whatever it is for.
    patches = patches_for(view, part.task.filters, None, (ApplyTo.EXTENSION_CONFIG,))
    return _with_added(view, "extension config", extension_membership, part, dict(_base(view, part)), patches)


def _base(view: View, part: PatchedPart) -> Plan:
    found = part.base.get(view)
    return merged_plan(view, found) if isinstance(found, tuple) else found


def _with_added(
    view: View,
    what: str,
    membership: Derived[[PatchedPart], Membership],
    part: PatchedPart,
    plan: dict[str, ResourceQuery],
    patches: Iterable[Patch],
) -> Membership:
    """A plan and what patches add to it; of things with one name the first stays."""
    problems: list[PatchProblem] = []
    adding = [p for p in patches if p.operation is Operation.ADD]
    taken: Container[str] = ()
    if part.beside is not None:
        for name, (config, index) in _added_names(view, membership, part.beside):
            if plan.pop(name, None) is not None:
                reason = f"the {what} of this name that the proxy has for inbound traffic gives way to this one"
                problems.append(PatchProblem(config, index, reason, f"{what} {name}"))
        adding = [p for p in adding if p.match.context is part.task.context]
        taken = membership(view, part.beside).plan if adding else ()
    for patch in adding:
        name = str(getattr(patch.message, "name", ""))
        if name in plan or name in taken:
            reason = f"there is a {what} of this name already: ADD can't put another beside it"
            problems.append(PatchProblem(patch.config, patch.index, reason, f"{what} {name}"))
        else:
            plan[name] = added.query(patch.config, patch.index)
    return Membership(plan, tuple(problems))


@derived
def _added_names(
    view: View, membership: Derived[[PatchedPart], Membership], part: PatchedPart
) -> tuple[tuple[str, Added], ...]:
    """What patches add to a part, by name."""
    plan = membership(view, part).plan
    return tuple((name, (call.args[0], call.args[1])) for name, call in plan.items() if call.derived is added)


@derived
def _hosts_at(view: View, workload: Workload) -> Mapping[int, tuple[str, ...]]:
    """The services of a workload, by the port that it listens on for them (and, for a Sidecar's ingress, by theirs)."""
    found: dict[int, dict[str, None]] = {}
    for instance in instances(view, workload):
        for port in (instance.endpoint.port, instance.port.number):
            found.setdefault(port, {})[instance.service.host] = None
    return {port: tuple(hosts) for port, hosts in found.items()}


def _inbound_port(name: str) -> int:
    parts = parse_cluster(name)
    return parts.port if parts is not None and parts.direction is Direction.INBOUND else 0
