"""Resources with the patches for them applied: each is derived from the translator's own."""

from __future__ import annotations

import attrs
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from google.protobuf.message import Message

from mesh_pilot.envoy.core.protobuf import resource_of
from mesh_pilot.envoy.envoy_filter.clusters import edit_cluster
from mesh_pilot.envoy.envoy_filter.edit import Edit, edited
from mesh_pilot.envoy.envoy_filter.listeners import edit_listener
from mesh_pilot.envoy.envoy_filter.parsed import parsed, patches_for
from mesh_pilot.envoy.envoy_filter.patch import ApplyTo, Context, PatchProblem
from mesh_pilot.envoy.envoy_filter.routes import TABLE_KINDS, edit_table
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.envoy_filter_selection import FilterRef
from mesh_pilot.mesh.gateway_servers import target_ports
from mesh_pilot.mesh.proxy.scope import ResourceQuery, Workload
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.resource import Resource
from mesh_pilot.world.view import View

CLUSTER_KINDS = (ApplyTo.CLUSTER,)
LISTENER_KINDS = (
    ApplyTo.LISTENER,
    ApplyTo.LISTENER_FILTER,
    ApplyTo.FILTER_CHAIN,
    ApplyTo.NETWORK_FILTER,
    ApplyTo.HTTP_FILTER,
)


@attrs.frozen(cache_hash=True)
class PatchTask:
    """Which of a proxy's tasks resources are for, and what of the proxy decides how they are patched."""

    filters: tuple[FilterRef, ...]
    context: Context
    router: Workload | None = None
    """For a router's route tables: whose ports decide what ``portNumber`` means."""


@attrs.frozen
class Edited:
    """What came of a resource."""

    resource: Resource | None
    """As the translator made it, the very same, where no patch is for it; None where one removes it."""
    problems: tuple[PatchProblem, ...] = ()


def listener_kinds(context: Context) -> tuple[ApplyTo, ...]:
    """What of a listener is patched. Tables inside listeners are those of inbound traffic; others come by name."""
    return LISTENER_KINDS + TABLE_KINDS if context is Context.SIDECAR_INBOUND else LISTENER_KINDS


@derived
def patched_cluster(view: View, task: PatchTask, hosts: tuple[str, ...], base: ResourceQuery) -> Resource | None:
    """A cluster; ``hosts`` are the services that an inbound one is for."""
    return edited_cluster(view, task, hosts, base).resource


@derived
def patched_listener(view: View, task: PatchTask, base: ResourceQuery) -> Resource | None:
    """A listener; None where a patch removes it."""
    return edited_listener(view, task, base).resource


@derived
def patched_table(view: View, task: PatchTask, base: ResourceQuery) -> Resource | None:
    """A route table."""
    return edited_table(view, task, base).resource


@derived
def added(view: View, key: ConfigKey, index: int) -> Resource | None:
    """A resource that is a patch's own."""
    for patch in parsed(view, key).patches:
        if patch.index == index:
            return resource_of(str(getattr(patch.message, "name", "")), patch.message, (key,))
    return None


@derived
def edited_cluster(view: View, task: PatchTask, hosts: tuple[str, ...], base: ResourceQuery) -> Edited:
    resource = _base(view, base)
    if resource is None:
        return Edited(None)
    body = resource.body

    def change(edit: Edit) -> Cluster:
        message = Cluster.FromString(body)
        edit_cluster(edit, message, hosts)
        return message

    patches = patches_for(view, task.filters, task.context, CLUSTER_KINDS)
    return result_of(resource, *edited(patches, f"cluster {resource.name}", change))


@derived
def edited_listener(view: View, task: PatchTask, base: ResourceQuery) -> Edited:
    resource = _base(view, base)
    if resource is None:
        return Edited(None)
    body = resource.body

    def change(edit: Edit) -> Listener | None:
        message = Listener.FromString(body)
        return message if edit_listener(edit, message, task.context) else None

    patches = patches_for(view, task.filters, task.context, listener_kinds(task.context))
    return result_of(resource, *edited(patches, f"listener {resource.name}", change))


@derived
def edited_table(view: View, task: PatchTask, base: ResourceQuery) -> Edited:
    resource = _base(view, base)
    if resource is None:
        return Edited(None)
    patches = patches_for(view, task.filters, task.context, TABLE_KINDS)
    if not patches:
        return Edited(resource)
    body = resource.body
    ports = target_ports(view, task.router) if task.router else ()

    def change(edit: Edit) -> RouteConfiguration:
        message = RouteConfiguration.FromString(body)
        edit_table(edit, message, task.context, ports)
        return message

    return result_of(resource, *edited(patches, f"route table {resource.name}", change))


def result_of(resource: Resource, message: Message | None, edit: Edit) -> Edited:
    """What came of an edit; ``message`` is None where a patch removes the resource."""
    if message is None:
        return Edited(None, edit.problems)
    if not edit.changes:
        return Edited(resource, edit.problems)
    return Edited(resource_of(resource.name, message, (*resource.configs, *edit.configs)), edit.problems)


def _base(view: View, base: ResourceQuery) -> Resource | None:
    return base.get(view)
