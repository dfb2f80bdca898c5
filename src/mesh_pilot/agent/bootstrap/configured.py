"""The parts of a bootstrap that a ProxyConfig and annotations make, for an Envoy with an agent and for one without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode, Json
from mesh_pilot.agent.bootstrap.proxy_config import METADATA
from mesh_pilot.agent.bootstrap.statistics_config import stats_config
from mesh_pilot.istio.meaning.durations import read_duration

META = "ISTIO_META_"
"""Prefix of the names in ``proxyMetadata`` that are metadata of the node."""
LOCAL_METRICS = "METRICS_LOCALHOST_ACCESS_ONLY"

RUNTIME: Mapping[str, Json] = {
    # By default Envoy refuses regular expressions of over 100 instructions.
    "re2.max_program_size.error_level": 32768,
    # As in Istio, a path with a fragment is served: the fragment is cut off.
    "envoy.reloadable_features.http_reject_path_with_fragment": False,
}
_MAX_CONNECTIONS = "envoy.resource_monitors.global_downstream_max_connections"
_CONNECTIONS_CONFIG = (
    "type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig"
)
_ADMIN_LAYER: Json = {"name": "admin", "admin_layer": {}}


def configured(
    node: EnvoyNode,
    config: Mapping[str, Any],
    annotations: Mapping[str, str],
    *,
    counts_drain: bool,
    counts_traffic: bool = False,
) -> dict[str, Json]:
    """The node, runtime, limits and statistics of a bootstrap; of the latter, see ``stats_config``."""
    described = node.to_dict()
    if cluster := _cluster(node, config):
        described["cluster"] = cluster
    return {
        "node": described,
        "layered_runtime": {"layers": [{"name": "static", "static_layer": _runtime(config)}, _ADMIN_LAYER]},
        "overload_manager": _overload(config),
        **stats_config(config, annotations, node.ips, counts_drain=counts_drain, counts_traffic=counts_traffic),
    }


def with_metadata(node: EnvoyNode, config: Mapping[str, Any]) -> EnvoyNode:
    """The node with the metadata that a ProxyConfig says. What it has stays."""
    metadata: dict[str, Any] = {
        name.removeprefix(META): value for name, value in config.get(METADATA, {}).items() if name.startswith(META)
    }
    if mesh := config.get("meshId"):
        metadata["MESH_ID"] = mesh
    return attrs.evolve(node, metadata={**metadata, **node.metadata})


def flush_flags(config: Mapping[str, Any]) -> list[str]:
    """The flags of Envoy that say when its files are written."""
    flags = []
    if "fileFlushInterval" in config:
        milliseconds = round(read_duration(config["fileFlushInterval"]).total_seconds() * 1000)
        flags += ["--file-flush-interval-msec", str(milliseconds)]
    if config.get("fileFlushMinSizeKb"):
        flags += ["--file-flush-min-size-kb", str(config["fileFlushMinSizeKb"])]
    return flags


def seconds(config: Mapping[str, Any], field: str, default: float) -> float:
    """A duration of a ProxyConfig."""
    return read_duration(config[field]).total_seconds() if field in config else default


def is_on(config: Mapping[str, Any], name: str) -> bool:
    """True if a name in ``proxyMetadata`` is true."""
    return str(config.get(METADATA, {}).get(name, "")).lower() == "true"


def _cluster(node: EnvoyNode, config: Mapping[str, Any]) -> str:
    """The node's cluster, where the ProxyConfig names one: it is the service's name in traces."""
    labels, namespace = node.labels, node.namespace
    canonical = labels.get("service.istio.io/canonical-name") or labels.get("app.kubernetes.io/name")
    canonical = canonical or labels.get("app") or node.name
    match config.get("tracingServiceName"):
        case "CANONICAL_NAME_ONLY":
            return canonical
        case "CANONICAL_NAME_AND_NAMESPACE":
            return f"{canonical}.{namespace}"
    named = config.get("serviceCluster", "")
    return "" if named == "istio-proxy" else named


def _runtime(config: Mapping[str, Any]) -> dict[str, Json]:
    """The static layer. An empty value removes a default of ours; true and false are not strings."""
    given = config.get("runtimeValues", {})
    words = {"true": True, "false": False}
    values = {name: words.get(value, value) for name, value in given.items() if value}
    return {**{name: value for name, value in RUNTIME.items() if name not in given}, **values}


def _overload(config: Mapping[str, Any]) -> Json:
    """The limit of connections, without which Envoy warns at each start."""
    limit = config.get("connectionSettings", {}).get("globalDownstreamConnectionLimit") or _number(
        config.get(METADATA, {}).get(f"{META}GLOBAL_DOWNSTREAM_MAX_CONNECTIONS", "")
    )
    monitor: Json = {"@type": _CONNECTIONS_CONFIG, "max_active_downstream_connections": limit or 2**31 - 1}
    return {"resource_monitors": [{"name": _MAX_CONNECTIONS, "typed_config": monitor}]}


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
