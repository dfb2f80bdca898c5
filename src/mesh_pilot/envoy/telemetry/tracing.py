"""Tracing of HTTP connection managers: how much is sampled, the tags of spans, and where spans go.

Without a Telemetry about tracing, and without default providers, the settings of the mesh config apply, and spans go
where the proxy's bootstrap sends them.

Istio's own tags (``istio.canonical_service``, ...) are sent if ``enableIstioTags`` is true. Unlike in Istio that is not
the default: the tags keep proxies of different workloads from sharing listeners.

Rules: Istio's Telemetry and MeshConfig references.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from envoy.type.metadata.v3 import metadata_pb2
from envoy.type.tracing.v3.custom_tag_pb2 import CustomTag

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.api.istio.telemetry import v1alpha1 as api
from mesh_pilot.base.protowire import VARINT, tag, varint
from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import boolean, encode, percent, uint32
from mesh_pilot.envoy.telemetry.tracers import tracer
from mesh_pilot.mesh.names import DRY_RUN_ALLOW, DRY_RUN_DENY, HTTP_RBAC
from mesh_pilot.mesh.policies import PolicyContext, TrafficSide
from mesh_pilot.mesh.proxy.proxy_config import proxy_settings
from mesh_pilot.mesh.proxy.span_source import Tags
from mesh_pilot.mesh.telemetry import is_for_side, provider_names, telemetry_for
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
    tags = [_tag(name, tag) for name, tag in settings.tags.items()]
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
    if not overrides and not providers:
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


def _tag(name: str, tag: Tag) -> CustomTag:
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
    return CustomTag(tag=name, literal=CustomTag.Literal(value=tag.literal.value if tag.literal else ""))
