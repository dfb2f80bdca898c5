"""Patched resources, each derived from the translator's own, with the problems of the patches that do not fit it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial

import attrs
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3.route_components_pb2 import VirtualHost
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from google.protobuf.message import Message

from mesh_pilot.engine import ByName, Query, derived
from mesh_pilot.envoy.core.protobuf import encode, resource_of
from mesh_pilot.envoy.envoy_filter.apply import (
    CLUSTER_KINDS,
    TABLE_KINDS,
    edit_cluster,
    edit_host,
    edit_listener,
    edit_table,
    listener_kinds,
)
from mesh_pilot.envoy.envoy_filter.edit import Edit
from mesh_pilot.envoy.envoy_filter.parse import parsed, patches_for
from mesh_pilot.envoy.envoy_filter.patch import NO_MATCHES, Context, PatchMatches, PatchProblem
from mesh_pilot.envoy.envoy_filter.served import ServedNames, unserved
from mesh_pilot.envoy.envoy_filter.trials import Unserved, apply_patches
from mesh_pilot.mesh.listeners.gateway_servers import server_ports
from mesh_pilot.mesh.proxy.plans import ResourceQuery
from mesh_pilot.mesh.proxy.scope import Workload
from mesh_pilot.mesh.selection.envoy_filters import FilterRef
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.resource import Resource, host_name, table_of
from mesh_pilot.world.view import View


@attrs.frozen(cache_hash=True)
class PatchTask:
    """The parts of a proxy that decide how its resources are patched."""

    filters: tuple[FilterRef, ...]
    context: Context
    served: ServedNames
    router: Workload | None = None
    """The workload whose ports ``portNumber`` refers to, for a router's route tables."""


@attrs.frozen
class PatchedResource:
    """A resource with patches applied."""

    resource: Resource | None
    """The translator's own object if no patch changes it; None if one removes it."""
    problems: tuple[PatchProblem, ...] = ()
    matches: PatchMatches = NO_MATCHES


@derived
def unwrap_resource(view: View, patched: Query[PatchedResource]) -> Resource | None:
    """The resource alone, for streams: unchanged when only the problems change."""
    return patched.get(view).resource


@derived
def unwrap_by_name(view: View, patched: ByName[PatchedResource], name: str) -> Resource | None:
    """The same, for resources that are requested by name."""
    return patched.query(name).get(view).resource


@derived
def added_resource(view: View, key: ConfigKey, index: int) -> Resource | None:
    """The resource that a patch adds."""
    for patch in parsed(view, key).patches:
        if patch.index == index:
            return resource_of(str(getattr(patch.message, "name", "")), patch.message, (key,))
    return None


@derived
def address_of(view: View, listener: ResourceQuery) -> bytes:
    """The encoded address of a listener; empty if it has none. Derived, so that a plan depends on no more of it."""
    resource = listener.get(view)
    return encode(Listener.FromString(resource.body).address) if resource is not None else b""


@derived
def patched_cluster(view: View, task: PatchTask, hosts: tuple[str, ...], base: ResourceQuery) -> PatchedResource:
    """A cluster; ``hosts`` are the services of an inbound one."""
    resource = base.get(view)
    if resource is None:
        return PatchedResource(None)
    body = resource.body

    def change(edit: Edit) -> Cluster:
        message = Cluster.FromString(body)
        edit_cluster(edit, message, hosts)
        return message

    patches = patches_for(view, task.filters, task.context, CLUSTER_KINDS)
    waits = _waits(view, task, partial(Cluster.FromString, body))
    return _result(resource, *apply_patches(patches, f"cluster {resource.name}", change, waits))


@derived
def patched_listener(view: View, task: PatchTask, base: ResourceQuery) -> PatchedResource:
    resource = base.get(view)
    if resource is None:
        return PatchedResource(None)
    body = resource.body

    def change(edit: Edit) -> Listener | None:
        message = Listener.FromString(body)
        return message if edit_listener(edit, message, task.context) else None

    patches = patches_for(view, task.filters, task.context, listener_kinds(task.context))
    waits = _waits(view, task, partial(Listener.FromString, body))
    return _result(resource, *apply_patches(patches, f"listener {resource.name}", change, waits))


@derived
def patched_table(view: View, task: PatchTask, base: ByName[Resource | None], name: str) -> PatchedResource:
    """The route table of this name."""
    resource = base.query(name).get(view)
    patches = patches_for(view, task.filters, task.context, TABLE_KINDS)
    if resource is None or not patches:
        return PatchedResource(resource)
    body = resource.body
    ports = server_ports(view, task.router) if task.router else ()

    def change(edit: Edit) -> RouteConfiguration:
        message = RouteConfiguration.FromString(body)
        edit_table(edit, message, task.context, ports)
        return message

    waits = _waits(view, task, partial(RouteConfiguration.FromString, body))
    return _result(resource, *apply_patches(patches, f"route table {resource.name}", change, waits))


@derived
def patched_host(view: View, task: PatchTask, base: ResourceQuery) -> PatchedResource:
    """A virtual host that is a separate resource. If a patch removes it, it is left without routes.

    Patches match on the name that it has inside a table. Hosts that patches add are in the table itself.
    """
    resource = base.get(view)
    patches = patches_for(view, task.filters, task.context, TABLE_KINDS)
    if resource is None or not patches:
        return PatchedResource(resource)
    name, body, table = resource.name, resource.body, table_of(resource.name)
    ports = server_ports(view, task.router) if task.router else ()

    def change(edit: Edit) -> VirtualHost:
        host = VirtualHost.FromString(body)
        host.name = host.name.removeprefix(host_name(table, ""))
        if not edit_host(edit, table, host, task.context, ports):
            # Envoy's listener waits until its table has a virtual host, and this may be the only one.
            host = VirtualHost(domains=[_unused_domain(name)])
        host.name = name
        return host

    waits = _waits(view, task, partial(VirtualHost.FromString, body))
    return _result(resource, *apply_patches(patches, f"route table {table}", change, waits))


def _waits(view: View, task: PatchTask, before: Callable[[], Message]) -> Unserved:
    return lambda message: unserved(view, task.served, task.filters, message, before)


def _unused_domain(name: str) -> str:
    """A domain that no request has (RFC 2606), a different one for each name."""
    return f"{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}.invalid"


def _result(resource: Resource, message: Message | None, edit: Edit) -> PatchedResource:
    """The result of an edit; ``message``: None if a patch removes the resource."""
    if message is None:
        return PatchedResource(None, edit.problems, edit.matches)
    if not edit.changes:
        return PatchedResource(resource, edit.problems, edit.matches)
    configs = (*resource.configs, *edit.configs)
    return PatchedResource(resource_of(resource.name, message, configs), edit.problems, edit.matches)
