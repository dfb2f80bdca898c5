"""Active health checks of clusters, as a HealthCheck says.

Rules: Envoy's health checking reference. Checks use the cluster's own TLS: the mesh's mTLS, or a DestinationRule's.
"""

from __future__ import annotations

from collections.abc import Mapping

from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.core.v3 import base_pb2, health_check_pb2
from envoy.config.core.v3.base_pb2 import HeaderValueOption as Header
from envoy.extensions.health_check.event_sinks.file.v3.file_pb2 import HealthCheckEventFileSink
from envoy.type.v3 import http_pb2, range_pb2

from mesh_pilot.api.meshpilot.policy import v1alpha1 as api
from mesh_pilot.envoy.core.protobuf import any_of, duration, percent, uint32
from mesh_pilot.istio.rules.health_check import DEFAULT_INTERVAL, DEFAULT_TIMEOUT, status_range

HEALTHY_THRESHOLD = 2
UNHEALTHY_THRESHOLD = 3

FILE_SINK = "envoy.health_check.event_sinks.file"
EVENT_LOG = "/dev/stdout"


def apply_health_check(cluster: Cluster, spec: api.HealthCheck, host: str, *, http2: bool) -> bool:
    """Check the endpoints of a cluster; ``host`` is its service's. False, and nothing done, for a gRPC check of a
    cluster without HTTP/2. Call after ``apply_outlier_detection``."""
    if spec.grpc is not None and not http2:
        return False
    check = cluster.health_checks.add(
        interval=duration(spec.interval if spec.interval is not None else DEFAULT_INTERVAL),
        timeout=duration(spec.timeout if spec.timeout is not None else DEFAULT_TIMEOUT),
        healthy_threshold=uint32(spec.healthy_threshold or HEALTHY_THRESHOLD),
        unhealthy_threshold=uint32(spec.unhealthy_threshold or UNHEALTHY_THRESHOLD),
        always_log_health_check_failures=spec.always_log_failures,
    )
    if spec.interval_jitter is not None:
        check.interval_jitter.CopyFrom(duration(spec.interval_jitter))
    if spec.no_traffic_interval is not None:
        check.no_traffic_interval.CopyFrom(duration(spec.no_traffic_interval))
    if spec.log_events:
        sink = check.event_logger.add(name=FILE_SINK)
        sink.typed_config.CopyFrom(any_of(HealthCheckEventFileSink(event_log_path=EVENT_LOG)))
    if spec.http is not None:
        check.http_health_check.CopyFrom(_http(spec.http, host, http2))
    elif spec.grpc is not None:
        check.grpc_health_check.service_name = spec.grpc.service_name
        check.grpc_health_check.authority = spec.grpc.authority or host
    elif spec.tcp is not None:
        check.tcp_health_check.CopyFrom(_tcp(spec.tcp))
    # What a registry takes out is out at once, though it still passes its checks; what it adds does not count as
    # unhealthy before its first check.
    cluster.ignore_health_on_host_removal = True
    cluster.common_lb_config.ignore_new_hosts_until_first_hc = True
    if spec.min_health_percent is not None or not cluster.common_lb_config.HasField("healthy_panic_threshold"):
        cluster.common_lb_config.healthy_panic_threshold.CopyFrom(percent(spec.min_health_percent or 0.0))
    return True


def _http(http: api.HttpCheck, host: str, http2: bool) -> health_check_pb2.HealthCheck.HttpHealthCheck:
    check = health_check_pb2.HealthCheck.HttpHealthCheck(
        host=http.host or host,
        path=http.path,
        codec_client_type=http_pb2.HTTP2 if http2 else http_pb2.HTTP1,
        request_headers_to_add=_headers(http.headers),
    )
    if http.method:
        check.method = base_pb2.RequestMethod.Value(http.method)
    for text in http.expected_statuses:
        found = status_range(text)
        assert found is not None, "validation requires it"
        check.expected_statuses.append(range_pb2.Int64Range(start=found[0], end=found[1] + 1))
    return check


def _headers(headers: Mapping[str, str]) -> list[Header]:
    return [
        Header(header=base_pb2.HeaderValue(key=name, value=value), append_action=Header.OVERWRITE_IF_EXISTS_OR_ADD)
        for name, value in sorted(headers.items())
    ]


def _tcp(tcp: api.TcpCheck) -> health_check_pb2.HealthCheck.TcpHealthCheck:
    check = health_check_pb2.HealthCheck.TcpHealthCheck()
    if tcp.send:
        check.send.text = tcp.send.encode().hex()
    if tcp.receive:
        check.receive.add(text=tcp.receive.encode().hex())
    return check
