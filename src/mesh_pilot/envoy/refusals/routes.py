"""Route tables, virtual hosts and routes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mesh_pilot.envoy.refusals.extensions import per_route_configs, repeated_upgrades
from mesh_pilot.envoy.refusals.formats import is_fixed_header
from mesh_pilot.envoy.refusals.pairs import Rule, excludes, not_less, one_of

MAX_WEIGHT = 2**32 - 1
MAX_BODY = 4096
"""Bytes in the body of a direct response, if the table says nothing else."""


def _table(table: Any) -> Iterator[str]:
    yield from _removed_headers(table)
    yield from per_route_configs(table)
    yield from _domains(table.virtual_hosts)
    if table.vhds.config_source.HasField("ads"):
        yield "vhds: only tables whose virtual hosts this control plane sends apart have it"
    plugins = {plugin.extension.name for plugin in table.cluster_specifier_plugins}
    most = table.max_direct_response_body_size_bytes.value or MAX_BODY
    for number, host in enumerate(table.virtual_hosts):
        for index, route in enumerate(host.routes):
            path = f"virtual_hosts[{number}].routes[{index}]"
            body = route.direct_response.body
            size = len(body.inline_bytes) or len(body.inline_string.encode())
            if size > most:
                yield f"{path}.direct_response.body: has {size} bytes, allowed are {most}"
            plugin = route.route.cluster_specifier_plugin
            if plugin and plugin not in plugins:
                yield f"{path}.route.cluster_specifier_plugin: the table has no plugin {plugin}"


def _domains(hosts: Any) -> Iterator[str]:
    """No domain may be there twice, whatever its case."""
    seen: dict[str, str] = {}
    for number, host in enumerate(hosts):
        for index, domain in enumerate(host.domains):
            lower = domain.lower()
            if lower in seen:
                yield f"virtual_hosts[{number}].domains[{index}]: {domain} is a domain of {seen[lower]} already"
            seen.setdefault(lower, host.name)


def _host(host: Any) -> Iterator[str]:
    yield from _removed_headers(host)
    yield from per_route_configs(host)
    yield from excludes("matcher", "routes")(host)
    for index, cluster in enumerate(host.virtual_clusters):
        if not cluster.headers:
            yield f"virtual_clusters[{index}].headers: is missing"


def _route(route: Any) -> Iterator[str]:
    yield from _removed_headers(route)
    yield from per_route_configs(route)


def _action(action: Any) -> Iterator[str]:
    rewrites = [name for name in ("regex_rewrite", "path_rewrite_policy") if action.HasField(name)]
    rewrites += ["prefix_rewrite"] if action.prefix_rewrite else []
    if len(rewrites) > 1:
        yield f"{rewrites[0]}: goes not with {rewrites[1]}"
    upgrades = [config.upgrade_type.lower() for config in action.upgrade_configs]
    for index, config in enumerate(action.upgrade_configs):
        if config.HasField("connect_config") and upgrades[index] not in ("connect", "connect-udp"):
            yield f"upgrade_configs[{index}].connect_config: is for the upgrade CONNECT only"
    yield from repeated_upgrades(action)


def _weighted(weighted: Any) -> Iterator[str]:
    for index, part in enumerate(weighted.clusters):
        if bool(part.name) == bool(part.cluster_header):
            yield f"clusters[{index}].name: one of name and cluster_header has to be set"
        if not part.HasField("weight"):
            yield f"clusters[{index}].weight: is missing"
        yield from (f"clusters[{index}].{text}" for text in (*_removed_headers(part), *per_route_configs(part)))
    total = sum(part.weight.value for part in weighted.clusters)
    if weighted.clusters and not 0 < total <= MAX_WEIGHT:
        yield f"clusters: the sum of weights is {total}; it has to be from 1 to {MAX_WEIGHT}"


def _removed_headers(message: Any) -> Iterator[str]:
    """The fields ``request_headers_to_remove`` and ``response_headers_to_remove``."""
    for field in ("request_headers_to_remove", "response_headers_to_remove"):
        for index, name in enumerate(getattr(message, field)):
            if is_fixed_header(name):
                yield f"{field}[{index}]: {name[:100]} can't be removed"


_ROUTE = "envoy.config.route.v3"

RULES: Mapping[str, Rule] = {
    f"{_ROUTE}.RouteConfiguration": _table,
    f"{_ROUTE}.VirtualHost": _host,
    f"{_ROUTE}.Route": _route,
    f"{_ROUTE}.RouteAction": _action,
    f"{_ROUTE}.RouteAction.RequestMirrorPolicy": one_of("cluster", "cluster_header"),
    f"{_ROUTE}.WeightedCluster": _weighted,
    f"{_ROUTE}.RetryPolicy.RetryBackOff": not_less("max_interval", "base_interval"),
}
