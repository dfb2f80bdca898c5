"""The static clusters and listeners of an Envoy next to an agent, with the names that Istio's bootstrap gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mesh_pilot.agent.bootstrap.envoy_bootstrap import XDS_CLUSTER, Json
from mesh_pilot.model.proxy import LOCAL_CLUSTER, SELF_DISCOVERY

SDS_CLUSTER = "sds-grpc"
"""The cluster of the server of ``default`` and ``ROOTCA``."""
ADMIN_CLUSTER = "prometheus_stats"
AGENT_CLUSTER = "agent"
OWN_CLUSTERS = frozenset((XDS_CLUSTER, SDS_CLUSTER, ADMIN_CLUSTER, AGENT_CLUSTER))
"""Clusters of Envoy and its agent alone: what they do is not the mesh's traffic."""

_MANY: Mapping[str, Json] = {
    f"max_{name}": 100_000 for name in ("connections", "pending_requests", "requests", "retries")
}
_HTTP = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_ROUTER = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
_MANAGER = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"


def socket_address(host: str, port: int) -> dict[str, Json]:
    return {"socket_address": {"address": host, "port_value": port}}


def _bound(hosts: Sequence[str], port: int) -> dict[str, Json]:
    """The addresses of a listener; ``::`` alone takes IPv4, too."""
    if tuple(hosts) == ("::",):
        return {"address": {"socket_address": {"address": "::", "port_value": port, "ipv4_compat": True}}}
    first, *further = (socket_address(host, port) for host in hosts)
    also: dict[str, Json] = {"additional_addresses": [{"address": each} for each in further]} if further else {}
    return {"address": first, **also}


def http2() -> dict[str, Json]:
    """The part of a cluster that makes it speak HTTP/2."""
    options: Json = {"@type": _HTTP, "explicit_http_config": {"http2_protocol_options": {}}}
    return {"typed_extension_protocol_options": {_HTTP.partition("/")[2]: options}}


def static_cluster(name: str, address: Json, **more: Json) -> dict[str, Json]:
    """A cluster with one address. The semicolon in its name in statistics ends the name for the tags."""
    return {
        "name": name,
        "alt_stat_name": f"{name};",
        "type": "STATIC",
        "connect_timeout": "0.25s",
        **assignment(name, address),
        **more,
    }


def assignment(name: str, address: Json) -> dict[str, Json]:
    """The part of a cluster with its one endpoint."""
    endpoint: Json = {"lb_endpoints": [{"endpoint": {"address": address}}]}
    return {"load_assignment": {"cluster_name": name, "endpoints": [endpoint]}}


def xds_cluster(socket: Path) -> dict[str, Json]:
    """The agent, as server of all xDS."""
    return static_cluster(
        XDS_CLUSTER,
        {"pipe": {"path": str(socket)}},
        connect_timeout="1s",
        circuit_breakers=many_at_once(),
        **http2(),
    )


def with_local_cluster(bootstrap: Mapping[str, Any]) -> dict[str, Json]:
    """The bootstrap with a local cluster, if its node says that it has one. Its endpoints come over ADS."""
    if str(bootstrap["node"]["metadata"].get(SELF_DISCOVERY, "")).lower() != "true":
        return dict(bootstrap)
    static = bootstrap["static_resources"]
    local: Json = {
        "name": LOCAL_CLUSTER,
        "alt_stat_name": f"{LOCAL_CLUSTER};",
        "type": "EDS",
        "connect_timeout": "1s",
        "eds_cluster_config": {"eds_config": {"ads": {}, "resource_api_version": "V3"}},
    }
    return {
        **bootstrap,
        "cluster_manager": {**bootstrap.get("cluster_manager", {}), "local_cluster_name": LOCAL_CLUSTER},
        "static_resources": {**static, "clusters": [*static["clusters"], local]},
    }


def many_at_once() -> Json:
    """Circuit breakers that do not break: Envoy's own allow 3 retries at a time."""
    return {"thresholds": [{"priority": name, **_MANY} for name in ("DEFAULT", "HIGH")]}


def sds_cluster(socket: Path) -> dict[str, Json]:
    """The agent, or SPIRE's, as server of the certificate and its roots."""
    return static_cluster(SDS_CLUSTER, {"pipe": {"path": str(socket)}}, connect_timeout="1s", **http2())


def http_listener(
    hosts: Sequence[str],
    port: int,
    stat_prefix: str,
    path: str,
    cluster: str,
    filters: tuple[Json, ...] = (),
    *,
    answered_at: str = "",
) -> dict[str, Json]:
    """A listener that passes one path to a cluster, as another path with ``answered_at``. It serves while Envoy sheds
    load."""
    # The agent closes connections when its next version takes over, which answers on new ones.
    retries: Json = {"retry_on": "reset,connect-failure", "num_retries": 3}
    match: Json = {"path": path} if answered_at else {"prefix": path}
    rewrite: Mapping[str, Json] = {"prefix_rewrite": answered_at} if answered_at else {}
    routes: Json = [{"match": match, "route": {"cluster": cluster, "retry_policy": retries, **rewrite}}]
    manager: Mapping[str, Json] = {
        "@type": _MANAGER,
        "stat_prefix": stat_prefix,
        "route_config": {"virtual_hosts": [{"name": "backend", "domains": ["*"], "routes": routes}]},
        "http_filters": [*filters, {"name": "envoy.filters.http.router", "typed_config": {"@type": _ROUTER}}],
    }
    manager_filter: Json = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    return {
        "name": f"{hosts[0]}_{port}",
        **_bound(hosts, port),
        "ignore_global_conn_limit": True,
        "bypass_overload_manager": True,
        "filter_chains": [{"filters": [manager_filter]}],
    }


def http1_once() -> dict[str, Json]:
    """Protocol options with one request for each connection: none is sent on one that is about to be closed."""
    config: Json = {"http_protocol_options": {}}
    common: Json = {"max_requests_per_connection": 1}
    options: Json = {"@type": _HTTP, "common_http_protocol_options": common, "explicit_http_config": config}
    return {"typed_extension_protocol_options": {_HTTP.removeprefix("type.googleapis.com/"): options}}


def compressors() -> tuple[Json, ...]:
    """Filters that compress statistics as the client asks."""
    return tuple(_compressor(name) for name in ("brotli", "zstd", "gzip"))


def _compressor(name: str) -> Json:
    kind = f"type.googleapis.com/envoy.extensions.compression.{name}.compressor.v3.{name.capitalize()}"
    library: Json = {"name": f"stats_{name}", "typed_config": {"@type": kind}}
    config: Json = {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.compressor.v3.Compressor",
        "compressor_library": library,
    }
    return {"name": f"envoy.filters.http.compressor.{name}", "typed_config": config}
