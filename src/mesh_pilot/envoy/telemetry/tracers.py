"""Tracers: Envoy's message for each kind of extension provider that collects traces.

Current Envoys have no tracer for Istio's providers for OpenCensus, Lightstep and Stackdriver.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import attrs
from envoy.config.core.v3 import base_pb2, grpc_service_pb2, http_service_pb2, http_uri_pb2
from envoy.config.trace.v3 import datadog_pb2, http_tracer_pb2, opentelemetry_pb2, skywalking_pb2, zipkin_pb2
from google.protobuf import any_pb2

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.config.validation.extension_providers import call_header_reason, is_call_timeout
from mesh_pilot.envoy.core.protobuf import any_of, boolean, duration, encode
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.telemetry import Provider, extension_provider, provider_cluster
from mesh_pilot.world.view import View

ZIPKIN_PATH = "/api/v2/spans"
DATADOG_SERVICE = "envoy"
"""Datadog's service name for a proxy whose node has no cluster: Envoy refuses an empty one."""
ZIPKIN_TIMEOUT = timedelta(seconds=5)
DEFAULT_TIMEOUT = timedelta(seconds=10)

TRACING_PROVIDER_FIELDS = ("zipkin", "opentelemetry", "datadog", "skywalking")
"""The fields of an extension provider of which one is set if it collects traces."""

Header = mesh_api.MeshConfigExtensionProviderHttpHeader

_Config = tuple[any_pb2.Any, int]
"""The configuration of a tracer, and ``Tracer.max_tag_length``."""


@attrs.frozen
class Tracer:
    """The tracer of a provider."""

    config: bytes
    """An encoded ``Tracing.Http``."""
    max_tag_length: int
    """The longest path in a tag; 0: the provider sets no limit."""
    child_spans: bool
    """See ``tracing.TracingConfig``."""


@derived
def tracer(view: View, namespace: str, name: str, service: str) -> Tracer | None:
    """The tracer of a provider; None if it collects no traces or cannot be reached from the namespace.

    ``service`` is the name of the proxy's workload, for tracers that send one.
    """
    provider = extension_provider(view, name)
    built = _config(view, namespace, provider, service) if provider is not None else None
    if provider is None or built is None:
        return None
    config, max_tag_length = built
    http = http_tracer_pb2.Tracing.Http(name=name, typed_config=config)
    # SkyWalking draws its map of services from the spans of upstream requests.
    return Tracer(encode(http), max_tag_length, child_spans=provider.skywalking is not None)


def _config(view: View, namespace: str, provider: Provider, service: str) -> _Config | None:
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
) -> _Config | None:
    reached = provider_cluster(view, namespace, zipkin.service, zipkin.port)
    if reached is None:
        return None
    cluster, host = reached
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
        # Envoys that know this field ignore the first three; older ones ignore this one.
        path = zipkin.path or ZIPKIN_PATH
        service = _http(f"http://{host}{path}", cluster, _timeout(zipkin.timeout, ZIPKIN_TIMEOUT), zipkin.headers)
        config.collector_service.CopyFrom(service)
    return any_of(config), zipkin.max_tag_length


def _opentelemetry(
    view: View, namespace: str, otel: mesh_api.MeshConfigExtensionProviderOpenTelemetryTracingProvider, service: str
) -> _Config | None:
    reached = provider_cluster(view, namespace, otel.service, otel.port)
    if reached is None:
        return None
    cluster, host = reached
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
) -> _Config | None:
    reached = provider_cluster(view, namespace, datadog.service, datadog.port)
    if reached is None:
        return None
    cluster, host = reached
    name = service or DATADOG_SERVICE
    config = datadog_pb2.DatadogConfig(collector_cluster=cluster, collector_hostname=host, service_name=name)
    return any_of(config), datadog.max_tag_length


def _skywalking(
    view: View, namespace: str, skywalking: mesh_api.MeshConfigExtensionProviderSkyWalkingTracingProvider
) -> _Config | None:
    reached = provider_cluster(view, namespace, skywalking.service, skywalking.port)
    if reached is None:
        return None
    config = skywalking_pb2.SkyWalkingConfig(grpc_service=_grpc(*reached))
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
    """The headers that Envoy accepts, without those from environment variables, which are not known here."""
    return [
        base_pb2.HeaderValue(key=h.name, value=h.value)
        for h in headers
        if h.value is not None and not call_header_reason(h)
    ]


def _timeout(value: timedelta | None, default: timedelta) -> timedelta:
    """A timeout, or the default if Envoy would refuse it: that must not cost a listener."""
    return value if value is not None and is_call_timeout(value) else default


def _grpc(cluster: str, host: str) -> grpc_service_pb2.GrpcService:
    return grpc_service_pb2.GrpcService(
        envoy_grpc=grpc_service_pb2.GrpcService.EnvoyGrpc(cluster_name=cluster, authority=host)
    )
