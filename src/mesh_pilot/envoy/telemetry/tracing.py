"""Tracing of HTTP connection managers: how much is sampled, the tags of spans, and where spans go.

Without a Telemetry about tracing, and without default providers, the settings of the mesh config apply, and spans go
where the proxy's bootstrap sends them.

Istio's own tags (``istio.canonical_service``, ...) are sent if ``enableIstioTags`` is true. Unlike in Istio that is not
the default: the tags keep proxies of different workloads from sharing listeners.

Rules: Istio's Telemetry and MeshConfig references.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta

import attrs
from envoy.config.core.v3 import base_pb2, extension_pb2, grpc_service_pb2, http_service_pb2, http_uri_pb2
from envoy.config.trace.v3 import datadog_pb2, http_tracer_pb2, opentelemetry_pb2, skywalking_pb2, zipkin_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from envoy.extensions.tracers.opentelemetry.resource_detectors.v3 import (
    dynatrace_resource_detector_pb2,
    environment_resource_detector_pb2,
)
from envoy.extensions.tracers.opentelemetry.samplers.v3 import dynatrace_sampler_pb2
from envoy.type.metadata.v3 import metadata_pb2
from envoy.type.tracing.v3.custom_tag_pb2 import CustomTag
from google.protobuf import any_pb2, message

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.api.istio.telemetry import v1alpha1 as api
from mesh_pilot.base.protowire import VARINT, tag, varint
from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import any_of, boolean, duration, encode, percent, uint32
from mesh_pilot.istio.rules.extension_providers import call_header_reason, is_call_timeout
from mesh_pilot.istio.rules.values import header_value_reason
from mesh_pilot.mesh.names.resources import DRY_RUN_ALLOW, DRY_RUN_DENY, HTTP_RBAC
from mesh_pilot.mesh.policies.context import PolicyContext, TrafficSide
from mesh_pilot.mesh.policies.telemetry import (
    Provider,
    extension_provider,
    is_for_side,
    provider_cluster,
    provider_names,
    telemetry_for,
)
from mesh_pilot.mesh.proxy.proxy_config import proxy_settings
from mesh_pilot.mesh.proxy.span_source import Tags
from mesh_pilot.world.view import View

DEFAULT_SAMPLING = 1.0
"""The default percentage of requests that start a trace."""

_NO_CONTEXT_PROPAGATION = tag(13, VARINT) + varint(1)
"""``Tracing.no_context_propagation: true``, encoded: Envoy 1.40 has the field, xds-protos 1.85 lacks it."""

_DRY_RUN_TAGS = tuple(
    (f"istio.authorization.dry_run.{action}_policy.{tag}", prefix + key)
    for action, prefix in (("allow", DRY_RUN_ALLOW), ("deny", DRY_RUN_DENY))
    for tag, key in (("name", "shadow_effective_policy_id"), ("result", "shadow_engine_result"))
)
"""Istio's tags for policies in dry run, and the keys of their values in the RBAC filter's dynamic metadata."""

Tag = mesh_api.TracingCustomTag | api.TracingCustomTag


@attrs.frozen
class TracingSettings:
    """The tracing of a context, as Telemetry and the mesh config determine it."""

    sampling: float
    """Percentage of requests."""
    tags: Mapping[str, Tag]
    max_tag_length: int
    """The longest path in a tag; 0: Envoy's default."""
    provider: str = ""
    """The extension provider that spans go to; empty: that of the bootstrap."""
    istio_tags: bool = False
    """True if spans have Istio's own tags."""
    by_request_id: bool = True
    """True if a request's id encodes whether it is sampled."""
    context_disabled: bool = False
    """True if no trace headers are sent to upstreams."""


@attrs.frozen
class TracingConfig:
    """The tracing configuration of an HTTP connection manager and its filters."""

    tracing: bytes = b""
    """An encoded ``HttpConnectionManager.Tracing``; empty: none."""
    by_request_id: bool = True
    """See ``TracingSettings``."""


NO_TRACING = TracingConfig()


@derived
def tracing_config(view: View, context: PolicyContext) -> TracingConfig:
    """The tracing of a context's HTTP connection managers."""
    settings = tracing_settings(view, context)
    if settings is None:
        return NO_TRACING
    tags = [made for name, tag in settings.tags.items() if (made := _tag(name, tag)) is not None]
    if settings.istio_tags:
        tags += _istio_tags(context.spans.tags)
    config = hcm_pb2.HttpConnectionManager.Tracing(
        client_sampling=percent(100),
        random_sampling=percent(settings.sampling),
        overall_sampling=percent(100),
        custom_tags=sorted(tags, key=lambda tag: tag.tag),
    )
    max_tag_length = settings.max_tag_length
    if settings.provider:
        spans = context.spans
        provider_tracer = tracer(view, context.namespace, settings.provider, spans.service, spans.semantic_service)
        if provider_tracer is None:
            return NO_TRACING
        config.provider.MergeFromString(provider_tracer.config)
        max_tag_length = provider_tracer.max_tag_length or max_tag_length
        if provider_tracer.upstream_spans or context.side is TrafficSide.GATEWAY:
            config.spawn_upstream_span.CopyFrom(boolean(True))
        if provider_tracer.has_sampler:
            # The sampler decides, so each request has to reach it.
            config.random_sampling.value = 100
    if max_tag_length:
        config.max_path_tag_length.CopyFrom(uint32(max_tag_length))
    encoded = encode(config) + (_NO_CONTEXT_PROPAGATION if settings.context_disabled else b"")
    return TracingConfig(encoded, settings.by_request_id)


@derived
def tracing_settings(view: View, context: PolicyContext) -> TracingSettings | None:
    """The mesh config's settings, overridden by Telemetry from the widest to the narrowest; None for no tracing.

    As in Istio, a Telemetry about tracing disables it if there is no provider, neither its own nor a default one.
    """
    base, enabled, providers = _mesh_tracing(view, context.settings)
    specs = telemetry_for(view, context.namespace, context.labels)
    entries = [entry for spec in specs for entry in spec.tracing]
    overrides = [entry for entry in entries if is_for_side(entry.match, context)]
    # Without a Telemetry the mesh config decides alone, also that there is tracing; with one, also one for the other
    # side only, a missing provider ends it.
    if not entries and not providers:
        return base if enabled else None
    settings = attrs.evolve(base, provider=providers[0] if providers else "")
    disabled = False
    for entry in overrides:
        named = provider_names(entry.providers)
        sampling = entry.random_sampling_percentage
        disabled = _or_inherited(entry.disable_span_reporting, disabled)
        settings = attrs.evolve(
            settings,
            provider=named[0] if named else settings.provider,
            sampling=settings.sampling if sampling is None else sampling,
            tags=entry.custom_tags or settings.tags,
            istio_tags=_or_inherited(entry.enable_istio_tags, settings.istio_tags),
            by_request_id=_or_inherited(entry.use_request_id_for_trace_sampling, settings.by_request_id),
            context_disabled=_or_inherited(entry.disable_context_propagation, settings.context_disabled),
        )
    return settings if settings.provider and not disabled else None


@derived
def _mesh_tracing(view: View, proxy_metadata: str) -> tuple[TracingSettings, bool, tuple[str, ...]]:
    """The settings of the mesh config and of the proxy's metadata, ``enableTracing``, and the default providers."""
    mesh = view.mesh()
    config = proxy_settings(view, proxy_metadata).tracing or mesh_api.Tracing()
    base = TracingSettings(
        config.sampling or DEFAULT_SAMPLING,
        config.custom_tags,
        config.max_path_tag_length,
        istio_tags=bool(config.enable_istio_tags),
    )
    defaults = mesh.default_providers
    return base, mesh.enable_tracing, tuple(defaults.tracing if defaults else ())


def _or_inherited(value: bool | None, inherited: bool) -> bool:
    return inherited if value is None else value


def _istio_tags(tags: Tags) -> list[CustomTag]:
    custom_tags = [CustomTag(tag=name, literal=CustomTag.Literal(value=value)) for name, value in tags]
    for name, key in _DRY_RUN_TAGS:
        tag = CustomTag(tag=name)
        tag.metadata.kind.request.SetInParent()
        tag.metadata.metadata_key.key = HTTP_RBAC
        tag.metadata.metadata_key.path.append(metadata_pb2.MetadataKey.PathSegment(key=key))
        custom_tags.append(tag)
    return custom_tags


def _tag(name: str, tag: Tag) -> CustomTag | None:
    """Envoy's tag; None for one without a value."""
    if tag.environment is not None:
        source = tag.environment
        return CustomTag(
            tag=name, environment=CustomTag.Environment(name=source.name, default_value=source.default_value)
        )
    if tag.header is not None:
        header = tag.header
        return CustomTag(
            tag=name, request_header=CustomTag.Header(name=header.name, default_value=header.default_value)
        )
    if isinstance(tag, api.TracingCustomTag) and tag.formatter is not None:
        return CustomTag(tag=name, value=tag.formatter.value)
    return CustomTag(tag=name, literal=CustomTag.Literal(value=tag.literal.value)) if tag.literal is not None else None


# -- tracers: Envoy's message for each kind of extension provider that collects traces


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
    """True if each request to an upstream gets its own span, a child of the downstream request's."""
    has_sampler: bool = False
    """True if it samples on its own, whatever the percentage is."""


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
    """Dynatrace's sampler; None if its server cannot be reached. If it names no server, it asks that of the spans."""
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
