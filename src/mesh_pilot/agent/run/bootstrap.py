"""The bootstrap of an Envoy that an agent runs: everything dynamic comes from the agent's Unix socket.

Shapes and names are those of the bootstrap that Istio's agent writes, so that dashboards and EnvoyFilters fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import structlog

from mesh_pilot.agent.bootstrap.configured import (
    LOCAL_METRICS,
    META,
    configured,
    flush_flags,
    is_on,
    seconds,
    with_metadata,
)
from mesh_pilot.agent.bootstrap.custom import CustomBootstrapError, customized
from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode, Json, envoy_bootstrap
from mesh_pilot.agent.bootstrap.metrics_filter import with_filtered_metrics
from mesh_pilot.agent.bootstrap.patches import BootstrapPatch, with_patches
from mesh_pilot.agent.bootstrap.proxy_config import METADATA, effective
from mesh_pilot.agent.bootstrap.remote_services import RemoteServiceError, parts_of
from mesh_pilot.agent.bootstrap.static_resources import (
    ADMIN_CLUSTER,
    AGENT_CLUSTER,
    compressors,
    http1_once,
    http_listener,
    many_at_once,
    sds_cluster,
    socket_address,
    static_cluster,
    with_local_cluster,
    xds_cluster,
)
from mesh_pilot.agent.identity.credentials import serves_secrets
from mesh_pilot.agent.settings import MINIMUM_DRAIN_SECONDS, AgentError, AgentSettings, EnvoySettings
from mesh_pilot.agent.status.exports import MetricsExports, read_exports
from mesh_pilot.base.protowire import WireError
from mesh_pilot.base.reading import as_object
from mesh_pilot.istio.meaning.durations import read_duration
from mesh_pilot.model.proxy import RBAC_RULE_STATS

log = structlog.get_logger(scope="agent.bootstrap")

EXIT_ON_ZERO, MINIMUM_DRAIN = "EXIT_ON_ZERO_ACTIVE_CONNECTIONS", "MINIMUM_DRAIN_DURATION"
"""Other names in ``proxyMetadata`` that have an effect."""

DNS_CAPTURE = "DNS_CAPTURE"
"""Metadata of the node that lead the control plane to give addresses which only the agent's DNS answers."""

TERMINATION_DRAIN_SECONDS = 5.0


def agent_bootstrap(
    settings: AgentSettings, from_plane: bytes | None = None, patches: Sequence[BootstrapPatch] = ()
) -> dict[str, Json]:
    """The bootstrap as JSON. ``from_plane``: the control plane's ``istio.mesh.v1alpha1.ProxyConfig``, encoded.
    ``patches``: those of them that are to be merged.

    Reads the custom bootstrap. Raises AgentError if that cannot be merged.
    """
    config = _effective(settings, from_plane)
    ports, folders = settings.ports, settings.folders
    wildcards = settings.node.wildcards
    admin = socket_address("127.0.0.1", ports.admin)
    node = _node(settings, config)
    remote = _remote(config, node)
    clusters = [
        xds_cluster(folders.socket),
        sds_cluster(settings.credentials.sds_socket or folders.socket),
        static_cluster(ADMIN_CLUSTER, admin),
        static_cluster(
            AGENT_CLUSTER,
            socket_address("127.0.0.1", ports.status),
            circuit_breakers=many_at_once(),
            **http1_once(),
        ),
        *remote.pop("clusters"),
    ]
    listeners = []
    if ports.prometheus:
        filters = compressors() if config.get("statsCompression", True) else ()
        where = ("127.0.0.1",) if is_on(config, LOCAL_METRICS) else wildcards
        listeners.append(http_listener(where, ports.prometheus, "stats", "/stats/prometheus", ADMIN_CLUSTER, filters))
    if ports.readiness:
        listeners.append(http_listener(wildcards, ports.readiness, "agent", "/healthz/ready", AGENT_CLUSTER))
    bootstrap: dict[str, Json] = {
        **envoy_bootstrap(
            node,
            f"unix://{folders.socket}",
            delta=settings.delta,
            comes_again_soon=True,
            load_reports=settings.traffic,
        ),
        "admin": {"address": admin},
        "static_resources": {"clusters": clusters, "listeners": listeners},
        **configured(
            node,
            config,
            _annotations(settings),
            counts_drain=_exits_on_zero(settings, config),
            counts_traffic=settings.traffic,
        ),
        **remote,
    }
    bootstrap = with_patches(with_local_cluster(bootstrap), patches)
    if settings.envoy.custom_bootstrap is not None:
        try:
            bootstrap = customized(bootstrap, settings.envoy.custom_bootstrap)
        except CustomBootstrapError as error:
            raise AgentError(str(error)) from None
    return with_filtered_metrics(bootstrap)


def envoy_settings(settings: AgentSettings, from_plane: bytes | None = None) -> EnvoySettings:
    """How to start Envoy, with what the ProxyConfig says of it."""
    config = _effective(settings, from_plane)
    own = settings.envoy
    return attrs.evolve(
        own,
        drain_seconds=seconds(config, "drainDuration", own.drain_seconds),
        parent_shutdown_seconds=seconds(config, "parentShutdownDuration", own.parent_shutdown_seconds),
        concurrency=config.get("concurrency") or own.concurrency,
        extra_flags=(*flush_flags(config), *own.extra_flags),
        exit_on_zero_active_connections=_exits_on_zero(settings, config),
        minimum_drain=_minimum_drain(config) if own.minimum_drain is None else own.minimum_drain,
        ip_version="v6" if settings.node.is_ipv6 else "v4",
    )


def exports_of(settings: AgentSettings, from_plane: bytes | None = None) -> MetricsExports:
    """How metrics leave the machine."""
    ports = settings.ports
    taken = {
        ports.admin: "Envoy's admin port",
        ports.status: "--status-port",
        ports.readiness: "--readiness-port",
        ports.prometheus: "--prometheus-port",
        ports.dns: "--dns-port",
        **dict.fromkeys((15001, 15006, 15008), "Envoy's"),
    }
    taken.pop(0, None)

    def refuse(name: str, reason: str) -> None:
        field = name if name.startswith("-") else f"{METADATA}.{name}"
        log.warning("a field of the proxy config is refused", reason=f"{field}: {reason}", effect="it is left out")

    config = _effective(settings, from_plane)
    return read_exports(settings.exports, config.get(METADATA, {}), taken, refuse)


def resource_node(settings: AgentSettings, from_plane: bytes | None = None) -> EnvoyNode:
    """The node as the control plane knows it, for the attributes of metrics."""
    return with_metadata(settings.node, _effective(settings, from_plane))


def termination_drain_seconds(settings: AgentSettings, from_plane: bytes | None = None) -> float:
    """The time that the drain at the end takes."""
    return seconds(_effective(settings, from_plane), "terminationDrainDuration", TERMINATION_DRAIN_SECONDS)


def _exits_on_zero(settings: AgentSettings, config: Mapping[str, Any]) -> bool:
    given = settings.envoy.exit_on_zero_active_connections
    return is_on(config, EXIT_ON_ZERO) if given is None else given


def _minimum_drain(config: Mapping[str, Any]) -> float:
    """The shortest drain. A value that cannot be read is left out."""
    text = config.get(METADATA, {}).get(MINIMUM_DRAIN, "")
    try:
        return max(0.0, read_duration(text).total_seconds()) if text else MINIMUM_DRAIN_SECONDS
    except ValueError as error:
        field = f"{METADATA}.{MINIMUM_DRAIN}"
        log.warning("a field of the proxy config is refused", reason=f"{field}: {error}", effect="it is left out")
        return MINIMUM_DRAIN_SECONDS


def _effective(settings: AgentSettings, from_plane: bytes | None) -> dict[str, Any]:
    try:
        return effective(settings.annotated_proxy_config, from_plane, settings.proxy_config)
    except WireError as error:
        log.warning("the control plane's proxy config is refused", reason=f"it {error}", effect="this machine's alone")
        return effective(settings.annotated_proxy_config, None, settings.proxy_config)


def _node(settings: AgentSettings, config: Mapping[str, Any]) -> EnvoyNode:
    """The node with what the ProxyConfig adds. What the machine says of itself stays."""
    node = with_metadata(attrs.evolve(settings.node, metadata={}), config)
    metadata = dict(node.metadata)
    if not (settings.dns.enabled and settings.ports.dns) and metadata.pop(DNS_CAPTURE, ""):
        log.warning("dns is not captured", field=f"{METADATA}.{META}{DNS_CAPTURE}", advice="start the agent with --dns")
    if serves_secrets(settings.credentials):
        metadata["AGENT_SECRETS"] = "true"
    if settings.traffic:
        metadata[RBAC_RULE_STATS] = "true"
    return attrs.evolve(settings.node, metadata={**metadata, **settings.node.metadata})


def _annotations(settings: AgentSettings) -> Mapping[str, str]:
    return {str(name): str(value) for name, value in as_object(settings.node.metadata, "ANNOTATIONS").items()}


def _remote(config: Mapping[str, Any], node: EnvoyNode) -> dict[str, Any]:
    """The servers of the ProxyConfig. One whose address cannot be read costs only itself."""
    usable = dict(config)
    while True:
        try:
            return parts_of(usable, node.cluster, is_ipv6=node.is_ipv6)
        except RemoteServiceError as error:
            log.warning("a field of the proxy config is refused", reason=str(error), effect="it is left out")
            del usable[error.field]
