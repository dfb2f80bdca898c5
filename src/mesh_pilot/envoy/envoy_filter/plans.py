"""Patched plans: the resources of a proxy after EnvoyFilters have added and removed some.

A name that no patch is for keeps the translator's query, so its resource is shared with proxies without EnvoyFilters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import attrs

from mesh_pilot.engine import ByName, Derived, Query, derived
from mesh_pilot.envoy.envoy_filter.apply import CLUSTER_KINDS, listener_kinds
from mesh_pilot.envoy.envoy_filter.match import cluster_matches, listener_may_match
from mesh_pilot.envoy.envoy_filter.parse import patches_for
from mesh_pilot.envoy.envoy_filter.patch import (
    NO_MATCHES,
    ApplyTo,
    Operation,
    Patch,
    PatchMatches,
    PatchProblem,
    PatchRef,
)
from mesh_pilot.envoy.envoy_filter.resources import (
    PatchedResource,
    PatchTask,
    added_resource,
    address_of,
    patched_cluster,
    patched_host,
    patched_listener,
    unwrap_by_name,
    unwrap_resource,
)
from mesh_pilot.envoy.envoy_filter.served import unserved
from mesh_pilot.envoy.refusals.waits import waits
from mesh_pilot.mesh.listeners.inbound import workload_instances
from mesh_pilot.mesh.names.resources import Direction, parse_cluster
from mesh_pilot.mesh.proxy.plans import Plan, PlanShards, ResourceQuery, merged_plan
from mesh_pilot.mesh.proxy.scope import Workload
from mesh_pilot.model.resource import EXTENSION
from mesh_pilot.world.view import View


@attrs.frozen(cache_hash=True)
class UnpatchedPlan:
    """A translator's plan, and how it is to be patched."""

    task: PatchTask
    base: Query[PlanShards]
    workload: Workload | None = None
    """The workload whose services ``cluster.service`` refers to, for inbound clusters."""
    sibling: UnpatchedPlan | None = None
    """The proxy's other plan of the type; no name may be in both. Set on the less shared of the two, so that the more
    shared one does not depend on it. Resources added for any context go into the other plan."""


@attrs.frozen
class PatchedPlan:
    """A plan with patches applied."""

    plan: Plan
    """The plan with the patches. A listener that a patch removes is in it, with None as its resource."""
    added: Mapping[str, PatchRef] = attrs.field(factory=dict)
    """The patches that added resources, by the resource's name."""
    problems: tuple[PatchProblem, ...] = ()
    """Problems of the plan itself; those of a resource are in its ``PatchedResource``."""
    matches: PatchMatches = NO_MATCHES
    """The patches that the plan itself applies."""


T = TypeVar("T")

NO_PLAN: Plan = MappingProxyType({})

PlanPatcher = Derived[[UnpatchedPlan], PatchedPlan]


@derived
def unwrap_plan(view: View, patched: Query[PatchedPlan]) -> Plan:
    """The plan alone, for streams: unchanged when only the problems change."""
    return patched.get(view).plan


@derived
def patched_clusters(view: View, unpatched: UnpatchedPlan) -> PatchedPlan:
    task = unpatched.task
    patches = patches_for(view, task.filters, task.context, CLUSTER_KINDS)
    by_service = any(p.match.cluster is not None and p.match.cluster.service for p in patches)
    hosts_at = _hosts_at(view, unpatched.workload) if by_service and unpatched.workload is not None else {}
    plan: dict[str, ResourceQuery] = {}
    found: set[PatchRef] = set()
    for name, query in _base_plan(view, unpatched).items():
        hosts = hosts_at.get(_inbound_port(name), ()) if hosts_at else ()
        matching = [p for p in patches if cluster_matches(p.match.cluster, name, hosts)]
        found.update(p.ref for p in matching if p.operation is not Operation.ADD)
        if any(p.operation is Operation.REMOVE for p in matching):
            continue
        if any(p.is_merge for p in matching):
            query = unwrap_resource.query(patched_cluster.query(task, hosts, query))
        plan[name] = query
    return _with_added(view, "cluster", patched_clusters, unpatched, plan, patches, found)


@derived
def patched_listeners(view: View, unpatched: UnpatchedPlan) -> PatchedPlan:
    task = unpatched.task
    patches = patches_for(view, task.filters, task.context, listener_kinds(task.context))
    plan: dict[str, ResourceQuery] = {}
    for name, query in _base_plan(view, unpatched).items():
        # A name is all that a plan knows of a listener, so removing one is up to ``patched_listener``.
        may_match = any(listener_may_match(p, name) for p in patches)
        plan[name] = unwrap_resource.query(patched_listener.query(task, query)) if may_match else query
    to_listeners = [p for p in patches if p.apply_to is ApplyTo.LISTENER]
    return _with_added(view, "listener", patched_listeners, unpatched, plan, to_listeners)


@derived
def patched_extensions(view: View, unpatched: UnpatchedPlan) -> PatchedPlan:
    """The extension configs that a proxy may request by name."""
    # In any context: a request for a name does not say what it is for.
    patches = patches_for(view, unpatched.task.filters, None, (ApplyTo.EXTENSION_CONFIG,))
    plan = dict(_base_plan(view, unpatched))
    return _without_dangling(
        _with_added(view, "extension config", patched_extensions, unpatched, plan, patches), patches
    )


def _without_dangling(patched: PatchedPlan, patches: Iterable[Patch]) -> PatchedPlan:
    """Extension configs without added ones that name others that are not among them."""
    messages = {(patch.config, patch.index): patch.message for patch in patches}
    plan, added, problems = dict(patched.plan), dict(patched.added), list(patched.problems)
    while True:
        named = ((name, wait) for name, ref in added.items() for wait in waits(messages[ref]))
        found = next(((n, w) for n, w in named if w.type_url == EXTENSION and w.name not in plan), None)
        if found is None:
            return PatchedPlan(plan, added, tuple(problems), patched.matches)
        name, wait = found
        del plan[name]
        reason = f"it names the extension config {wait.name}, which is never sent: Envoy would wait for it forever"
        problems.append(PatchProblem(*added.pop(name), reason, f"extension config {name}"))


@derived
def extension_plan(view: View, unpatched: UnpatchedPlan) -> Plan:
    """The extension configs that a proxy can be sent, by name."""
    return patched_extensions(view, unpatched).plan


@derived
def patched_host_shards(_: View, task: PatchTask, base: ByName[PlanShards], table: str) -> PlanShards:
    """``patched_hosts`` as the one shard of a plan."""
    return (patched_hosts.query(task, base, table),)


@derived
def patched_hosts(view: View, task: PatchTask, base: ByName[PlanShards], table: str) -> Plan:
    """The virtual hosts of a table as separate resources; ``base`` has those of any table, without patches."""
    plan = merged_plan(view, base.query(table).get(view))
    return {name: unwrap_resource.query(patched_host.query(task, query)) for name, query in plan.items()}


def _base_plan(view: View, unpatched: UnpatchedPlan) -> Plan:
    return merged_plan(view, unpatched.base.get(view))


def _with_added(
    view: View,
    kind: str,
    patcher: PlanPatcher,
    unpatched: UnpatchedPlan,
    plan: dict[str, ResourceQuery],
    patches: Iterable[Patch],
    found: Iterable[PatchRef] = (),
) -> PatchedPlan:
    """A plan with the resources that patches add. Of two with one name, the first stays."""
    problems: list[PatchProblem] = []
    adding = [p for p in patches if p.operation is Operation.ADD]
    sibling_names: Plan = {}
    if unpatched.sibling is not None:
        for name, (config, index) in _added_names(view, patcher, unpatched.sibling):
            if plan.pop(name, None) is not None:
                reason = f"the {kind} of this name that the proxy has for inbound traffic gives way to this one"
                problems.append(PatchProblem(config, index, reason, f"{kind} {name}"))
        adding = [p for p in adding if p.match.context is unpatched.task.context]
        # Reading the sibling's plan makes this one depend on all of it, so only if something is added.
        sibling_names = patcher(view, unpatched.sibling).plan if adding else {}
    addresses: dict[bytes, str] = {}
    if adding and patcher is patched_listeners:
        for other in (plan, sibling_names):
            addresses |= {address_of(view, query): name for name, query in other.items()}
    added: dict[str, PatchRef] = {}
    for patch in adding:
        name = str(getattr(patch.message, "name", ""))
        query = added_resource.query(patch.config, patch.index)
        reason = ""
        if name in plan or name in sibling_names:
            reason = f"there is a {kind} of this name already: ADD can't put another next to it"
        elif reason := next(unserved(view, unpatched.task.served, unpatched.task.filters, patch.message), ""):
            pass
        elif addresses and (other_name := addresses.setdefault(address_of(view, query), name)) != name:
            reason = f"the listener {other_name} has the same address: Envoy would refuse another"
        if reason:
            problems.append(PatchProblem(patch.config, patch.index, reason, f"{kind} {name}"))
        else:
            plan[name] = query
            added[name] = (patch.config, patch.index)
    matches = PatchMatches(frozenset((*found, *(patch.ref for patch in adding))))
    return PatchedPlan(plan, added, tuple(problems), matches)


@derived
def _added_names(view: View, patcher: PlanPatcher, unpatched: UnpatchedPlan) -> tuple[tuple[str, PatchRef], ...]:
    """The resources that patches add to a plan. Derived, so that readers do not depend on the rest of the plan."""
    return tuple(patcher(view, unpatched).added.items())


@derived
def _hosts_at(view: View, workload: Workload) -> Mapping[int, tuple[str, ...]]:
    """The services of a workload, by the port that it listens on for them and by the service's port.

    The latter is that of a Sidecar's ingress listeners.
    """
    hosts: dict[int, dict[str, None]] = {}
    for instance in workload_instances(view, workload):
        for port in (instance.endpoint.port, instance.port.number):
            hosts.setdefault(port, {})[instance.service.host] = None
    return {port: tuple(names) for port, names in hosts.items()}


def _inbound_port(name: str) -> int:
    parts = parse_cluster(name)
    return parts.port if parts is not None and parts.direction is Direction.INBOUND else 0


# -- outcomes, which the wrapped values carry

Patched = PatchedPlan | PatchedResource


def patched_of_plan(view: View, plan: Query[PlanShards]) -> Iterator[Patched]:
    """A plan and its resources, as far as they are patched."""
    for shard in _made(view, plan, ()):
        if shard.derived is unwrap_plan:
            yield from _patched(view, shard.args[0])
        for query in _made(view, shard, NO_PLAN).values():
            if query.derived is unwrap_resource:
                yield from _patched(view, query.args[0])


def patched_tables(view: View, tables: ByName[Any], names: Iterable[str]) -> Iterator[Patched]:
    """The route tables of these names, as far as they are patched."""
    if tables.derived is unwrap_by_name:
        for name in names:
            yield from _patched(view, tables.args[0].query(name))


def _patched(view: View, query: Query[PatchedPlan] | Query[PatchedResource]) -> Iterator[Patched]:
    made: Patched | None = _made(view, query, None)
    if made is not None:
        yield made


def _made(view: View, query: Query[T], otherwise: T) -> T:
    """A value, or something else where it cannot be made: that is reported as its own failure."""
    try:
        return query.get(view)
    except Exception:
        return otherwise
