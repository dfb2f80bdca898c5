"""The bootstrap of an Envoy that an agent runs: everything dynamic comes from the agent's Unix socket.

Shapes and names are those of the bootstrap that Istio's agent writes, so that dashboards and EnvoyFilters fit.
"""

from __future__ import annotations

import ipaddress

from mesh_pilot.agent.bootstrap.envoy_bootstrap import Json, envoy_bootstrap
from mesh_pilot.agent.bootstrap.static_resources import (
    ADMIN_CLUSTER,
    AGENT_CLUSTER,
    http_listener,
    sds_cluster,
    socket_address,
    static_cluster,
    xds_cluster,
)
from mesh_pilot.agent.settings import AgentSettings


def agent_bootstrap(settings: AgentSettings, from_plane: bytes | None = None) -> dict[str, Json]:
    """The bootstrap as JSON. ``from_plane``: the control plane's ``istio.mesh.v1alpha1.ProxyConfig``, encoded."""
    ports, folders = settings.ports, settings.folders
    is_ipv6 = ipaddress.ip_address(settings.node.ip).version == 6
    localhost, wildcard = ("::1", "::") if is_ipv6 else ("127.0.0.1", "0.0.0.0")
    admin = socket_address(localhost, ports.admin)
    clusters = [
        xds_cluster(folders.socket),
        sds_cluster(settings.credentials.sds_socket or folders.socket),
        static_cluster(ADMIN_CLUSTER, admin),
        static_cluster(AGENT_CLUSTER, socket_address(localhost, ports.status)),
    ]
    listeners = []
    if ports.prometheus:
        listeners.append(http_listener(wildcard, ports.prometheus, "stats", "/stats/prometheus", ADMIN_CLUSTER))
    if ports.readiness:
        listeners.append(http_listener(wildcard, ports.readiness, "agent", "/healthz/ready", AGENT_CLUSTER))
    return {
        **envoy_bootstrap(settings.node, f"unix://{folders.socket}", delta=settings.delta),
        "admin": {"address": admin},
        "static_resources": {"clusters": clusters, "listeners": listeners},
    }
