"""Connection pools of clusters: circuit breakers, timeouts, keepalive, and the version of HTTP.

Rules: Istio's DestinationRule ``connectionPool``; Envoy's circuit breaking and HTTP protocol options.
"""

from __future__ import annotations

from datetime import timedelta
from enum import Enum, auto

from envoy.config.cluster.v3 import circuit_breaker_pb2, cluster_pb2
from envoy.config.common.matcher.v3 import matcher_pb2
from envoy.config.core.v3 import protocol_pb2
from envoy.config.route.v3 import route_components_pb2
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.base.protowire import field
from mesh_pilot.envoy.core.protobuf import UNLIMITED, any_of, duration, encode, exact, percent, preserve_case, uint32
from mesh_pilot.mesh.clusters.destination_rules import Policy
from mesh_pilot.mesh.proxy.proxy_config import cluster_buffer, keeps_case
from mesh_pilot.mesh.settings.mesh_defaults import ClusterDefaults
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View

HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

_BUDGET_INTERVAL = 3
"""Number of ``budget_interval``, which Envoy has since 1.40 and the generated messages lack. Others ignore it."""

Http = api.ConnectionPoolSettingsHttpSettings
H2UpgradePolicy = api.ConnectionPoolSettingsHttpSettingsH2UpgradePolicy


PASSTHROUGH_POLICY = Policy(connection_pool=api.ConnectionPoolSettings(http=Http(idle_timeout=timedelta(seconds=300))))
"""Idle connections to destinations that no service declares are closed sooner than after Envoy's hour."""


class UpstreamHttp(Enum):
    """The version of HTTP that a cluster uses towards its endpoints."""

    HTTP1 = auto()
    HTTP2 = auto()
    AS_CLIENT = auto()
    """The version of the downstream connection."""


def outbound_http(port: Protocol, http: Http | None, *, mesh_upgrade: bool, sniff: bool) -> UpstreamHttp:
    """The version of a client's proxy towards a port: HTTP/2 if the port, the rule or the mesh says so, else HTTP/1.1.
    Only a port that is declared as HTTP is upgraded.

    ``sniff``: protocols of undeclared ports are detected; such a cluster uses the version of the client.
    """
    if http is not None and http.use_client_protocol:
        return UpstreamHttp.AS_CLIENT
    upgrade = http.h2_upgrade_policy if http else H2UpgradePolicy.DEFAULT
    mesh_upgrade = mesh_upgrade and upgrade is not H2UpgradePolicy.DO_NOT_UPGRADE
    if port.is_http2 or (port.is_http and (mesh_upgrade or upgrade is H2UpgradePolicy.UPGRADE)):
        return UpstreamHttp.HTTP2
    return UpstreamHttp.AS_CLIENT if port is Protocol.AUTO and sniff else UpstreamHttp.HTTP1


def inbound_http(port: Protocol, http: Http | None) -> UpstreamHttp:
    """The version of a sidecar towards its own application."""
    if (http is not None and http.use_client_protocol) or port is Protocol.AUTO:
        return UpstreamHttp.AS_CLIENT
    return UpstreamHttp.HTTP2 if port.is_http2 else UpstreamHttp.HTTP1


def apply_connection_pool(
    cluster: cluster_pb2.Cluster, policy: Policy, defaults: ClusterDefaults, upstream_http: UpstreamHttp
) -> None:
    """Set a cluster's timeouts, circuit breakers, keepalive and HTTP options."""
    pool = policy.connection_pool
    tcp = pool.tcp if pool else None
    http = pool.http if pool else None
    timeout = tcp.connect_timeout if tcp and tcp.connect_timeout is not None else defaults.connect_timeout
    cluster.connect_timeout.CopyFrom(duration(timeout))
    cluster.circuit_breakers.thresholds.append(_thresholds(tcp, http, policy.retry_budget))
    _apply_keepalive(cluster, tcp, defaults.tcp_keepalive)
    options = _http_options(upstream_http, tcp, http, policy.outlier_detection)
    if options is not None:
        cluster.typed_extension_protocol_options[HTTP_OPTIONS].CopyFrom(any_of(options))


def apply_proxy_settings(view: View, cluster: cluster_pb2.Cluster, node_config: str) -> None:
    """Set what ProxyConfig says about clusters: buffer size, and the case of HTTP/1 headers. Call after
    ``apply_connection_pool``. ``node_config``: the ProxyConfig of the node itself."""
    buffer = cluster_buffer(view, node_config)
    if buffer:
        cluster.per_connection_buffer_limit_bytes.CopyFrom(uint32(buffer))
    if not keeps_case(view, node_config):
        return
    options = http_protocol_options_pb2.HttpProtocolOptions()
    by_name = cluster.typed_extension_protocol_options
    if HTTP_OPTIONS in by_name:
        options = http_protocol_options_pb2.HttpProtocolOptions.FromString(by_name[HTTP_OPTIONS].value)
    else:
        options.explicit_http_config.http_protocol_options.SetInParent()
    for config in (options.explicit_http_config, options.use_downstream_protocol_config):
        if config.HasField("http_protocol_options"):
            config.http_protocol_options.header_key_format.CopyFrom(preserve_case())
    by_name[HTTP_OPTIONS].CopyFrom(any_of(options))


def verify_requested_host(cluster: cluster_pb2.Cluster, *, verify: bool = True) -> None:
    """Make TLS ask for the Host of each request (SNI), and ``verify`` it by the server's certificate."""
    options = http_protocol_options_pb2.HttpProtocolOptions()
    packed = cluster.typed_extension_protocol_options[HTTP_OPTIONS]
    if not packed.Unpack(options):
        options.explicit_http_config.http_protocol_options.SetInParent()
    options.upstream_http_protocol_options.auto_sni = True
    options.upstream_http_protocol_options.auto_san_validation |= verify
    packed.CopyFrom(any_of(options))


def allow_upgrades(cluster: cluster_pb2.Cluster) -> None:
    """Carry WebSockets over HTTP/2 as extended CONNECT (RFC 8441), towards a server of HTTP/1.1 behind a proxy."""
    options = http_protocol_options_pb2.HttpProtocolOptions()
    packed = cluster.typed_extension_protocol_options[HTTP_OPTIONS]
    packed.Unpack(options)
    options.explicit_http_config.http2_protocol_options.allow_connect = True
    packed.CopyFrom(any_of(options))


def http2_options(http: Http | None = None) -> protocol_pb2.Http2ProtocolOptions:
    """HTTP/2 options towards an upstream."""
    options = protocol_pb2.Http2ProtocolOptions()
    if http is not None and http.max_concurrent_streams > 0:
        options.max_concurrent_streams.CopyFrom(uint32(http.max_concurrent_streams))
    keepalive = http.http2_keep_alive if http else None
    if keepalive is not None and keepalive.interval is not None:
        options.connection_keepalive.interval.CopyFrom(duration(keepalive.interval))
        # Envoy requires a timeout: by default a ping may take until the next one is due.
        options.connection_keepalive.timeout.CopyFrom(duration(keepalive.timeout or keepalive.interval))
    return options


def _thresholds(
    tcp: api.ConnectionPoolSettingsTcpSettings | None,
    http: Http | None,
    budget: api.TrafficPolicyRetryBudget | None,
) -> circuit_breaker_pb2.CircuitBreakers.Thresholds:
    """Circuit breakers: unlimited unless the rule sets a limit; 0 means not set."""
    thresholds = circuit_breaker_pb2.CircuitBreakers.Thresholds(
        max_connections=uint32((tcp and tcp.max_connections) or UNLIMITED),
        max_pending_requests=uint32((http and http.http1_max_pending_requests) or UNLIMITED),
        max_requests=uint32((http and http.http2_max_requests) or UNLIMITED),
        max_retries=uint32((http and http.max_retries) or UNLIMITED),
    )
    if budget is not None:
        budget_percent = 20.0 if budget.percent is None else budget.percent
        thresholds.retry_budget.budget_percent.CopyFrom(percent(budget_percent))
        if budget.min_retry_concurrency:
            thresholds.retry_budget.min_retry_concurrency.CopyFrom(uint32(budget.min_retry_concurrency))
        if budget.budget_interval is not None:
            interval = field(_BUDGET_INTERVAL, encode(duration(budget.budget_interval)))
            thresholds.retry_budget.MergeFromString(interval)
    return thresholds


def _apply_keepalive(
    cluster: cluster_pb2.Cluster,
    tcp: api.ConnectionPoolSettingsTcpSettings | None,
    mesh: api.ConnectionPoolSettingsTcpSettingsTcpKeepalive | None,
) -> None:
    """TCP keepalive: fields that the rule leaves unset come from the mesh, else from the operating system."""
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
    upstream_http: UpstreamHttp,
    tcp: api.ConnectionPoolSettingsTcpSettings | None,
    http: Http | None,
    outlier: api.OutlierDetection | None,
) -> http_protocol_options_pb2.HttpProtocolOptions | None:
    """None if Envoy's defaults (HTTP/1.1) apply."""
    options = http_protocol_options_pb2.HttpProtocolOptions()
    common = options.common_http_protocol_options
    idle = http.idle_timeout if http is not None else None
    if idle is None and tcp is not None:
        idle = tcp.idle_timeout
    if idle is not None:
        common.idle_timeout.CopyFrom(duration(idle))
    if http is not None and http.max_requests_per_connection > 0:
        common.max_requests_per_connection.CopyFrom(uint32(http.max_requests_per_connection))
    if tcp is not None and tcp.max_connection_duration is not None:
        common.max_connection_duration.CopyFrom(duration(tcp.max_connection_duration))
    if outlier is not None and outlier.outlier_detection_http_error_codes:
        options.outlier_detection.error_matcher.CopyFrom(_any_of_statuses(outlier.outlier_detection_http_error_codes))
    # Envoy uses HTTP/1.1 without options; any option makes the choice of a version mandatory.
    if upstream_http is UpstreamHttp.HTTP1 and not options.ListFields():
        return None
    match upstream_http:
        case UpstreamHttp.HTTP1:
            options.explicit_http_config.http_protocol_options.SetInParent()
        case UpstreamHttp.HTTP2:
            options.explicit_http_config.http2_protocol_options.CopyFrom(http2_options(http))
        case UpstreamHttp.AS_CLIENT:
            # Envoy chooses by the downstream connection, so both versions need their options.
            options.use_downstream_protocol_config.http_protocol_options.SetInParent()
            options.use_downstream_protocol_config.http2_protocol_options.CopyFrom(http2_options(http))
    return options


def _any_of_statuses(codes: list[int]) -> matcher_pb2.MatchPredicate:
    """Matches responses with one of these HTTP statuses."""
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
