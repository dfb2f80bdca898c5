"""Tracers: Envoy's configuration for each kind of trace collector that an extension provider can be.

Istio's providers for OpenCensus, Lightstep and Stackdriver have no tracer in a current Envoy any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from envoy.config.core.v3 import base_pb2, grpc_service_pb2, http_service_pb2, http_uri_pb2
from envoy.config.trace.v3 import datadog_pb2, opentelemetry_pb2, skywalking_pb2, zipkin_pb2
from google.protobuf import any_pb2

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.config.validation.extension_providers import call_header_reason, is_call_timeout
from mesh_pilot.envoy.core.protobuf import any_of, boolean, duration
from mesh_pilot.mesh.extension_providers import Provider, provider_cluster
from mesh_pilot.world.view import View

ZIPKIN_PATH = "/api/v2/spans"
UNNAMED = "envoy"
"""What Datadog calls the service of a proxy that names no cluster of its own: Envoy refuses an empty name."""
ZIPKIN_TIMEOUT = timedelta(seconds=5)
DEFAULT_TIMEOUT = timedelta(seconds=10)

KINDS = ("zipkin", "opentelemetry", "datadog", "skywalking")
"""Fields of an extension provider that make a tracer of it."""

Header = mesh_api.MeshConfigExtensionProviderHttpHeader

Tracer = tuple[any_pb2.Any, int]
"""Configuration and longest path tag (0: not said)."""


def provider_tracer(view: View, namespace: str, provider: Provider, service: str) -> Tracer | None:
    """The tracer of a provider; None if it is not for traces, or can't be reached from the namespace.

    ``service`` is the name that spans give to the proxy's workload, where the tracer sends one.
    """
    if provider.zipkin is not None:
        return _zipkin(view, namespace, provider.zipkin)
    if provider.opentelemetry is not None:
        return _opentelemetry(view, namespace, provider.opentelemetry, service)
    if provider.datadog is not None:
        return _datadog(view, namespace, provider.datadog, service)
    if provider.skywalking is not None:
        return _skywalking(view, namespace, provider.skywalking)
    return None


def _zipkin(
    view: View, namespace: str, zipkin: mesh_api.MeshConfigExtensionProviderZipkinTracingProvider
) -> Tracer | None:
    found = provider_cluster(view, namespace, zipkin.service, zipkin.port)
    if found is None:
        return None
    cluster, host = found
    config = zipkin_pb2.ZipkinConfig(
        collector_cluster=cluster,
        collector_hostname=host,
        collector_endpoint=zipkin.path or ZIPKIN_PATH,
        collector_endpoint_version=zipkin_pb2.ZipkinConfig.HTTP_JSON,
        trace_id_128bit=not zipkin.enable_64bit_trace_id,
        shared_span_context=boolean(False),
        trace_context_option=zipkin_pb2.ZipkinConfig.TraceContextOption.ValueType(zipkin.trace_context_option),
    )
    if zipkin.timeout is not None or zipkin.headers:
        # Envoys that know this field pass over the three above; older ones pass over this one.
        path = zipkin.path or ZIPKIN_PATH
        service = _http(f"http://{host}{path}", cluster, _timeout(zipkin.timeout, ZIPKIN_TIMEOUT), zipkin.headers)
        config.collector_service.CopyFrom(service)
    return any_of(config), zipkin.max_tag_length


def _opentelemetry(
    view: View, namespace: str, otel: mesh_api.MeshConfigExtensionProviderOpenTelemetryTracingProvider, service: str
) -> Tracer | None:
    found = provider_cluster(view, namespace, otel.service, otel.port)
    if found is None:
        return None
    cluster, host = found
    config = opentelemetry_pb2.OpenTelemetryConfig(service_name=service)
    if otel.http is not None:
        http = otel.http
        uri = f"http://{host}:{otel.port}{http.path}"
        config.http_service.CopyFrom(_http(uri, cluster, _timeout(http.timeout, DEFAULT_TIMEOUT), http.headers))
        return any_of(config), otel.max_tag_length
    config.grpc_service.CopyFrom(_grpc(cluster, host))
    if otel.grpc is not None:
        if otel.grpc.timeout is not None and is_call_timeout(otel.grpc.timeout):
            config.grpc_service.timeout.CopyFrom(duration(otel.grpc.timeout))
        config.grpc_service.initial_metadata.extend(_values(otel.grpc.initial_metadata))
    return any_of(config), otel.max_tag_length


def _datadog(
    view: View, namespace: str, datadog: mesh_api.MeshConfigExtensionProviderDatadogTracingProvider, service: str
) -> Tracer | None:
    found = provider_cluster(view, namespace, datadog.service, datadog.port)
    if found is None:
        return None
    cluster, host = found
    name = service or UNNAMED
    config = datadog_pb2.DatadogConfig(collector_cluster=cluster, collector_hostname=host, service_name=name)
    return any_of(config), datadog.max_tag_length


def _skywalking(
    view: View, namespace: str, skywalking: mesh_api.MeshConfigExtensionProviderSkyWalkingTracingProvider
) -> Tracer | None:
    found = provider_cluster(view, namespace, skywalking.service, skywalking.port)
    if found is None:
        return None
    config = skywalking_pb2.SkyWalkingConfig(grpc_service=_grpc(*found))
    if skywalking.access_token:
        config.client_config.backend_token = skywalking.access_token
    return any_of(config), 0


def _http(uri: str, cluster: str, timeout: timedelta, headers: Iterable[Header]) -> http_service_pb2.HttpService:
    return http_service_pb2.HttpService(
        http_uri=http_uri_pb2.HttpUri(uri=uri, cluster=cluster, timeout=duration(timeout)),
        request_headers_to_add=[
            base_pb2.HeaderValueOption(
                header=value, append_action=base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
            )
            for value in _values(headers)
        ],
    )


def _values(headers: Iterable[Header]) -> list[base_pb2.HeaderValue]:
    """Headers with a fixed value that Envoy takes; the environment of proxies is not known here."""
    return [
        base_pb2.HeaderValue(key=h.name, value=h.value)
        for h in headers
        if h.value is not None and not call_header_reason(h)
    ]


def _timeout(given: timedelta | None, otherwise: timedelta) -> timedelta:
    """One that Envoy would refuse is as good as none: it must not cost a listener."""
    return given if given is not None and is_call_timeout(given) else otherwise


def _grpc(cluster: str, host: str) -> grpc_service_pb2.GrpcService:
    return grpc_service_pb2.GrpcService(
        envoy_grpc=grpc_service_pb2.GrpcService.EnvoyGrpc(cluster_name=cluster, authority=host)
    )
