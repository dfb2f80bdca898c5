"""Patches to a virtual host that is a resource of its own. What is added to its table is in the table itself."""

from __future__ import annotations

import hashlib

from envoy.config.route.v3.route_components_pb2 import VirtualHost

from mesh_pilot.envoy.envoy_filter.edit import Edit, edited
from mesh_pilot.envoy.envoy_filter.parsed import patches_for
from mesh_pilot.envoy.envoy_filter.resources import Edited, PatchTask, result_of
from mesh_pilot.envoy.envoy_filter.routes import TABLE_KINDS, edit_host
from mesh_pilot.incremental import ByName, derived
from mesh_pilot.mesh.gateway_servers import target_ports
from mesh_pilot.mesh.proxy.scope import Plan, PlanShards, ResourceQuery, merged_plan
from mesh_pilot.model.resource import Resource, host_name, table_of
from mesh_pilot.world.view import View


@derived
def patched_host(view: View, task: PatchTask, base: ResourceQuery) -> Resource | None:
    """A virtual host. One that a patch removes is left without routes, for no request."""
    return edited_host(view, task, base).resource


@derived
def edited_host(view: View, task: PatchTask, base: ResourceQuery) -> Edited:
    """Patches see it under the name that it has in a whole table."""
    resource = base.get(view)
    patches = patches_for(view, task.filters, task.context, TABLE_KINDS)
    if resource is None or not patches:
        return Edited(resource)
    name, body, table = resource.name, resource.body, table_of(resource.name)
    ports = target_ports(view, task.router) if task.router else ()

    def change(edit: Edit) -> VirtualHost:
        host = VirtualHost.FromString(body)
        host.name = host.name.removeprefix(host_name(table, ""))
        if not edit_host(edit, table, host, task.context, ports):
            # The listener waits for a virtual host, and this may be the only one.
            host = VirtualHost(domains=[_nobody(name)])
        host.name = name
        return host

    return result_of(resource, *edited(patches, f"route table {table}", change))


def _nobody(name: str) -> str:
    """A domain that no request has (RFC 2606), another for each name."""
    return f"{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}.invalid"


@derived
def patched_hosts(view: View, task: PatchTask, base: ByName[Plan | PlanShards], table: str) -> Plan:
    """The virtual hosts of a table with patches; ``base`` has those of any table, without."""
    planned = base.query(table).get(view)
    plan = merged_plan(view, planned) if isinstance(planned, tuple) else planned
    return {name: patched_host.query(task, call) for name, call in plan.items()}
