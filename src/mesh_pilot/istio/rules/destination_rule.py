"""Rules for DestinationRule."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.api.istio.networking.v1alpha3 import (
    ConnectionPoolSettingsHttpSettingsH2UpgradePolicy as UpgradePolicy,
)
from mesh_pilot.istio.meaning.weighted_round_robin import WEIGHTED_ROUND_ROBIN, read_weighted_round_robin
from mesh_pilot.istio.rules.common import check_export_to, check_match_labels
from mesh_pilot.istio.rules.context import Context, check, check_parts, check_values, error, warning
from mesh_pilot.istio.rules.load_balancing import check_load_balancer, yields_to_weights
from mesh_pilot.istio.rules.names import (
    check_labels,
    dns_label_reason,
    fqdn_or_ip_reason,
    negative_reason,
    port_reason,
    wildcard_host_reason,
)
from mesh_pilot.istio.rules.tls import check_client_tls
from mesh_pilot.istio.rules.values import duration_or_zero_reason, duration_reason, percent_reason
from mesh_pilot.model.config import Problem

MAX_KEEPALIVE = timedelta(seconds=2**32 - 1)
"""Envoy counts the seconds of TCP keepalive in 32 bits."""


def validate(spec: api.DestinationRule, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a DestinationRule."""
    yield from check("spec.host", wildcard_host_reason(spec.host) if spec.host else "is missing")
    yield from check_parts("spec", spec, check_traffic_policy, "traffic_policy")
    seen: set[str] = set()
    for index, subset in enumerate(spec.subsets):
        path = f"spec.subsets[{index}]"
        yield from check(f"{path}.name", dns_label_reason(subset.name) if subset.name else "is missing")
        if subset.name and subset.name in seen:
            yield error(f"{path}.name", f'"{subset.name}" is given twice')
        seen.add(subset.name)
        yield from check_labels(f"{path}.labels", subset.labels)
        yield from check_parts(path, subset, check_traffic_policy, "traffic_policy")
    yield from check_export_to(spec.export_to, context)
    if spec.workload_selector is not None and any(entry not in (".", context.namespace) for entry in spec.export_to):
        yield error("spec.exportTo", 'can only be "." where there is a workloadSelector')
    yield from check_match_labels(spec.workload_selector, "spec.workloadSelector")
    if WEIGHTED_ROUND_ROBIN in context.annotations:
        yield from _check_weighted_round_robin(context.annotations[WEIGHTED_ROUND_ROBIN], spec.traffic_policy)


def _check_weighted_round_robin(text: str, policy: api.TrafficPolicy | None) -> Iterator[Problem]:
    path = f"metadata.annotations[{WEIGHTED_ROUND_ROBIN}]"
    try:
        read_weighted_round_robin(text)
    except ValueError as failure:
        yield error(path, str(failure))
    if policy is not None and not yields_to_weights(policy.load_balancer):
        yield warning(path, "has no effect: spec.trafficPolicy.loadBalancer chooses another load balancer")


def check_traffic_policy(path: str, policy: api.TrafficPolicy) -> Iterator[Problem]:
    """A `trafficPolicy` of a DestinationRule or of a subset."""
    parts = (
        policy.load_balancer,
        policy.connection_pool,
        policy.outlier_detection,
        policy.tls,
        policy.tunnel,
        policy.proxy_protocol,
        policy.retry_budget,
        policy.session,
    )
    if all(part is None for part in parts) and not policy.port_level_settings:
        yield error(path, "says nothing: at least one field is required")
    yield from _check_shared(path, policy)
    if policy.session is not None:
        reason = "is set by policies of the Gateway API alone: use sessionPersistence of an XBackendTrafficPolicy"
        yield error(f"{path}.session", reason)
    yield from check_parts(path, policy, _check_tunnel, "tunnel")
    if policy.tunnel is not None and policy.proxy_protocol is not None:
        yield error(f"{path}.proxyProtocol", "tunnel and proxyProtocol exclude each other")
    yield from check_parts(path, policy, _check_retry_budget, "retry_budget")
    seen: set[int] = set()
    for index, port in enumerate(policy.port_level_settings):
        here = f"{path}.portLevelSettings[{index}]"
        yield from _check_port_policy(here, port)
        number = port.port.number if port.port is not None else 0
        if number and number in seen:
            yield warning(f"{here}.port.number", f"{number} is given twice; the first is used")
        seen.add(number)


def _check_port_policy(path: str, policy: api.TrafficPolicyPortTrafficPolicy) -> Iterator[Problem]:
    if policy.port is None:
        yield error(f"{path}.port", "is missing")
    else:
        yield from check(f"{path}.port.number", port_reason(policy.port.number))
    parts = (policy.load_balancer, policy.connection_pool, policy.outlier_detection, policy.tls)
    if all(part is None for part in parts):
        yield error(path, "says nothing: at least one field besides port is required")
    yield from _check_shared(path, policy)


def _check_shared(path: str, policy: api.TrafficPolicy | api.TrafficPolicyPortTrafficPolicy) -> Iterator[Problem]:
    """The rules common to a policy and to a port's policy."""
    yield from check_parts(path, policy, check_outliers, "outlier_detection")
    yield from check_parts(path, policy, check_connection_pool, "connection_pool")
    yield from check_load_balancer(f"{path}.loadBalancer", policy.load_balancer, policy.outlier_detection)
    yield from check_parts(path, policy, check_client_tls, "tls")


def check_outliers(path: str, outliers: api.OutlierDetection) -> Iterator[Problem]:
    """An `outlierDetection`."""
    yield from check_values(path, outliers, duration_reason, "interval", "base_ejection_time")
    yield from check_values(
        path, outliers, percent_reason, "max_ejection_percent", "min_health_percent", "failure_percentage_threshold"
    )
    if outliers.consecutive_errors < 0:
        yield error(f"{path}.consecutiveErrors", "must not be negative")
    if outliers.consecutive_local_origin_failures and not outliers.split_external_local_origin_errors:
        reason = "has no effect unless splitExternalLocalOriginErrors is true"
        yield error(f"{path}.consecutiveLocalOriginFailures", reason)
    yield from check_values(path, outliers, _status_reason, "outlier_detection_http_error_codes")


def _status_reason(code: int) -> str:
    return "" if 100 <= code <= 599 else f"{code} is not an HTTP status, allowed are 100 to 599"


def check_connection_pool(path: str, pool: api.ConnectionPoolSettings) -> Iterator[Problem]:
    """A `connectionPool`, towards a service or of a sidecar's own inbound."""
    if pool.http is None and pool.tcp is None:
        yield error(path, "needs tcp, http, or both")
    yield from check_parts(path, pool, _check_http_pool, "http")
    yield from check_parts(path, pool, _check_tcp_pool, "tcp")


def _check_http_pool(path: str, http: api.ConnectionPoolSettingsHttpSettings) -> Iterator[Problem]:
    limits = ("http1_max_pending_requests", "http2_max_requests", "max_requests_per_connection", "max_retries")
    yield from check_values(path, http, negative_reason, *limits, "max_concurrent_streams")
    yield from check_values(path, http, duration_or_zero_reason, "idle_timeout")
    if http.h2_upgrade_policy == UpgradePolicy.UPGRADE and http.use_client_protocol:
        yield error(f"{path}.useClientProtocol", "can't be true where h2UpgradePolicy is UPGRADE")
    if http.http2_keep_alive is not None:
        keepalive = http.http2_keep_alive
        if keepalive.interval is None:
            yield error(f"{path}.http2KeepAlive.interval", "is missing: without it no connection is probed")
        elif keepalive.timeout is None:
            yield warning(f"{path}.http2KeepAlive.timeout", "is missing: 15s is used; Istio refuses this")
        yield from check_values(f"{path}.http2KeepAlive", keepalive, duration_reason, "interval", "timeout")


def _check_tcp_pool(path: str, tcp: api.ConnectionPoolSettingsTcpSettings) -> Iterator[Problem]:
    yield from check_values(path, tcp, negative_reason, "max_connections")
    yield from check_values(path, tcp, duration_reason, "connect_timeout", "max_connection_duration")
    yield from check_values(path, tcp, duration_or_zero_reason, "idle_timeout")
    if tcp.tcp_keepalive is not None:
        yield from check_values(f"{path}.tcpKeepalive", tcp.tcp_keepalive, _keepalive_reason, "time", "interval")


def _keepalive_reason(value: timedelta) -> str:
    if value % timedelta(seconds=1):
        return "must be in whole seconds"
    if value <= timedelta(0):
        return "must be at least 1s"
    return "must be less than 2^32 seconds" if value > MAX_KEEPALIVE else ""


def _check_tunnel(path: str, tunnel: api.TrafficPolicyTunnelSettings) -> Iterator[Problem]:
    if tunnel.protocol not in ("", "CONNECT", "POST"):
        yield error(f"{path}.protocol", f'"{tunnel.protocol}" is not allowed; CONNECT or POST')
    yield from check(f"{path}.targetHost", fqdn_or_ip_reason(tunnel.target_host))
    yield from check(f"{path}.targetPort", port_reason(tunnel.target_port))


def _check_retry_budget(path: str, budget: api.TrafficPolicyRetryBudget) -> Iterator[Problem]:
    yield from check_values(path, budget, percent_reason, "percent")
    yield from check_values(path, budget, duration_reason, "budget_interval")
