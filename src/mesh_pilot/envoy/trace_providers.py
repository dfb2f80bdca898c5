"""Tracers: Envoy's configuration for each kind of trace collector that an extension provider can be.

Istio's providers for OpenCensus, Lightstep and Stackdriver have no tracer in a current Envoy any more.
"""

from __future__ import annotations

from envoy.config.core.v3 import base_pb2, grpc_service_pb2, http_service_pb2, http_uri_pb2
from envoy.config.trace.v3 import datadog_pb2, opentelemetry_pb2, skywalking_pb2, zipkin_pb2
from google.protobuf import any_pb2, duration_pb2

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.envoy.extension_providers import Provider, provider_cluster
from mesh_pilot.envoy.messages import any_of, boolean, duration
from mesh_pilot.world.view import View

ZIPKIN_PATH = "/api/v2/spans"
SERVICE_NAME = "mesh"
"""What Datadog and OpenTelemetry call the source of spans where its own tags do not say."""
DEFAULT_TIMEOUT = duration_pb2.Duration(seconds=10)

Tracer = tuple[any_pb2.Any, int]
"""Configuration and longest path tag (0: not said)."""


def provider_tracer(view: View, namespace: str, provider: Provider) -> Tracer | None:
    """The tracer of a provider; None if it is not for traces, or can't be reached from the namespace."""
    if provider.zipkin is not None:
        return _zipkin(view, namespace, provider.zipkin)
    if provider.opentelemetry is not None:
        return _opentelemetry(view, namespace, provider.opentelemetry)
    if provider.datadog is not None:
        return _datadog(view, namespace, provider.datadog)
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
    )
    return any_of(config), zipkin.max_tag_length


def _opentelemetry(
    view: View, namespace: str, otel: mesh_api.MeshConfigExtensionProviderOpenTelemetryTracingProvider
) -> Tracer | None:
    found = provider_cluster(view, namespace, otel.service, otel.port)
    if found is None:
        return None
    cluster, host = found
    config = opentelemetry_pb2.OpenTelemetryConfig(service_name=SERVICE_NAME)
    if otel.http is None:
        config.grpc_service.CopyFrom(_grpc(cluster, host))
        return any_of(config), otel.max_tag_length
    http = otel.http
    config.http_service.CopyFrom(
        http_service_pb2.HttpService(
            http_uri=http_uri_pb2.HttpUri(
                uri=f"http://{host}:{otel.port}{http.path}",
                cluster=cluster,
                timeout=duration(http.timeout) if http.timeout is not None else DEFAULT_TIMEOUT,
            ),
            request_headers_to_add=[
                base_pb2.HeaderValueOption(header=base_pb2.HeaderValue(key=h.name, value=h.value or ""))
                for h in http.headers
            ],
        )
    )
    return any_of(config), otel.max_tag_length


def _datadog(
    view: View, namespace: str, datadog: mesh_api.MeshConfigExtensionProviderDatadogTracingProvider
) -> Tracer | None:
    found = provider_cluster(view, namespace, datadog.service, datadog.port)
    if found is None:
        return None
    cluster, host = found
    config = datadog_pb2.DatadogConfig(collector_cluster=cluster, collector_hostname=host, service_name=SERVICE_NAME)
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


def _grpc(cluster: str, host: str) -> grpc_service_pb2.GrpcService:
    return grpc_service_pb2.GrpcService(
        envoy_grpc=grpc_service_pb2.GrpcService.EnvoyGrpc(cluster_name=cluster, authority=host)
    )
