"""Patches to a route table: to itself, its virtual hosts and their routes.

What is there is changed first, then new hosts and routes come: unlike filters, a change that is for every route must
not hit those that were put in beside them.
"""

from __future__ import annotations

from functools import partial

from envoy.config.route.v3.route_components_pb2 import VirtualHost
from envoy.config.route.v3.route_pb2 import RouteConfiguration

from mesh_pilot.envoy.envoy_filter.edit import Edit
from mesh_pilot.envoy.envoy_filter.match import Ports, names_route, route_matches, table_matches, virtual_host_matches
from mesh_pilot.envoy.envoy_filter.merge import check_name, merge_patch
from mesh_pilot.envoy.envoy_filter.patch import ApplyTo, Context, Operation, Patch

TABLE_KINDS = (ApplyTo.ROUTE_CONFIGURATION, ApplyTo.VIRTUAL_HOST, ApplyTo.HTTP_ROUTE)
"""What is in a route table."""


def edit_table(edit: Edit, table: RouteConfiguration, context: Context, ports: Ports = ()) -> None:
    """Apply what is for this table; ``ports`` are those of a router."""

    def meant(kind: ApplyTo) -> list[Patch]:
        return [p for p in edit.of(kind) if table_matches(p, table.name, context, ports)]

    for patch in meant(ApplyTo.ROUTE_CONFIGURATION):
        edit.apply(patch, partial(_merge_table, table, patch))
    hosts, routes = meant(ApplyTo.VIRTUAL_HOST), meant(ApplyTo.HTTP_ROUTE)
    for at in reversed(range(len(table.virtual_hosts))):
        if not _edit_host(edit, table.virtual_hosts[at], hosts, routes):
            del table.virtual_hosts[at]
    for patch in hosts:
        if patch.operation is Operation.ADD:
            edit.apply(patch, partial(_add_host, table, patch))


def edit_host(edit: Edit, table: str, host: VirtualHost, context: Context, ports: Ports = ()) -> bool:
    """Apply what is for a virtual host that comes by itself, and for its routes; False where it is removed."""

    def meant(kind: ApplyTo) -> list[Patch]:
        return [p for p in edit.of(kind) if table_matches(p, table, context, ports)]

    return _edit_host(edit, host, meant(ApplyTo.VIRTUAL_HOST), meant(ApplyTo.HTTP_ROUTE))


def _merge_table(table: RouteConfiguration, patch: Patch) -> bool:
    check_name(table, patch.message)
    merge_patch(table, patch)
    return True


def _add_host(table: RouteConfiguration, patch: Patch) -> bool:
    table.virtual_hosts.append(patch.message)
    return True


def _edit_host(edit: Edit, host: VirtualHost, patches: list[Patch], routes: list[Patch]) -> bool:
    """Apply what is for a virtual host; False where it is removed."""
    for patch in patches:
        if not virtual_host_matches(patch, host):
            continue
        if patch.operation is Operation.REMOVE:
            edit.apply(patch, lambda: True)
            return False
        if patch.operation is not Operation.ADD:
            edit.apply(patch, partial(_change_host, host, patch))
    _edit_routes(edit, host, [p for p in routes if virtual_host_matches(p, host)])
    return True


def _change_host(host: VirtualHost, patch: Patch) -> bool:
    if patch.is_merge:
        merge_patch(host, patch)
    else:
        host.CopyFrom(patch.message)
    return True


def _edit_routes(edit: Edit, host: VirtualHost, patches: list[Patch]) -> None:
    for at in reversed(range(len(host.routes))):
        for patch in patches:
            if not route_matches(patch, host.routes[at]):
                continue
            if patch.operation is Operation.REMOVE:
                edit.apply(patch, partial(_remove_route, host, at))
                break
            if patch.is_merge:
                edit.apply(patch, partial(_merge_route, host, at, patch))
    for patch in patches:
        if not patch.is_merge and patch.operation is not Operation.REMOVE:
            edit.apply(patch, partial(_place_route, host, patch))


def _remove_route(host: VirtualHost, at: int) -> bool:
    del host.routes[at]
    return True


def _merge_route(host: VirtualHost, at: int, patch: Patch) -> bool:
    merge_patch(host.routes[at], patch)
    return True


def _place_route(host: VirtualHost, patch: Patch) -> bool:
    """Add or insert; False where the route to go before or after is not there."""
    selects = names_route(patch)
    found = next((at for at, r in enumerate(host.routes) if route_matches(patch, r)), None) if selects else None
    if patch.operation is not Operation.ADD and selects and found is None:
        return False
    match patch.operation:
        case Operation.INSERT_FIRST:
            at = 0
        case Operation.INSERT_BEFORE:
            at = found or 0
        case Operation.INSERT_AFTER if found is not None:
            at = found + 1
        case _:
            at = len(host.routes)
    host.routes.insert(at, patch.message)
    return True
