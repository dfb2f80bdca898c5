"""Plans with patches: which resources a proxy has once EnvoyFilters have added and removed some.

A name that no patch is for keeps the translator's own call, so that its resource is shared with proxies that have
no EnvoyFilters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from mesh_pilot.envoy.instances import instances
from mesh_pilot.envoy.names import Direction, parse_cluster
from mesh_pilot.envoy.patches.match import cluster_matches, listener_may_match
from mesh_pilot.envoy.patches.parsed import patches_for
from mesh_pilot.envoy.patches.patch import ApplyTo, Context, Operation, Patch, PatchProblem
from mesh_pilot.envoy.patches.resources import (
    CLUSTER_KINDS,
    Task,
    added,
    listener_kinds,
    patched_cluster,
    patched_listener,
    patched_table,
)
from mesh_pilot.envoy.scope import Call, Plan, Workload
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.resource import Resource
from mesh_pilot.world.view import View

PlanCall = tuple[Callable[..., Plan], tuple[Any, ...]]
"""A translator of a plan and its key."""

Bases = tuple[tuple[Task, PlanCall], ...]
"""Plans with the task that each is for. Together they are all of a proxy's resources of a type."""

CONTEXTS = (Context.SIDECAR_INBOUND, Context.SIDECAR_OUTBOUND, Context.GATEWAY)


@attrs.frozen
class Membership:
    """Which resources there are."""

    plan: Plan
    problems: tuple[PatchProblem, ...]


def patched_clusters(view: View, workload: Workload, bases: Bases) -> Plan:
    """The clusters of a proxy."""
    return view.get(cluster_membership, workload, bases).plan


def patched_listeners(view: View, bases: Bases) -> Plan:
    """The listeners of a proxy. One that a patch removes is planned, and comes out as None."""
    return view.get(listener_membership, bases).plan


def patched_extensions(view: View, bases: Bases) -> Plan:
    """The configs of extensions that a proxy asks for by name."""
    return view.get(extension_membership, bases).plan


def patched_route(view: View, task: Task, base: Call, name: str) -> Resource | None:
    """The route table of this name; ``base`` is a translator of names."""
    function, key = base
    return view.get(patched_table, task, (function, (*key, name)))


def cluster_membership(view: View, workload: Workload, bases: Bases) -> Membership:
    members = _Members("cluster")
    for task, (function, key) in bases:
        patches = view.get(patches_for, task.filters, task.context, CLUSTER_KINDS)
        named = any(p.match.cluster is not None and p.match.cluster.service for p in patches)
        inbound = named and task.context is Context.SIDECAR_INBOUND
        hosts = view.get(_hosts_at, workload) if inbound else {}
        for name, call in view.get(function, *key).items():
            own = hosts.get(_inbound_port(name), ()) if inbound else ()
            meant = [p for p in patches if cluster_matches(p.match.cluster, name, own)]
            if any(p.operation is Operation.REMOVE for p in meant):
                continue
            merged = any(p.is_merge for p in meant)
            members.plan[name] = (patched_cluster, (task, own, call)) if merged else call
        members.add(patches)
    return members.result()


def listener_membership(view: View, bases: Bases) -> Membership:
    members = _Members("listener")
    for task, (function, key) in bases:
        patches = view.get(patches_for, task.filters, task.context, listener_kinds(task.context))
        for name, call in view.get(function, *key).items():
            meant = any(listener_may_match(p, name) for p in patches)
            members.plan[name] = (patched_listener, (task, call)) if meant else call
        members.add(p for p in patches if p.apply_to is ApplyTo.LISTENER)
    return members.result()


def extension_membership(view: View, bases: Bases) -> Membership:
    members = _Members("extension config")
    for task, (function, key) in bases:
        members.plan.update(view.get(function, *key))
        # Whoever asks for a name gets it, whatever it is for.
        every = {
            (p.config, p.index): p
            for context in CONTEXTS
            for p in view.get(patches_for, task.filters, context, (ApplyTo.EXTENSION_CONFIG,))
        }
        order = {ref.config: at for at, ref in enumerate(task.filters)}
        members.add(sorted(every.values(), key=lambda p: (order[p.config], p.index)))
    return members.result()


class _Members:
    """Gathers what there is; of things with one name the first stays."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._added: dict[tuple[ConfigKey, int], str] = {}
        self.plan: dict[str, Call] = {}

    def add(self, patches: Iterable[Patch]) -> None:
        """What patches add: it comes after all that is there without them."""
        for patch in patches:
            if patch.operation is Operation.ADD:
                self._added[(patch.config, patch.index)] = str(getattr(patch.message, "name", ""))

    def result(self) -> Membership:
        problems: list[PatchProblem] = []
        for (config, index), name in self._added.items():
            call: Call = (added, (config, index))
            if self.plan.setdefault(name, call) != call:
                reason = f"there is a {self._what} of this name already: ADD can't put another beside it"
                problems.append(PatchProblem(config, index, reason, f"{self._what} {name}"))
        return Membership(self.plan, tuple(problems))


def _hosts_at(view: View, workload: Workload) -> Mapping[int, tuple[str, ...]]:
    """The services of a workload, by the port that it listens on for them (and, for a Sidecar's ingress, by theirs)."""
    found: dict[int, dict[str, None]] = {}
    for instance in view.get(instances, workload):
        for port in (instance.endpoint.port, instance.port.number):
            found.setdefault(port, {})[instance.service.host] = None
    return {port: tuple(hosts) for port, hosts in found.items()}


def _inbound_port(name: str) -> int:
    parts = parse_cluster(name)
    return parts.port if parts is not None and parts.direction is Direction.INBOUND else 0
