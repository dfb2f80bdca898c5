"""Applying each kind of patch to a decoded cluster, listener or route table.

Lists are edited in different orders. Filters: see ``edit``. Filter chains, virtual hosts and routes: first merges and
removals, then additions, so that a patch for every route does not change those that another patch adds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.listener.v3.listener_components_pb2 import Filter, FilterChain
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3.route_components_pb2 import VirtualHost
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
)

from mesh_pilot.envoy.core.protobuf import any_of
from mesh_pilot.envoy.envoy_filter.edit import Edit, config_type, patch_filters
from mesh_pilot.envoy.envoy_filter.match import (
    chain_matches,
    cluster_matches,
    listener_matches,
    names_route,
    network_filter_name,
    route_matches,
    table_matches,
    virtual_host_matches,
)
from mesh_pilot.envoy.envoy_filter.merge import check_name, merge_patch, merge_socket, replaces_lists
from mesh_pilot.envoy.envoy_filter.patch import ApplyTo, Context, Operation, Patch, PatchError
from mesh_pilot.envoy.refusals.extensions import HTTP_CONNECTION_MANAGER
from mesh_pilot.envoy.refusals.listeners import binds_port
from mesh_pilot.mesh.listeners.gateway_servers import ServerPorts

CLUSTER_KINDS = (ApplyTo.CLUSTER,)
TABLE_KINDS = (ApplyTo.ROUTE_CONFIGURATION, ApplyTo.VIRTUAL_HOST, ApplyTo.HTTP_ROUTE)
"""A route table and its parts."""
LISTENER_KINDS = (
    ApplyTo.LISTENER,
    ApplyTo.LISTENER_FILTER,
    ApplyTo.FILTER_CHAIN,
    ApplyTo.NETWORK_FILTER,
    ApplyTo.HTTP_FILTER,
)
"""A listener and its parts, without inline route tables."""

_SOCKET = frozenset(("transport_socket",))


# -- clusters. Adding and removing them is up to ``plans``.


def edit_cluster(edit: Edit, cluster: Cluster, hosts: Collection[str]) -> None:
    """Merge the patches for this cluster; ``hosts`` are the services of an inbound one."""
    for patch in edit.patches_to(ApplyTo.CLUSTER):
        if patch.is_merge and cluster_matches(patch.match.cluster, cluster.name, hosts):
            edit.apply(patch, partial(_merge_cluster, cluster, patch))


def _merge_cluster(cluster: Cluster, patch: Patch) -> bool:
    source = patch.message
    assert isinstance(source, Cluster)
    check_name(cluster, source)
    if not source.HasField("transport_socket"):
        merge_patch(cluster, patch)
        return True
    target = cluster.transport_socket
    if cluster.transport_socket_matches:
        # Endpoints choose between these sockets, so one next to them would never be used: merge into that of its name.
        sockets = [m.transport_socket for m in cluster.transport_socket_matches]
        same_name = [s for s in sockets if s.name == source.transport_socket.name]
        if not same_name:
            raise PatchError(
                f"the cluster chooses between the transport sockets {', '.join(s.name for s in sockets)} "
                f"by endpoint; none is {source.transport_socket.name}"
            )
        target = same_name[0]
    merge_socket(target, source.transport_socket, replace_lists=replaces_lists(patch))
    merge_patch(cluster, patch, without=_SOCKET)
    return True


# -- listeners


def listener_kinds(context: Context) -> tuple[ApplyTo, ...]:
    """The kinds of objects in a listener. Only inbound listeners have route tables inline."""
    return LISTENER_KINDS + TABLE_KINDS if context is Context.SIDECAR_INBOUND else LISTENER_KINDS


def edit_listener(edit: Edit, listener: Listener, context: Context) -> bool:
    """Apply the patches for this listener; False if it is removed."""
    if any(edit.patches_to(kind) for kind in TABLE_KINDS):
        for chain in _chains(listener):
            for filter_ in chain.filters:
                _edit_manager(edit, filter_, partial(_edit_inline_table, edit, context))
    for patch in edit.patches_to(ApplyTo.LISTENER):
        if listener_matches(patch, listener):
            if patch.operation is Operation.REMOVE:
                edit.apply(patch, lambda: True)
                return False
            if patch.is_merge:
                edit.apply(patch, partial(_merge_listener, listener, patch))
    matching = [p for p in edit.patches_to(ApplyTo.LISTENER_FILTER) if listener_matches(p, listener)]
    patch_filters(edit, listener.listener_filters, matching)
    _edit_chains(edit, listener)
    return True


def _chains(listener: Listener) -> list[FilterChain]:
    default = [listener.default_filter_chain] if listener.HasField("default_filter_chain") else []
    return [*listener.filter_chains, *default]


def _merge_listener(listener: Listener, patch: Patch) -> bool:
    check_name(listener, patch.message)
    merged = Listener()
    merged.CopyFrom(listener)
    merge_patch(merged, patch)
    if binds_port(merged) != binds_port(listener):
        raise PatchError("bind_to_port can't be changed: an Envoy that has the listener would crash; ADD another one")
    listener.CopyFrom(merged)
    return True


def _edit_chains(edit: Edit, listener: Listener) -> None:
    for index in reversed(range(len(listener.filter_chains))):
        if not _edit_chain(edit, listener, listener.filter_chains[index]):
            del listener.filter_chains[index]
    if listener.HasField("default_filter_chain") and not _edit_chain(edit, listener, listener.default_filter_chain):
        listener.ClearField("default_filter_chain")
    for patch in edit.patches_to(ApplyTo.FILTER_CHAIN):
        if patch.operation is Operation.ADD and listener_matches(patch, listener):
            edit.apply(patch, partial(_add_chain, listener, patch))


def _add_chain(listener: Listener, patch: Patch) -> bool:
    listener.filter_chains.append(patch.message)
    return True


def _edit_chain(edit: Edit, listener: Listener, chain: FilterChain) -> bool:
    """Apply the patches for a filter chain; False if it is removed."""

    def matching(kind: ApplyTo) -> list[Patch]:
        return [p for p in edit.patches_to(kind) if listener_matches(p, listener) and chain_matches(p, listener, chain)]

    for patch in matching(ApplyTo.FILTER_CHAIN):
        if patch.operation is Operation.REMOVE:
            edit.apply(patch, lambda: True)
            return False
        if patch.is_merge:
            edit.apply(patch, partial(_merge_chain, chain, patch))
    patch_filters(edit, chain.filters, matching(ApplyTo.NETWORK_FILTER))
    http = matching(ApplyTo.HTTP_FILTER)
    for filter_ in chain.filters:
        patches = [p for p in http if network_filter_name(p) in ("", filter_.name)]
        if patches:
            _edit_manager(edit, filter_, partial(_edit_http_filters, edit, patches))
    return True


def _merge_chain(chain: FilterChain, patch: Patch) -> bool:
    source = patch.message
    assert isinstance(source, FilterChain)
    if source.HasField("transport_socket"):
        merge_socket(chain.transport_socket, source.transport_socket, replace_lists=replaces_lists(patch))
    merge_patch(chain, patch, without=_SOCKET)
    return True


def _edit_manager(edit: Edit, filter_: Filter, change: Callable[[HttpConnectionManager], None]) -> None:
    """Change the config of a network filter if it is an HTTP connection manager."""
    if config_type(filter_) != HTTP_CONNECTION_MANAGER:
        return
    manager = HttpConnectionManager.FromString(filter_.typed_config.value)
    changes = edit.changes
    change(manager)
    if edit.changes != changes:
        filter_.typed_config.CopyFrom(any_of(manager))


def _edit_http_filters(edit: Edit, patches: list[Patch], manager: HttpConnectionManager) -> None:
    patch_filters(edit, manager.http_filters, patches)


def _edit_inline_table(edit: Edit, context: Context, manager: HttpConnectionManager) -> None:
    if manager.HasField("route_config"):
        edit_table(edit, manager.route_config, context)


# -- route tables


def edit_table(edit: Edit, table: RouteConfiguration, context: Context, ports: ServerPorts = ()) -> None:
    """Apply the patches for this table; ``ports`` are those of a router."""

    def matching(kind: ApplyTo) -> list[Patch]:
        return [p for p in edit.patches_to(kind) if table_matches(p, table.name, context, ports)]

    for patch in matching(ApplyTo.ROUTE_CONFIGURATION):
        edit.apply(patch, partial(_merge_table, table, patch))
    hosts, routes = matching(ApplyTo.VIRTUAL_HOST), matching(ApplyTo.HTTP_ROUTE)
    for index in reversed(range(len(table.virtual_hosts))):
        if not _edit_host(edit, table.virtual_hosts[index], hosts, routes):
            del table.virtual_hosts[index]
    for patch in hosts:
        if patch.operation is Operation.ADD:
            edit.apply(patch, partial(_add_host, table, patch))
    for patch in (*hosts, *routes):
        edit.miss(patch, "virtual hosts", (host.name for host in table.virtual_hosts))


def edit_host(edit: Edit, table: str, host: VirtualHost, context: Context, ports: ServerPorts = ()) -> bool:
    """Apply the patches for a virtual host that is a separate resource, and for its routes; False if it is removed."""

    def matching(kind: ApplyTo) -> list[Patch]:
        return [p for p in edit.patches_to(kind) if table_matches(p, table, context, ports)]

    return _edit_host(edit, host, matching(ApplyTo.VIRTUAL_HOST), matching(ApplyTo.HTTP_ROUTE))


def _merge_table(table: RouteConfiguration, patch: Patch) -> bool:
    check_name(table, patch.message)
    merge_patch(table, patch)
    return True


def _add_host(table: RouteConfiguration, patch: Patch) -> bool:
    table.virtual_hosts.append(patch.message)
    return True


def _edit_host(edit: Edit, host: VirtualHost, patches: list[Patch], route_patches: list[Patch]) -> bool:
    """Apply the patches for a virtual host; False if it is removed."""
    for patch in patches:
        if not virtual_host_matches(patch, host):
            continue
        if patch.operation is Operation.REMOVE:
            edit.apply(patch, lambda: True)
            return False
        if patch.operation is not Operation.ADD:
            edit.apply(patch, partial(_change_host, host, patch))
    _edit_routes(edit, host, [p for p in route_patches if virtual_host_matches(p, host)])
    return True


def _change_host(host: VirtualHost, patch: Patch) -> bool:
    if patch.is_merge:
        merge_patch(host, patch)
    else:
        host.CopyFrom(patch.message)
    return True


def _edit_routes(edit: Edit, host: VirtualHost, patches: list[Patch]) -> None:
    for index in reversed(range(len(host.routes))):
        for patch in patches:
            if not route_matches(patch, host.routes[index]):
                continue
            if patch.operation is Operation.REMOVE:
                edit.apply(patch, partial(_remove_route, host, index))
                break
            if patch.is_merge:
                edit.apply(patch, partial(_merge_route, host, index, patch))
    for patch in patches:
        if not patch.is_merge and patch.operation is not Operation.REMOVE:
            edit.apply(patch, partial(_insert_route, host, patch))


def _remove_route(host: VirtualHost, index: int) -> bool:
    del host.routes[index]
    return True


def _merge_route(host: VirtualHost, index: int, patch: Patch) -> bool:
    merge_patch(host.routes[index], patch)
    return True


def _insert_route(host: VirtualHost, patch: Patch) -> bool:
    """Add or insert a route; False if the route to go before or after is not there."""
    selects = names_route(patch)
    selected = next((i for i, r in enumerate(host.routes) if route_matches(patch, r)), None) if selects else None
    if patch.operation is not Operation.ADD and selects and selected is None:
        return False
    match patch.operation:
        case Operation.INSERT_FIRST:
            index = 0
        case Operation.INSERT_BEFORE:
            index = selected or 0
        case Operation.INSERT_AFTER if selected is not None:
            index = selected + 1
        case _:
            index = len(host.routes)
    host.routes.insert(index, patch.message)
    return True
