"""Rules for EnvoyFilter: patches that make sense. Whether their values are Envoy's is known where they are applied."""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.api.istio.networking.v1alpha3 import EnvoyFilterApplyTo as ApplyTo
from mesh_pilot.api.istio.networking.v1alpha3 import EnvoyFilterPatchContext as PatchContext
from mesh_pilot.api.istio.networking.v1alpha3 import EnvoyFilterPatchOperation as Operation
from mesh_pilot.istio.rules.common import check_targets, check_workload_selector
from mesh_pilot.istio.rules.context import Context, check, check_parts, error, warning
from mesh_pilot.istio.rules.regex import regex_reason
from mesh_pilot.model.config import Problem

HTTP_CONNECTION_MANAGER = "envoy.filters.network.http_connection_manager"

_RENAMED = {
    "envoy.http_dynamo_filter": "envoy.filters.http.dynamo",
    "envoy.rate_limit": "envoy.filters.http.ratelimit",
    **{
        f"envoy.{name}": f"envoy.filters.http.{name}"
        for name in (
            "buffer", "cors", "csrf", "fault", "grpc_http1_bridge", "grpc_json_transcoder", "grpc_web", "gzip",
            "health_check", "ip_tagging", "lua", "router", "squash",
        )
    },
    **{
        f"envoy.{name}": f"envoy.filters.network.{name}"
        for name in (
            "client_ssl_auth", "ext_authz", "http_connection_manager", "mongo_proxy", "ratelimit", "redis_proxy",
            "tcp_proxy",
        )
    },
    **{
        f"envoy.listener.{name}": f"envoy.filters.listener.{name}"
        for name in ("http_inspector", "original_dst", "original_src", "proxy_protocol", "tls_inspector")
    },
}  # fmt: skip
"""Filters by their names before Envoy 1.14, which no filter has any more."""

_LISTENER_PARTS = (
    ApplyTo.LISTENER,
    ApplyTo.FILTER_CHAIN,
    ApplyTo.NETWORK_FILTER,
    ApplyTo.HTTP_FILTER,
    ApplyTo.LISTENER_FILTER,
)
_ROUTE_PARTS = (ApplyTo.ROUTE_CONFIGURATION, ApplyTo.VIRTUAL_HOST, ApplyTo.HTTP_ROUTE)
_ORDERED = (Operation.INSERT_BEFORE, Operation.INSERT_AFTER, Operation.INSERT_FIRST)
_IN_LISTS = (ApplyTo.NETWORK_FILTER, ApplyTo.HTTP_FILTER, ApplyTo.LISTENER_FILTER, ApplyTo.HTTP_ROUTE)
_REPLACEABLE = (ApplyTo.NETWORK_FILTER, ApplyTo.HTTP_FILTER, ApplyTo.LISTENER_FILTER, ApplyTo.VIRTUAL_HOST)


def validate(spec: api.EnvoyFilter, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with an EnvoyFilter."""
    yield from check_workload_selector(spec.workload_selector)
    yield from check_targets(
        spec.workload_selector is not None, None, spec.target_refs, context, selector_name="workloadSelector"
    )
    yield from check_parts("spec", spec, _check_patch, "config_patches")


def _check_patch(path: str, patch: api.EnvoyFilterEnvoyConfigObjectPatch) -> Iterator[Problem]:
    if patch.match is not None and patch.match.context == PatchContext.WAYPOINT:
        return  # said to have no effect where it is parsed, whatever it is
    if patch.apply_to == ApplyTo.INVALID:
        yield error(f"{path}.applyTo", "is missing")
    if patch.patch is None:
        yield error(f"{path}.patch", "is missing")
    else:
        operation = patch.patch.operation
        if operation == Operation.INVALID:
            yield error(f"{path}.patch.operation", "is missing")
        elif operation != Operation.REMOVE and patch.patch.value is None:
            yield error(f"{path}.patch.value", f"is missing: operation {operation.name} needs it")
        elif operation in _ORDERED and patch.apply_to not in (*_IN_LISTS, ApplyTo.INVALID):
            reason = f"{operation.name} is taken as ADD on {patch.apply_to.name}, which is in no ordered list"
            yield warning(f"{path}.patch.operation", reason)
        elif operation == Operation.REPLACE and patch.apply_to not in (*_REPLACEABLE, ApplyTo.INVALID):
            reason = f"REPLACE has no effect on {patch.apply_to.name}; it is for filters and virtual hosts"
            yield warning(f"{path}.patch.operation", reason)
    if patch.match is not None:
        yield from _check_match(f"{path}.match", patch.apply_to, patch.match)


def _check_match(path: str, apply_to: ApplyTo, match: api.EnvoyFilterEnvoyConfigObjectMatch) -> Iterator[Problem]:
    if match.proxy is not None and match.proxy.proxy_version:
        yield from check(f"{path}.proxy.proxyVersion", regex_reason(match.proxy.proxy_version))
    given = {
        "listener": match.listener,
        "routeConfiguration": match.route_configuration,
        "cluster": match.cluster,
        "waypoint": match.waypoint,
    }
    wanted = _wanted(apply_to)
    for name, value in given.items():
        if value is not None and wanted and name not in (wanted, "waypoint"):
            yield error(f"{path}.{name}", f"does not go with applyTo {apply_to.name}, which is matched by {wanted}")
    if match.listener is not None and wanted == "listener":
        yield from _check_filter_name(f"{path}.listener.listenerFilter", match.listener.listener_filter)
        yield from _check_listener(f"{path}.listener", apply_to, match.listener)


def _wanted(apply_to: ApplyTo) -> str:
    if apply_to in _LISTENER_PARTS:
        return "listener"
    if apply_to in _ROUTE_PARTS:
        return "routeConfiguration"
    return "cluster" if apply_to == ApplyTo.CLUSTER else ""


def _check_listener(path: str, apply_to: ApplyTo, match: api.EnvoyFilterListenerMatch) -> Iterator[Problem]:
    chain = match.filter_chain
    if chain is None or chain.filter is None:
        return
    path = f"{path}.filterChain.filter"
    if apply_to in (ApplyTo.LISTENER, ApplyTo.FILTER_CHAIN):
        yield warning(path, f"has no effect with applyTo {apply_to.name}")
    yield from _check_filter_name(f"{path}.name", chain.filter.name)
    if chain.filter.sub_filter is not None:
        yield from _check_filter_name(f"{path}.subFilter.name", chain.filter.sub_filter.name)
    if not chain.filter.name:
        yield error(f"{path}.name", "is missing")
    elif chain.filter.sub_filter is not None:
        if apply_to != ApplyTo.HTTP_FILTER:
            yield error(f"{path}.subFilter", "can only be matched with applyTo HTTP_FILTER")
        elif chain.filter.name not in (HTTP_CONNECTION_MANAGER, "envoy.http_connection_manager"):
            yield error(f"{path}.subFilter", f"only {HTTP_CONNECTION_MANAGER} has sub-filters")
        elif not chain.filter.sub_filter.name:
            yield error(f"{path}.subFilter.name", "is missing")


def _check_filter_name(path: str, name: str) -> Iterator[Problem]:
    if name in _RENAMED:
        yield warning(path, f"matches nothing: {name} is called {_RENAMED[name]} since Envoy 1.14")
