"""Route tables in pieces: a table without its virtual hosts, and each of those as a resource of its own (VHDS).

For proxies that get Delta and ask for it (``Scope.split``). An edit then costs them one virtual host, not a table of
all. Envoy takes the virtual hosts of all its tables from one subscription, by names of ``model.resource.host_name``,
and a listener waits for the first of its table: therefore none is ever without one.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
from envoy.config.route.v3 import route_components_pb2 as rc
from envoy.config.route.v3 import route_pb2

from mesh_pilot.envoy.core.protobuf import ads, boolean, encode
from mesh_pilot.envoy.routes.catch_all import ALLOW_ANY, BLOCK_ALL, catch_all
from mesh_pilot.envoy.routes.virtual_host import virtual_host
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.proxy.scope import Plan, ResourceQuery
from mesh_pilot.mesh.sidecar_scope import unknown_destination
from mesh_pilot.mesh.virtual_hosts.planned import PlannedHost
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.resource import ROUTE, VIRTUAL_HOST, Resource, host_name, make_resource
from mesh_pilot.world import View


@derived
def split_table(view: View, name: str) -> Resource:
    """A table whose virtual hosts come by themselves: the same for whatever hosts it has."""
    table = route_pb2.RouteConfiguration(name=name, validate_clusters=boolean(False))
    table.vhds.config_source.CopyFrom(ads())
    return make_resource(name, ROUTE, encode(table))


def host_plan(table: str, hosts: Iterable[PlannedHost]) -> dict[str, ResourceQuery]:
    """The planned virtual hosts of a table as resources."""
    return {host_name(table, host.name): split_host.query(table, host) for host in hosts}


@derived
def catch_all_plan(view: View, table: str, sidecar: ConfigKey | None) -> Plan:
    """The virtual host for everything else."""
    name = ALLOW_ANY if unknown_destination(view, sidecar) else BLOCK_ALL
    return {host_name(table, name): split_catch_all.query(table, sidecar)}


@derived
def split_host(view: View, table: str, planned: PlannedHost) -> Resource:
    """A virtual host by itself. Envoy needs it to have the resource's name, or can't remove it."""
    name = host_name(table, planned.name)
    return make_resource(
        name, VIRTUAL_HOST, virtual_host.compute(view, attrs.evolve(planned, name=name)), planned.configs
    )


@derived
def split_catch_all(view: View, table: str, sidecar: ConfigKey | None) -> Resource:
    """The virtual host for everything else, by itself."""
    host = rc.VirtualHost.FromString(catch_all(view, sidecar))
    host.name = host_name(table, host.name)
    return make_resource(host.name, VIRTUAL_HOST, encode(host))
