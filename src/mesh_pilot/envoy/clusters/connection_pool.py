"""Connection pools of clusters: circuit breakers, timeouts, keepalive, and which HTTP is spoken.

Rules: Istio's DestinationRule ``connectionPool``; Envoy's circuit breaking and HTTP protocol options.
"""

from __future__ import annotations

from enum import Enum

from envoy.config.cluster.v3 import circuit_breaker_pb2, cluster_pb2
from envoy.config.common.matcher.v3 import matcher_pb2
from envoy.config.core.v3 import protocol_pb2
from envoy.config.route.v3 import route_components_pb2
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.core.protobuf import UNLIMITED, any_of, duration, exact, percent, preserve_case, uint32
from mesh_pilot.mesh.destination_rules import Policy
from mesh_pilot.mesh.mesh_defaults import ClusterDefaults
from mesh_pilot.mesh.proxy.proxy_config import cluster_buffer, keeps_case
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View

HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

MAX_STREAMS = 1073741824
"""HTTP/2 streams on one connection unless a rule says otherwise."""

Http = api.ConnectionPoolSettingsHttpSettings
H2UpgradePolicy = api.ConnectionPoolSettingsHttpSettingsH2UpgradePolicy


class Speaks(Enum):
    """Which HTTP a cluster speaks."""

    HTTP1 = "HTTP/1.1"
    HTTP2 = "HTTP/2"
    AS_CLIENT = "what the client spoke"


def outbound_http(port: Protocol, http: Http | None, *, mesh_upgrade: bool, sniff: bool) -> Speaks:
    """What a client's proxy speaks to a port: HTTP/2 where the port or the rule says so, else HTTP/1.1.

    ``sniff``: whether protocols of ports that do not say theirs are detected (then: what the client spoke).
    """
    if http is not None and http.use_client_protocol:
        return Speaks.AS_CLIENT
    upgrade = http.h2_upgrade_policy if http else H2UpgradePolicy.DEFAULT
    if port.is_http2 or upgrade is H2UpgradePolicy.UPGRADE:
        return Speaks.HTTP2
    if port.is_http and mesh_upgrade and upgrade is not H2UpgradePolicy.DO_NOT_UPGRADE:
        return Speaks.HTTP2
    return Speaks.AS_CLIENT if port is Protocol.AUTO and sniff else Speaks.HTTP1


def inbound_http(port: Protocol, http: Http | None) -> Speaks:
    """What a sidecar speaks to its own application."""
    if (http is not None and http.use_client_protocol) or port is Protocol.AUTO:
        return Speaks.AS_CLIENT
    return Speaks.HTTP2 if port.is_http2 else Speaks.HTTP1


def apply_connection_pool(
    cluster: cluster_pb2.Cluster, policy: Policy, defaults: ClusterDefaults, speaks: Speaks
) -> None:
    """Set everything about connections on a cluster."""
    pool = policy.connection_pool
    tcp = pool.tcp if pool else None
    http = pool.http if pool else None
    timeout = tcp.connect_timeout if tcp and tcp.connect_timeout is not None else defaults.connect_timeout
    cluster.connect_timeout.CopyFrom(duration(timeout))
    cluster.circuit_breakers.thresholds.append(_thresholds(tcp, http, policy.retry_budget))
    _apply_keepalive(cluster, tcp, defaults.tcp_keepalive)
    options = _http_options(speaks, tcp, http, policy.outlier_detection)
    if options is not None:
        cluster.typed_extension_protocol_options[HTTP_OPTIONS].CopyFrom(any_of(options))


def apply_proxy_settings(view: View, cluster: cluster_pb2.Cluster, own: str) -> None:
    """Set what the proxy's settings say of clusters: buffers, and the case of HTTP/1 headers. Comes after
    ``apply_connection_pool``."""
    buffer = cluster_buffer(view, own)
    if buffer:
        cluster.per_connection_buffer_limit_bytes.CopyFrom(uint32(buffer))
    if not keeps_case(view, own):
        return
    options = http_protocol_options_pb2.HttpProtocolOptions()
    held = cluster.typed_extension_protocol_options
    if HTTP_OPTIONS in held:
        options = http_protocol_options_pb2.HttpProtocolOptions.FromString(held[HTTP_OPTIONS].value)
    else:
        options.explicit_http_config.http_protocol_options.SetInParent()
    for config in (options.explicit_http_config, options.use_downstream_protocol_config):
        if config.HasField("http_protocol_options"):
            config.http_protocol_options.header_key_format.CopyFrom(preserve_case())
    held[HTTP_OPTIONS].CopyFrom(any_of(options))


def http2_options(http: Http | None = None) -> protocol_pb2.Http2ProtocolOptions:
    """HTTP/2 towards an upstream."""
    streams = http.max_concurrent_streams if http and http.max_concurrent_streams > 0 else MAX_STREAMS
    options = protocol_pb2.Http2ProtocolOptions(max_concurrent_streams=uint32(streams))
    keepalive = http.http2_keep_alive if http else None
    if keepalive is not None and keepalive.interval is not None:
        options.connection_keepalive.interval.CopyFrom(duration(keepalive.interval))
        # Envoy wants a timeout; without one a ping may take as long as the next one is away.
        options.connection_keepalive.timeout.CopyFrom(duration(keepalive.timeout or keepalive.interval))
    return options


def _thresholds(
    tcp: api.ConnectionPoolSettingsTcpSettings | None,
    http: Http | None,
    budget: api.TrafficPolicyRetryBudget | None,
) -> circuit_breaker_pb2.CircuitBreakers.Thresholds:
    """Limits, each without end unless it is set; 0 is the same as not set."""
    thresholds = circuit_breaker_pb2.CircuitBreakers.Thresholds(
        max_connections=uint32((tcp and tcp.max_connections) or UNLIMITED),
        max_pending_requests=uint32((http and http.http1_max_pending_requests) or UNLIMITED),
        max_requests=uint32((http and http.http2_max_requests) or UNLIMITED),
        max_retries=uint32((http and http.max_retries) or UNLIMITED),
        track_remaining=True,
    )
    if budget is not None:
        share = 20.0 if budget.percent is None else budget.percent
        thresholds.retry_budget.budget_percent.CopyFrom(percent(share))
        if budget.min_retry_concurrency:
            thresholds.retry_budget.min_retry_concurrency.CopyFrom(uint32(budget.min_retry_concurrency))
    return thresholds


def _apply_keepalive(
    cluster: cluster_pb2.Cluster,
    tcp: api.ConnectionPoolSettingsTcpSettings | None,
    mesh: api.ConnectionPoolSettingsTcpSettingsTcpKeepalive | None,
) -> None:
    """TCP keepalive: what the rule leaves open comes from the mesh, then from the operating system."""
    layers = [k for k in (mesh, tcp.tcp_keepalive if tcp else None) if k is not None]
    if not layers:
        return
    keepalive = cluster.upstream_connection_options.tcp_keepalive
    keepalive.SetInParent()
    for layer in layers:
        if layer.probes:
            keepalive.keepalive_probes.CopyFrom(uint32(layer.probes))
        if layer.time is not None:
            keepalive.keepalive_time.CopyFrom(uint32(int(layer.time.total_seconds())))
        if layer.interval is not None:
            keepalive.keepalive_interval.CopyFrom(uint32(int(layer.interval.total_seconds())))


def _http_options(
    speaks: Speaks,
    tcp: api.ConnectionPoolSettingsTcpSettings | None,
    http: Http | None,
    outlier: api.OutlierDetection | None,
) -> http_protocol_options_pb2.HttpProtocolOptions | None:
    """None where Envoy's own defaults (HTTP/1.1) are meant."""
    options = http_protocol_options_pb2.HttpProtocolOptions()
    common = options.common_http_protocol_options
    if http is not None and http.idle_timeout is not None:
        common.idle_timeout.CopyFrom(duration(http.idle_timeout))
    if http is not None and http.max_requests_per_connection > 0:
        common.max_requests_per_connection.CopyFrom(uint32(http.max_requests_per_connection))
    if tcp is not None and tcp.max_connection_duration is not None:
        common.max_connection_duration.CopyFrom(duration(tcp.max_connection_duration))
    if outlier is not None and outlier.outlier_detection_http_error_codes:
        options.outlier_detection.error_matcher.CopyFrom(_any_status(outlier.outlier_detection_http_error_codes))
    if speaks is Speaks.HTTP1 and not options.ListFields():
        return None
    match speaks:
        case Speaks.HTTP1:
            options.explicit_http_config.http_protocol_options.SetInParent()
        case Speaks.HTTP2:
            options.explicit_http_config.http2_protocol_options.CopyFrom(http2_options(http))
        case Speaks.AS_CLIENT:
            options.use_downstream_protocol_config.http_protocol_options.SetInParent()
            options.use_downstream_protocol_config.http2_protocol_options.CopyFrom(http2_options(http))
    return options


def _any_status(codes: list[int]) -> matcher_pb2.MatchPredicate:
    rules = [
        matcher_pb2.MatchPredicate(
            http_response_headers_match=matcher_pb2.HttpHeadersMatch(
                headers=[route_components_pb2.HeaderMatcher(name=":status", string_match=exact(str(code)))]
            )
        )
        for code in sorted(set(codes))
    ]
    if len(rules) == 1:
        return rules[0]
    return matcher_pb2.MatchPredicate(or_match=matcher_pb2.MatchPredicate.MatchSet(rules=rules))
