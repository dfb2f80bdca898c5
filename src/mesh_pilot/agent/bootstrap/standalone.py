"""The other parts of Istio's bootstrap for an Envoy without an agent, which somebody else starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mesh_pilot.agent.bootstrap.configured import LOCAL_METRICS, configured, is_on, with_metadata
from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode, Json
from mesh_pilot.agent.bootstrap.proxy_config import AT_THE_PLANE, Place, effects
from mesh_pilot.agent.bootstrap.remote_services import RemoteServiceError, parts_of
from mesh_pilot.agent.bootstrap.static_resources import (
    ADMIN_CLUSTER,
    SDS_CLUSTER,
    compressors,
    http_listener,
    static_cluster,
)

_ELSEWHERE: Mapping[str, str] = {
    "binaryPath": "it is for whoever starts Envoy",
    "customConfigFile": "use --custom-bootstrap",
    "discoveryAddress": "use --pilot",
    "interceptionMode": "use --interception",
    "parentShutdownDuration": "it is for whoever starts Envoy",
    "proxyAdminPort": "use --admin",
}


def without_effect(config: Mapping[str, Any]) -> Mapping[str, str]:
    """The fields of a ProxyConfig that this bootstrap does not have, each with what to do."""
    found = {name: _ELSEWHERE[name] for name in config if name in _ELSEWHERE}
    for name in config.keys() - found.keys():
        where, text = effects()[name]
        if where is Place.AGENT:
            found[name] = "mesh-pilot proxy has it"
        elif where is Place.NOWHERE:
            found[name] = text.replace("`", "")
    return found


def with_proxy_config(
    bootstrap: Mapping[str, Json], node: EnvoyNode, config: Mapping[str, Any], annotations: Mapping[str, str]
) -> dict[str, Json]:
    """The bootstrap with what a ProxyConfig and annotations put there. Raises RemoteServiceError."""
    node = with_metadata(node, config)
    remote = parts_of(config, node.cluster, is_ipv6=node.is_ipv6)
    if SDS_CLUSTER in json.dumps(remote):
        name = next(name for name in config if "ISTIO_MUTUAL" in json.dumps(config[name]))
        raise RemoteServiceError(name, "without an agent, tlsSettings take files: use MUTUAL, or mesh-pilot proxy")
    extra = remote.pop("clusters")
    metadata: dict[str, Json] = {"ANNOTATIONS": dict(annotations)} if annotations else {}
    if of_plane := {name: config[name] for name in AT_THE_PLANE if name in config}:
        metadata["PROXY_CONFIG"] = of_plane
    parts: dict[str, Any] = configured(node, config, annotations, counts_drain=False)
    described = parts["node"]
    parts["node"] = {**described, "metadata": {**metadata, **described["metadata"]}}
    return {**_with_static(bootstrap, clusters=extra), **parts, **remote}


def with_listeners(
    bootstrap: Mapping[str, Any], node: EnvoyNode, config: Mapping[str, Any], *, readiness: int, prometheus: int
) -> dict[str, Json]:
    """The bootstrap with listeners for readiness and metrics, which Envoy's admin interface answers; 0: none."""
    listeners: list[Json] = []
    if prometheus:
        filters = compressors() if config.get("statsCompression", True) else ()
        where = ("127.0.0.1",) if is_on(config, LOCAL_METRICS) else node.wildcards
        listeners.append(http_listener(where, prometheus, "stats", "/stats/prometheus", ADMIN_CLUSTER, filters))
    if readiness:
        listeners.append(
            http_listener(node.wildcards, readiness, "agent", "/healthz/ready", ADMIN_CLUSTER, answered_at="/ready")
        )
    admin = static_cluster(ADMIN_CLUSTER, bootstrap["admin"]["address"])
    return _with_static(bootstrap, clusters=[admin], listeners=listeners) if listeners else dict(bootstrap)


def _with_static(bootstrap: Mapping[str, Any], **more: list[Json]) -> dict[str, Json]:
    static = bootstrap["static_resources"]
    joined = {kind: [*static.get(kind, ()), *entries] for kind, entries in more.items()}
    return {**bootstrap, "static_resources": {**static, **joined}}
