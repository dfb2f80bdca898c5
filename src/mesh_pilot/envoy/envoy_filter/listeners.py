"""Patches to a listener: to itself, its filter chains, its filters of all kinds, and route tables inside it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from envoy.config.listener.v3.listener_components_pb2 import Filter, FilterChain
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
)

from mesh_pilot.envoy.core.protobuf import any_of
from mesh_pilot.envoy.envoy_filter.edit import Edit
from mesh_pilot.envoy.envoy_filter.filter_lists import HTTP_CONNECTION_MANAGER, config_type, patch_filters
from mesh_pilot.envoy.envoy_filter.match import chain_matches, is_named, listener_matches, network_filter_name
from mesh_pilot.envoy.envoy_filter.merge import check_name, merge_patch, merge_socket, replaces_lists
from mesh_pilot.envoy.envoy_filter.patch import ApplyTo, Context, Operation, Patch
from mesh_pilot.envoy.envoy_filter.routes import TABLE_KINDS, edit_table

SOCKET = frozenset(("transport_socket",))


def edit_listener(edit: Edit, listener: Listener, context: Context) -> bool:
    """Apply what is for this listener; False where it is removed."""
    if any(edit.of(kind) for kind in TABLE_KINDS):
        for chain in _chains(listener):
            for held in chain.filters:
                _edit_manager(edit, held, partial(_edit_inline_table, edit, context))
    for patch in edit.of(ApplyTo.LISTENER):
        if listener_matches(patch, listener):
            if patch.operation is Operation.REMOVE:
                edit.apply(patch, lambda: True)
                return False
            if patch.is_merge:
                edit.apply(patch, partial(_merge_listener, listener, patch))
    inner = [p for p in edit.of(ApplyTo.LISTENER_FILTER) if listener_matches(p, listener)]
    patch_filters(edit, listener.listener_filters, inner)
    _edit_chains(edit, listener)
    return True


def _chains(listener: Listener) -> list[FilterChain]:
    default = [listener.default_filter_chain] if listener.HasField("default_filter_chain") else []
    return [*listener.filter_chains, *default]


def _merge_listener(listener: Listener, patch: Patch) -> bool:
    check_name(listener, patch.message)
    merge_patch(listener, patch)
    return True


def _edit_chains(edit: Edit, listener: Listener) -> None:
    for at in reversed(range(len(listener.filter_chains))):
        if not _edit_chain(edit, listener, listener.filter_chains[at]):
            del listener.filter_chains[at]
    if listener.HasField("default_filter_chain") and not _edit_chain(edit, listener, listener.default_filter_chain):
        listener.ClearField("default_filter_chain")
    for patch in edit.of(ApplyTo.FILTER_CHAIN):
        if patch.operation is Operation.ADD and listener_matches(patch, listener):
            edit.apply(patch, partial(_add_chain, listener, patch))


def _add_chain(listener: Listener, patch: Patch) -> bool:
    listener.filter_chains.append(patch.message)
    return True


def _edit_chain(edit: Edit, listener: Listener, chain: FilterChain) -> bool:
    """Apply what is for a filter chain; False where it is removed."""

    def meant(kind: ApplyTo) -> list[Patch]:
        return [p for p in edit.of(kind) if listener_matches(p, listener) and chain_matches(p, listener, chain)]

    for patch in meant(ApplyTo.FILTER_CHAIN):
        if patch.operation is Operation.REMOVE:
            edit.apply(patch, lambda: True)
            return False
        if patch.is_merge:
            edit.apply(patch, partial(_merge_chain, chain, patch))
    patch_filters(edit, chain.filters, meant(ApplyTo.NETWORK_FILTER))
    http = meant(ApplyTo.HTTP_FILTER)
    for held in chain.filters:
        own = [p for p in http if network_filter_name(p) == "" or is_named(network_filter_name(p), held.name)]
        if own:
            _edit_manager(edit, held, partial(_edit_http_filters, edit, own))
    return True


def _merge_chain(chain: FilterChain, patch: Patch) -> bool:
    source = patch.message
    assert isinstance(source, FilterChain)
    if source.HasField("transport_socket"):
        merge_socket(chain.transport_socket, source.transport_socket, replace_lists=replaces_lists(patch))
    merge_patch(chain, patch, without=SOCKET)
    return True


def _edit_manager(edit: Edit, held: Filter, change: Callable[[HttpConnectionManager], None]) -> None:
    """Change the config of a filter if it is an HTTP connection manager."""
    if config_type(held) != HTTP_CONNECTION_MANAGER:
        return
    manager = HttpConnectionManager.FromString(held.typed_config.value)
    before = edit.changes
    change(manager)
    if edit.changes != before:
        held.typed_config.CopyFrom(any_of(manager))


def _edit_http_filters(edit: Edit, patches: list[Patch], manager: HttpConnectionManager) -> None:
    patch_filters(edit, manager.http_filters, patches)


def _edit_inline_table(edit: Edit, context: Context, manager: HttpConnectionManager) -> None:
    if manager.HasField("route_config"):
        edit_table(edit, manager.route_config, context)
