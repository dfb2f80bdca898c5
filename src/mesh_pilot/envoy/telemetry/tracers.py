"""Tracers: Envoy's message for each kind of extension provider that collects traces.

Current Envoys have no tracer for Istio's providers for OpenCensus, Lightstep and Stackdriver.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import timedelta

import attrs
from envoy.config.core.v3 import base_pb2, extension_pb2, grpc_service_pb2, http_service_pb2, http_uri_pb2
from envoy.config.trace.v3 import datadog_pb2, http_tracer_pb2, opentelemetry_pb2, skywalking_pb2, zipkin_pb2
from envoy.extensions.tracers.opentelemetry.resource_detectors.v3 import (
    dynatrace_resource_detector_pb2,
    environment_resource_detector_pb2,
)
from envoy.extensions.tracers.opentelemetry.samplers.v3 import dynatrace_sampler_pb2
from google.protobuf import any_pb2, message

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import any_of, boolean, duration, encode
from mesh_pilot.istio.rules.extension_providers import call_header_reason, is_call_timeout
from mesh_pilot.istio.rules.values import header_value_reason
from mesh_pilot.mesh.telemetry import Provider, extension_provider, provider_cluster
from mesh_pilot.world.view import View

ZIPKIN_PATH = "/api/v2/spans"
DATADOG_SERVICE = "envoy"
"""Datadog's service name for a proxy whose node has no cluster: Envoy refuses an empty one."""
ZIPKIN_TIMEOUT = timedelta(seconds=5)
DEFAULT_TIMEOUT = timedelta(seconds=10)

TRACING_PROVIDER_FIELDS = ("zipkin", "opentelemetry", "datadog", "skywalking")
"""The fields of an extension provider of which one is set if it collects traces."""

DYNATRACE_PATH = "/api/v2/samplingConfiguration"
RESOURCE_DETECTORS = "envoy.tracers.opentelemetry.resource_detectors"
DYNATRACE_SAMPLER = "envoy.tracers.opentelemetry.samplers.dynatrace"

Header = mesh_api.MeshConfigExtensionProviderHttpHeader
OpenTelemetry = mesh_api.MeshConfigExtensionProviderOpenTelemetryTracingProvider
Http = mesh_api.MeshConfigExtensionProviderHttpService
Enrichment = mesh_api.MeshConfigExtensionProviderServiceAttributeEnrichment

_Config = tuple[any_pb2.Any, int]
"""The configuration of a tracer, and ``Tracer.max_tag_length``."""


@attrs.frozen
class Tracer:
    """The tracer of a provider."""

    config: bytes
    """An encoded ``Tracing.Http``."""
    max_tag_length: int
    """The longest path in a tag; 0: the provider sets no limit."""
    upstream_spans: bool
    """True if each request to an upstream gets a span of its own, a child of the downstream request's."""
    has_sampler: bool = False
    """True if it samples by itself, whatever the percentage is."""


@derived
def tracer(view: View, namespace: str, name: str, service: str, semantic_service: str) -> Tracer | None:
    """The tracer of a provider; None if it collects no traces or cannot be reached from the namespace.

    ``service`` and ``semantic_service`` are names of the proxy's workload, for tracers that send one.
    """
    provider = extension_provider(view, name)
    built = _config(view, namespace, provider, service, semantic_service) if provider is not None else None
    if provider is None or built is None:
        return None
    config, max_tag_length = built
    kind = next(field for field in TRACING_PROVIDER_FIELDS if getattr(provider, field) is not None)
    http = http_tracer_pb2.Tracing.Http(name=f"envoy.tracers.{kind}", typed_config=config)
    # SkyWalking draws its map of services from the spans of upstream requests.
    return Tracer(
        encode(http),
        max_tag_length,
        upstream_spans=provider.skywalking is not None,
        has_sampler=provider.opentelemetry is not None and provider.opentelemetry.dynatrace_sampler is not None,
    )


def _config(view: View, namespace: str, provider: Provider, service: str, semantic_service: str) -> _Config | None:
    if provider.zipkin is not None:
        return _zipkin(view, namespace, provider.zipkin)
    if provider.opentelemetry is not None:
        return _opentelemetry(view, namespace, provider.opentelemetry, semantic_service or service)
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
    # Envoys that know this field ignore the first three; older ones ignore this one.
    path = zipkin.path or ZIPKIN_PATH
    service = _http(f"http://{host}{path}", cluster, _timeout(zipkin.timeout, ZIPKIN_TIMEOUT), zipkin.headers)
    config.collector_service.CopyFrom(service)
    return any_of(config), zipkin.max_tag_length


def _opentelemetry(view: View, namespace: str, otel: OpenTelemetry, service: str) -> _Config | None:
    reached = provider_cluster(view, namespace, otel.service, otel.port)
    if reached is None:
        return None
    cluster, host = reached
    config = opentelemetry_pb2.OpenTelemetryConfig(service_name=service, resource_detectors=_detectors(otel))
    if otel.dynatrace_sampler is not None:
        sampler = _dynatrace_sampler(view, namespace, otel)
        if sampler is None:
            return None
        config.sampler.CopyFrom(sampler)
    if otel.http is not None:
        config.http_service.CopyFrom(_export(otel.http, cluster, host, otel.port))
        return any_of(config), otel.max_tag_length
    config.grpc_service.CopyFrom(_grpc(cluster, host))
    if otel.grpc is not None:
        if otel.grpc.timeout is not None and is_call_timeout(otel.grpc.timeout):
            config.grpc_service.timeout.CopyFrom(duration(otel.grpc.timeout))
        config.grpc_service.initial_metadata.extend(_values(otel.grpc.initial_metadata))
    return any_of(config), otel.max_tag_length


def _detectors(otel: OpenTelemetry) -> Iterator[extension_pb2.TypedExtensionConfig]:
    """Additions of a proxy to the resource of its spans: its ``OTEL_RESOURCE_ATTRIBUTES``, Dynatrace's files."""
    chosen = otel.resource_detectors
    is_semantic = otel.service_attribute_enrichment is Enrichment.OTEL_SEMANTIC_CONVENTIONS
    if is_semantic or (chosen is not None and chosen.environment is not None):
        environment = environment_resource_detector_pb2.EnvironmentResourceDetectorConfig()
        yield _extension(f"{RESOURCE_DETECTORS}.environment", environment)
    if chosen is not None and chosen.dynatrace is not None:
        dynatrace = dynatrace_resource_detector_pb2.DynatraceResourceDetectorConfig()
        yield _extension(f"{RESOURCE_DETECTORS}.dynatrace", dynatrace)


def _dynatrace_sampler(view: View, namespace: str, otel: OpenTelemetry) -> extension_pb2.TypedExtensionConfig | None:
    """Dynatrace's sampler; None if its server cannot be reached. Without one of its own, it asks that of the spans."""
    sampler = otel.dynatrace_sampler
    if sampler is None:
        return None
    own = sampler.http_service
    http = own.http if own is not None else otel.http
    service, port = (own.service, own.port) if own is not None else (otel.service, otel.port)
    reached = provider_cluster(view, namespace, service, port)
    if reached is None or http is None:
        return None
    config = dynatrace_sampler_pb2.DynatraceSamplerConfig(
        tenant=sampler.tenant,
        cluster_id=sampler.cluster_id,
        root_spans_per_minute=sampler.root_spans_per_minute,
        http_service=_export(http, *reached, port, path="" if own is not None else DYNATRACE_PATH),
    )
    return _extension(DYNATRACE_SAMPLER, config)


def _extension(name: str, config: message.Message) -> extension_pb2.TypedExtensionConfig:
    return extension_pb2.TypedExtensionConfig(name=name, typed_config=any_of(config))


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


def _export(http: Http, cluster: str, host: str, port: int, *, path: str = "") -> http_service_pb2.HttpService:
    """Calls to a host; ``path`` in place of that of the settings."""
    uri = f"http://{host}:{port}{path or http.path}"
    return _http(uri, cluster, _timeout(http.timeout, DEFAULT_TIMEOUT), http.headers)


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
    """The headers that Envoy accepts."""
    named = ((h.name, header_value(h)) for h in headers if not call_header_reason(h))
    return [base_pb2.HeaderValue(key=name, value=value) for name, value in named if value is not None]


def header_value(header: Header) -> str | None:
    """The value of a header, as in Istio from the environment of the control plane if it names a variable there.

    None if there is no such variable, or its value cannot be sent.
    """
    if header.env_name is None:
        return header.value
    value = os.environ.get(header.env_name)
    return value if value is not None and not header_value_reason(value) else None


def _timeout(value: timedelta | None, default: timedelta) -> timedelta:
    """A timeout, or the default if Envoy would refuse it: that must not cost a listener."""
    return value if value is not None and is_call_timeout(value) else default


def _grpc(cluster: str, host: str) -> grpc_service_pb2.GrpcService:
    return grpc_service_pb2.GrpcService(
        envoy_grpc=grpc_service_pb2.GrpcService.EnvoyGrpc(cluster_name=cluster, authority=host)
    )
