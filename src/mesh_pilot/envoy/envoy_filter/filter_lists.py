"""Patches to ordered lists of named filters: listener filters, network filters, HTTP filters.

First all that changes membership and order, patch by patch, then all merges: a patch can thus be to what another has
inserted. What is added to the end goes before the filter that has to be the last one (Pilot puts it after, and Envoy
refuses the listener), unless the patch says after which class of filters it goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from mesh_pilot.envoy.envoy_filter.edit import Edit
from mesh_pilot.envoy.envoy_filter.known_types import type_name
from mesh_pilot.envoy.envoy_filter.match import is_named, selected_name
from mesh_pilot.envoy.envoy_filter.merge import fits_filter, merge_filter
from mesh_pilot.envoy.envoy_filter.patch import FilterClass, Operation, Patch

_HTTP = "envoy.extensions.filters.http"
_NETWORK = "envoy.extensions.filters.network"

HTTP_CONNECTION_MANAGER = f"{_NETWORK}.http_connection_manager.v3.HttpConnectionManager"

TERMINAL = frozenset(
    (
        f"{_HTTP}.router.v3.Router",
        HTTP_CONNECTION_MANAGER,
        f"{_NETWORK}.tcp_proxy.v3.TcpProxy",
        f"{_NETWORK}.redis_proxy.v3.RedisProxy",
        f"{_NETWORK}.thrift_proxy.v3.ThriftProxy",
        f"{_NETWORK}.direct_response.v3.Config",
        f"{_NETWORK}.echo.v3.Echo",
    )
)
"""Types of filters after which there can be none."""

_AUTHN = frozenset(
    (
        f"{_HTTP}.jwt_authn.v3.JwtAuthentication",
        f"{_HTTP}.oauth2.v3.OAuth2",
        f"{_HTTP}.basic_auth.v3.BasicAuth",
        f"{_HTTP}.api_key_auth.v3.ApiKeyAuth",
    )
)
_AUTHZ = frozenset(
    (
        f"{_HTTP}.rbac.v3.RBAC",
        f"{_HTTP}.ext_authz.v3.ExtAuthz",
        f"{_NETWORK}.rbac.v3.RBAC",
        f"{_NETWORK}.ext_authz.v3.ExtAuthz",
    )
)
AFTER: Mapping[FilterClass, frozenset[str]] = {FilterClass.AUTHN: _AUTHN, FilterClass.AUTHZ: _AUTHN | _AUTHZ}
"""Types of the filters after which one that is added for a class goes. Istio's filters for the class STATS, before
which that goes, are none of a stock Envoy's: it goes to the end."""

# The three kinds of filters have name and typed_config in common, but no type; hence Any for them and their lists.


def patch_filters(edit: Edit, filters: Any, patches: Sequence[Patch]) -> None:
    """Apply patches, all of which are for what holds the list, to a repeated field of filters."""
    for patch in patches:
        if not patch.is_merge:
            edit.apply(patch, partial(_place, filters, patch))
    for held in filters:
        for patch in patches:
            if patch.is_merge and _is_meant(held, patch):
                edit.apply(patch, partial(_merge, held, patch))


def config_type(held: Any) -> str:
    """The type of a filter's config; empty where it has none of its own."""
    return type_name(held.typed_config.type_url)


def _is_meant(held: Any, patch: Patch) -> bool:
    """A merge that names no filter is for those of its type."""
    wanted = selected_name(patch)
    return is_named(wanted, held.name) if wanted else fits_filter(held, patch)


def _merge(held: Any, patch: Patch) -> bool:
    merge_filter(held, patch)
    return True


def _place(filters: Any, patch: Patch) -> bool:
    """Add, insert, replace or remove; whether there was anything to do it to."""
    wanted = selected_name(patch)
    found = [at for at, held in enumerate(filters) if wanted and is_named(wanted, held.name)]
    if patch.operation is Operation.ADD:
        filters.insert(_end(filters, patch.filter_class), patch.message)
        return True
    if wanted and not found:
        return False
    match patch.operation:
        case Operation.REMOVE:
            for at in reversed(found):
                del filters[at]
        case Operation.REPLACE:
            filters[found[0]].CopyFrom(patch.message)
        case Operation.INSERT_AFTER:
            filters.insert(found[0] + 1 if found else _end(filters), patch.message)
        case Operation.INSERT_BEFORE:
            filters.insert(found[0] if found else 0, patch.message)
        case Operation.INSERT_FIRST:
            filters.insert(0, patch.message)
    return True


def _end(filters: Any, filter_class: FilterClass = FilterClass.UNSPECIFIED) -> int:
    before = AFTER.get(filter_class)
    if before is not None:
        return max((at + 1 for at, held in enumerate(filters) if config_type(held) in before), default=0)
    count = len(filters)
    return count - 1 if count and config_type(filters[-1]) in TERMINAL else count
