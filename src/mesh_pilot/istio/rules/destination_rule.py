"""Rules for DestinationRule."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from mesh_pilot.api.istio.networking.v1alpha3 import (
    ConnectionPoolSettings,
    ConnectionPoolSettingsHttpSettings,
    ConnectionPoolSettingsTcpSettings,
    DestinationRule,
    OutlierDetection,
    TrafficPolicy,
    TrafficPolicyPortTrafficPolicy,
    TrafficPolicyRetryBudget,
    TrafficPolicyTunnelSettings,
)
from mesh_pilot.api.istio.networking.v1alpha3 import (
    ConnectionPoolSettingsHttpSettingsH2UpgradePolicy as UpgradePolicy,
)
from mesh_pilot.istio.rules.common import check_export_to, check_match_labels
from mesh_pilot.istio.rules.context import Context, check, error, warning
from mesh_pilot.istio.rules.load_balancing import check_load_balancer
from mesh_pilot.istio.rules.names import (
    check_labels,
    dns_label_reason,
    fqdn_or_ip_reason,
    port_reason,
    wildcard_host_reason,
)
from mesh_pilot.istio.rules.tls import check_client_tls
from mesh_pilot.istio.rules.values import duration_or_zero_reason, duration_reason, percent_reason
from mesh_pilot.model.config import Problem

MAX_KEEPALIVE = timedelta(seconds=2**32 - 1)
"""Envoy counts the seconds of TCP keepalive in 32 bits."""


def validate(spec: DestinationRule, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a DestinationRule."""
    yield from check("spec.host", wildcard_host_reason(spec.host) if spec.host else "is missing")
    yield from check_traffic_policy("spec.trafficPolicy", spec.traffic_policy)
    seen: set[str] = set()
    for index, subset in enumerate(spec.subsets):
        path = f"spec.subsets[{index}]"
        yield from check(f"{path}.name", dns_label_reason(subset.name) if subset.name else "is missing")
        if subset.name and subset.name in seen:
            yield error(f"{path}.name", f'"{subset.name}" is given twice')
        seen.add(subset.name)
        yield from check_labels(f"{path}.labels", subset.labels)
        yield from check_traffic_policy(f"{path}.trafficPolicy", subset.traffic_policy)
    yield from check_export_to(spec.export_to, context)
    if spec.workload_selector is not None and spec.export_to and spec.export_to != ["."]:
        yield error("spec.exportTo", 'can only be "." where there is a workloadSelector')
    yield from check_match_labels(spec.workload_selector, "spec.workloadSelector")


def check_traffic_policy(path: str, policy: TrafficPolicy | None) -> Iterator[Problem]:
    """A `trafficPolicy` of a DestinationRule or of a subset."""
    if policy is None:
        return
    parts = (
        policy.load_balancer,
        policy.connection_pool,
        policy.outlier_detection,
        policy.tls,
        policy.tunnel,
        policy.proxy_protocol,
        policy.retry_budget,
    )
    if all(part is None for part in parts) and not policy.port_level_settings:
        yield error(path, "says nothing: at least one field is required")
    yield from _check_shared(path, policy)
    yield from _check_tunnel(f"{path}.tunnel", policy.tunnel)
    if policy.tunnel is not None and policy.proxy_protocol is not None:
        yield error(f"{path}.proxyProtocol", "tunnel and proxyProtocol exclude each other")
    yield from _check_retry_budget(f"{path}.retryBudget", policy.retry_budget)
    seen: set[int] = set()
    for index, port in enumerate(policy.port_level_settings):
        here = f"{path}.portLevelSettings[{index}]"
        yield from _check_port_policy(here, port)
        number = port.port.number if port.port is not None else 0
        if number and number in seen:
            yield warning(f"{here}.port.number", f"{number} is given twice; the first is used")
        seen.add(number)


def _check_port_policy(path: str, policy: TrafficPolicyPortTrafficPolicy) -> Iterator[Problem]:
    if policy.port is None:
        yield error(f"{path}.port", "is missing")
    else:
        yield from check(f"{path}.port.number", port_reason(policy.port.number))
    parts = (policy.load_balancer, policy.connection_pool, policy.outlier_detection, policy.tls)
    if all(part is None for part in parts):
        yield error(path, "says nothing: at least one field besides port is required")
    yield from _check_shared(path, policy)


def _check_shared(path: str, policy: TrafficPolicy | TrafficPolicyPortTrafficPolicy) -> Iterator[Problem]:
    """The rules common to a policy and to a port's policy."""
    yield from check_outliers(f"{path}.outlierDetection", policy.outlier_detection)
    yield from check_connection_pool(f"{path}.connectionPool", policy.connection_pool)
    yield from check_load_balancer(f"{path}.loadBalancer", policy.load_balancer, policy.outlier_detection)
    yield from check_client_tls(f"{path}.tls", policy.tls)


def check_outliers(path: str, outliers: OutlierDetection | None) -> Iterator[Problem]:
    """An `outlierDetection`."""
    if outliers is None:
        return
    for name, value in (("interval", outliers.interval), ("baseEjectionTime", outliers.base_ejection_time)):
        if value is not None:
            yield from check(f"{path}.{name}", duration_reason(value))
    for name, number in (
        ("maxEjectionPercent", outliers.max_ejection_percent),
        ("minHealthPercent", outliers.min_health_percent),
    ):
        yield from check(f"{path}.{name}", percent_reason(number))
    if outliers.consecutive_errors < 0:
        yield error(f"{path}.consecutiveErrors", "must not be negative")
    if outliers.consecutive_local_origin_failures and not outliers.split_external_local_origin_errors:
        reason = "has no effect unless splitExternalLocalOriginErrors is true"
        yield error(f"{path}.consecutiveLocalOriginFailures", reason)
    for index, code in enumerate(outliers.outlier_detection_http_error_codes):
        if not 400 <= code <= 599:
            reason = f"{code} is not an error status, allowed are 400 to 599"
            yield error(f"{path}.outlierDetectionHttpErrorCodes[{index}]", reason)


def check_connection_pool(path: str, pool: ConnectionPoolSettings | None) -> Iterator[Problem]:
    """A `connectionPool`, towards a service or of a sidecar's own inbound."""
    if pool is None:
        return
    if pool.http is None and pool.tcp is None:
        yield error(path, "needs tcp, http, or both")
    if pool.http is not None:
        yield from _check_http_pool(f"{path}.http", pool.http)
    if pool.tcp is not None:
        yield from _check_tcp_pool(f"{path}.tcp", pool.tcp)


def _check_http_pool(path: str, http: ConnectionPoolSettingsHttpSettings) -> Iterator[Problem]:
    for name, number in (
        ("http1MaxPendingRequests", http.http1_max_pending_requests),
        ("http2MaxRequests", http.http2_max_requests),
        ("maxRequestsPerConnection", http.max_requests_per_connection),
        ("maxRetries", http.max_retries),
        ("maxConcurrentStreams", http.max_concurrent_streams),
    ):
        if number < 0:
            yield error(f"{path}.{name}", f"{number} is negative")
    if http.idle_timeout is not None:
        yield from check(f"{path}.idleTimeout", duration_or_zero_reason(http.idle_timeout))
    if http.h2_upgrade_policy == UpgradePolicy.UPGRADE and http.use_client_protocol:
        yield error(f"{path}.useClientProtocol", "can't be true where h2UpgradePolicy is UPGRADE")
    if http.http2_keep_alive is not None:
        keepalive = http.http2_keep_alive
        if keepalive.interval is None:
            yield error(f"{path}.http2KeepAlive.interval", "is missing: without it no connection is probed")
        elif keepalive.timeout is None:
            yield warning(f"{path}.http2KeepAlive.timeout", "is missing: 15s is used; Istio refuses this")
        for name, value in (("interval", keepalive.interval), ("timeout", keepalive.timeout)):
            if value is not None:
                yield from check(f"{path}.http2KeepAlive.{name}", duration_reason(value))


def _check_tcp_pool(path: str, tcp: ConnectionPoolSettingsTcpSettings) -> Iterator[Problem]:
    if tcp.max_connections < 0:
        yield error(f"{path}.maxConnections", f"{tcp.max_connections} is negative")
    for name, value in (
        ("connectTimeout", tcp.connect_timeout),
        ("maxConnectionDuration", tcp.max_connection_duration),
    ):
        if value is not None:
            yield from check(f"{path}.{name}", duration_reason(value))
    if tcp.idle_timeout is not None:
        yield from check(f"{path}.idleTimeout", duration_or_zero_reason(tcp.idle_timeout))
    if tcp.tcp_keepalive is not None:
        for name, value in (("time", tcp.tcp_keepalive.time), ("interval", tcp.tcp_keepalive.interval)):
            if value is not None and value % timedelta(seconds=1):
                yield error(f"{path}.tcpKeepalive.{name}", "must be in whole seconds")
            elif value is not None and value <= timedelta(0):
                yield error(f"{path}.tcpKeepalive.{name}", "must be at least 1s")
            elif value is not None and value > MAX_KEEPALIVE:
                yield error(f"{path}.tcpKeepalive.{name}", "must be less than 2^32 seconds")


def _check_tunnel(path: str, tunnel: TrafficPolicyTunnelSettings | None) -> Iterator[Problem]:
    if tunnel is None:
        return
    if tunnel.protocol not in ("", "CONNECT", "POST"):
        yield error(f"{path}.protocol", f'"{tunnel.protocol}" is not allowed; CONNECT or POST')
    yield from check(f"{path}.targetHost", fqdn_or_ip_reason(tunnel.target_host))
    yield from check(f"{path}.targetPort", port_reason(tunnel.target_port))


def _check_retry_budget(path: str, budget: TrafficPolicyRetryBudget | None) -> Iterator[Problem]:
    if budget is None:
        return
    if budget.percent is not None:
        yield from check(f"{path}.percent", percent_reason(budget.percent))
    if budget.budget_interval is not None:
        yield from check(f"{path}.budgetInterval", duration_reason(budget.budget_interval))
