"""Servers that Envoy itself talks to: tracers, sinks of statistics, access logs; each with a static cluster.

Spans go to the tracer of the bootstrap where the control plane names no provider of a Telemetry.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mesh_pilot.agent.bootstrap.envoy_bootstrap import Json
from mesh_pilot.agent.bootstrap.static_resources import SDS_CLUSTER, assignment, http2, socket_address
from mesh_pilot.istio.meaning.durations import read_duration

_TRACE = "type.googleapis.com/envoy.config.trace.v3."
_METRICS = "type.googleapis.com/envoy.config.metrics.v3."
_UPSTREAM_TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"

ACCESS_LOG_CLUSTER = "envoy_accesslog_service"
METRICS_CLUSTER = "envoy_metrics_service"
ZIPKIN_CLUSTER = "zipkin"
DATADOG_CLUSTER = "datadog_agent"


class RemoteServiceError(ValueError):
    """A field that names no server: its path, and what to write."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.field = path.partition(".")[0]


def parts_of(proxy_config: Mapping[str, Any], node_cluster: str, *, is_ipv6: bool) -> dict[str, Any]:
    """``clusters``, and ``tracing`` and ``stats_sinks`` if there are any. Raises RemoteServiceError."""
    services = list(_services(proxy_config, is_ipv6))
    found: dict[str, Any] = {"clusters": [cluster for cluster, _ in services]}
    names = {str(cluster["name"]) for cluster in found["clusters"]}
    if ZIPKIN_CLUSTER in names:
        found["tracing"] = _zipkin()
    elif DATADOG_CLUSTER in names:
        found["tracing"] = _tracer("datadog", "DatadogConfig", DATADOG_CLUSTER, service_name=node_cluster)
    sinks = [sink for _, sink in services if sink is not None]
    if statsd := proxy_config.get("statsdUdpAddress"):
        sinks.append(_sink("statsd", "StatsdSink", address=_ip_address("statsdUdpAddress", statsd)))
    if sinks:
        found["stats_sinks"] = sinks
    return found


def _services(config: Mapping[str, Any], is_ipv6: bool) -> Iterator[tuple[dict[str, Json], Json]]:
    """The cluster of each server, and its sink of statistics."""
    tracing = config.get("tracing", {})
    tls = tracing.get("tlsSettings", {})
    zipkin = tracing.get("zipkin", {}).get("address") or ("" if "datadog" in tracing else config.get("zipkinAddress"))
    if zipkin:
        path = "zipkinAddress" if "zipkin" not in tracing else "tracing.zipkin.address"
        yield _cluster(ZIPKIN_CLUSTER, path, {"address": zipkin, "tlsSettings": tls}, is_ipv6), None
    elif datadog := tracing.get("datadog", {}).get("address"):
        service = {"address": datadog, "tlsSettings": tls}
        yield _cluster(DATADOG_CLUSTER, "tracing.datadog.address", service, is_ipv6), None
    metrics = config.get("envoyMetricsService", {})
    if address := metrics.get("address") or config.get("envoyMetricsServiceAddress"):
        service = {**metrics, "address": address}
        path = "envoyMetricsService.address" if metrics.get("address") else "envoyMetricsServiceAddress"
        cluster = _cluster(METRICS_CLUSTER, path, service, is_ipv6, is_grpc=True)
        grpc: Json = {"envoy_grpc": {"cluster_name": METRICS_CLUSTER}}
        yield cluster, _sink("metrics_service", "MetricsServiceConfig", transport_api_version="V3", grpc_service=grpc)
    logs = config.get("envoyAccessLogService", {})
    if logs.get("address"):
        yield _cluster(ACCESS_LOG_CLUSTER, "envoyAccessLogService.address", logs, is_ipv6, is_grpc=True), None


def _zipkin() -> Json:
    return _tracer(
        "zipkin",
        "ZipkinConfig",
        ZIPKIN_CLUSTER,
        collector_endpoint="/api/v2/spans",
        collector_endpoint_version="HTTP_JSON",
        trace_id_128bit=True,
        shared_span_context=False,
    )


def _tracer(name: str, kind: str, cluster: str, **more: Json) -> Json:
    config: Json = {"@type": f"{_TRACE}{kind}", "collector_cluster": cluster, **more}
    return {"http": {"name": f"envoy.tracers.{name}", "typed_config": config}}


def _sink(name: str, kind: str, **config: Json) -> dict[str, Json]:
    return {"name": f"envoy.stat_sinks.{name}", "typed_config": {"@type": f"{_METRICS}{kind}", **config}}


def _cluster(
    name: str, path: str, service: Mapping[str, Any], is_ipv6: bool, *, is_grpc: bool = False
) -> dict[str, Json]:
    host, port = host_and_port(path, service["address"])
    cluster: dict[str, Json] = {
        "name": name,
        "alt_stat_name": f"{name};",
        "type": "STRICT_DNS",
        "wait_for_warm_on_init": False,  # what Envoy serves does not need it
        "dns_lookup_family": "V6_ONLY" if is_ipv6 else "V4_ONLY",
        "connect_timeout": "1s",
        **assignment(name, socket_address(host, port)),
    }
    if is_grpc:
        cluster |= http2()
    if context := _tls_context(path, service.get("tlsSettings", {}), is_grpc=is_grpc):
        cluster["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": context}
    if keepalive := service.get("tcpKeepalive"):
        cluster["upstream_connection_options"] = {"tcp_keepalive": _keepalive(keepalive)}
    return cluster


def _keepalive(settings: Mapping[str, Any]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    if settings.get("probes"):
        found["keepalive_probes"] = settings["probes"]
    for name in ("time", "interval"):
        if name in settings and (seconds := int(read_duration(settings[name]).total_seconds())) > 0:
            found[f"keepalive_{name}"] = seconds
    return found


def _tls_context(path: str, settings: Mapping[str, Any], *, is_grpc: bool) -> dict[str, Json]:
    """Envoy's UpstreamTlsContext; empty for plaintext. Files are read by Envoy; the mesh's own come over SDS."""
    mode = settings.get("mode", "DISABLE")
    if mode == "DISABLE":
        return {}
    common: dict[str, Json] = {"alpn_protocols": ["h2"]} if is_grpc else {}
    matchers: list[Json] = [
        {"san_type": kind, "matcher": {"exact": name}}
        for name in settings.get("subjectAltNames", ())
        for kind in ("DNS", "URI")
    ]
    matched: dict[str, Json] = {"match_typed_subject_alt_names": matchers} if matchers else {}
    if mode == "ISTIO_MUTUAL":
        common["tls_certificate_sds_secret_configs"] = [_sds("default")]
        validation: Json = {
            "default_validation_context": matched,
            "validation_context_sds_secret_config": _sds("ROOTCA"),
        }
        common["combined_validation_context"] = validation
    else:
        if mode == "MUTUAL":
            chain, key = settings.get("clientCertificate", ""), settings.get("privateKey", "")
            common["tls_certificates"] = [{"certificate_chain": {"filename": chain}, "private_key": {"filename": key}}]
            _check_readable(path, clientCertificate=chain, privateKey=key)
        if ca := settings.get("caCertificates"):
            _check_readable(path, caCertificates=ca)
            common["validation_context"] = {"trusted_ca": {"filename": ca}, **matched}
        elif not settings.get("insecureSkipVerify"):
            raise RemoteServiceError(path, "tlsSettings needs caCertificates: a PEM file of roots on this machine")
    context: dict[str, Json] = {"@type": _UPSTREAM_TLS, "common_tls_context": common}
    if sni := settings.get("sni"):
        context["sni"] = sni
    return context


def _check_readable(path: str, **files: str) -> None:
    """Raise RemoteServiceError for a file that Envoy would refuse to start without."""
    for field, file in files.items():
        if not os.access(file, os.R_OK) or not Path(file).is_file():
            raise RemoteServiceError(path, f"{field} of its tlsSettings, {file!r}, is not a file that can be read here")


def _sds(name: str) -> Json:
    source: Json = {
        "api_type": "GRPC",
        "transport_api_version": "V3",
        "set_node_on_first_message_only": True,
        "grpc_services": [{"envoy_grpc": {"cluster_name": SDS_CLUSTER}}],
    }
    return {"name": name, "sds_config": {"api_config_source": source, "resource_api_version": "V3"}}


def host_and_port(path: str, text: str) -> tuple[str, int]:
    """The parts of ``host:port``. Raises RemoteServiceError, with the path of the field."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if "$(" in host:
        raise RemoteServiceError(path, f"{host} is Kubernetes' to replace: write the address, such as 127.0.0.1:{port}")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise RemoteServiceError(path, f"{text!r} is not host:port")
    return host, int(port)


def _ip_address(path: str, text: str) -> Json:
    import ipaddress

    host, port = host_and_port(path, text)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise RemoteServiceError(path, f"Envoy resolves no name there: {host!r} must be an IP address") from None
    return socket_address(host, port)
