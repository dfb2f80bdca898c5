"""Tracing of HTTP connection managers: how much is sampled, what spans are tagged with, and where they go.

Without a Telemetry that speaks of tracing, and without default providers, it is as the mesh config's own settings
say, and spans go where the proxy's bootstrap says. Rules: Istio's Telemetry and MeshConfig references.

Istio's own tags (``istio.canonical_service``, ...) are sent where ``enableIstioTags`` is true. Unlike in Istio that is
not the default: the tags keep proxies of different workloads from sharing listeners.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from envoy.config.trace.v3 import http_tracer_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from envoy.type.metadata.v3 import metadata_pb2
from envoy.type.tracing.v3.custom_tag_pb2 import CustomTag

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.api.istio.telemetry import v1alpha1 as api
from mesh_pilot.envoy.core.protobuf import encode, percent, uint32
from mesh_pilot.envoy.telemetry.tracers import provider_tracer
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.extension_providers import extension_provider
from mesh_pilot.mesh.names import DRY_RUN_ALLOW, DRY_RUN_DENY, HTTP_RBAC
from mesh_pilot.mesh.policies import PolicyContext
from mesh_pilot.mesh.proxy.proxy_config import proxy_settings
from mesh_pilot.mesh.proxy.span_source import Tags
from mesh_pilot.mesh.telemetry import is_for_side, provider_names, telemetry_for
from mesh_pilot.protowire import VARINT, tag, varint
from mesh_pilot.world.view import View

DEFAULT_SAMPLING = 1.0
"""Percent of requests that start a trace where nobody says."""

_NO_CONTEXT_PROPAGATION = tag(13, VARINT) + varint(1)
"""``Tracing.no_context_propagation: true``, encoded: Envoy 1.40 has the field, xds-protos 1.85 lacks it."""

_TRIED = tuple(
    (f"istio.authorization.dry_run.{action}_policy.{tag}", prefix + key)
    for action, prefix in (("allow", DRY_RUN_ALLOW), ("deny", DRY_RUN_DENY))
    for tag, key in (("name", "shadow_effective_policy_id"), ("result", "shadow_engine_result"))
)
"""Istio's tags for policies that are only tried out, and where Envoy's RBAC filter notes their values."""

Tag = mesh_api.TracingCustomTag | api.TracingCustomTag


@attrs.frozen
class Tracing:
    """What is traced of a context's requests."""

    sampling: float
    """Percent of requests."""
    tags: Mapping[str, Tag]
    tag_length: int
    """Longest path that goes into a span; 0: Envoy's default."""
    provider: str = ""
    """Name of the extension provider that spans go to; empty: as the bootstrap says."""
    istio_tags: bool = False
    """Whether spans have Istio's own tags."""
    by_request_id: bool = True
    """Whether the id of a request says whether it is sampled, and is changed to say so."""
    context_disabled: bool = False
    """Whether upstreams are not told of the trace."""


@attrs.frozen
class TracingConfig:
    """What an HTTP connection manager and its filters are told of tracing."""

    tracing: bytes = b""
    """An encoded ``HttpConnectionManager.Tracing``, empty for none."""
    by_request_id: bool = True
    """See ``Tracing``."""
    child_spans: bool = False
    """Whether each request to an upstream is a span of its own, below that of the request that came in."""


NO_TRACING = TracingConfig()


@derived
def tracing(view: View, context: PolicyContext) -> TracingConfig:
    """The tracing of a context's HTTP connection managers."""
    chosen = chosen_tracing(view, context)
    if chosen is None:
        return NO_TRACING
    tags = [_tag(name, tag) for name, tag in chosen.tags.items()]
    if chosen.istio_tags:
        tags += _istio_tags(context.spans.tags)
    config = hcm_pb2.HttpConnectionManager.Tracing(
        client_sampling=percent(100),
        random_sampling=percent(chosen.sampling),
        overall_sampling=percent(100),
        custom_tags=sorted(tags, key=lambda tag: tag.tag),
    )
    length = chosen.tag_length
    child_spans = False
    if chosen.provider:
        tracer = _tracer(view, context.namespace, chosen.provider, context.spans.service)
        if tracer is None:
            return NO_TRACING
        config.provider.MergeFromString(tracer.config)
        length = tracer.tag_length or length
        child_spans = tracer.child_spans
    if length:
        config.max_path_tag_length.CopyFrom(uint32(length))
    encoded = encode(config) + (_NO_CONTEXT_PROPAGATION if chosen.context_disabled else b"")
    return TracingConfig(encoded, chosen.by_request_id, child_spans)


@derived
def chosen_tracing(view: View, context: PolicyContext) -> Tracing | None:
    """What Telemetry and the mesh say together; None for no tracing.

    A Telemetry about tracing needs a provider, its own or a default one: as in Istio, without any it ends tracing.
    """
    base, enabled, providers = _mesh_tracing(view, context.settings)
    entries = [
        next((t for t in spec.tracing if is_for_side(t.match, context)), None)
        for spec in telemetry_for(view, context.namespace, context.labels)
    ]
    said = [e for e in entries if e is not None]
    if not said and not providers:
        return base if enabled else None
    chosen = attrs.evolve(base, provider=providers[0] if providers else "")
    disabled = False
    for entry in said:
        named = provider_names(entry.providers)
        sampling = entry.random_sampling_percentage
        disabled = _said(entry.disable_span_reporting, disabled)
        chosen = attrs.evolve(
            chosen,
            provider=named[0] if named else chosen.provider,
            sampling=chosen.sampling if sampling is None else sampling,
            tags=entry.custom_tags or chosen.tags,
            istio_tags=_said(entry.enable_istio_tags, chosen.istio_tags),
            by_request_id=_said(entry.use_request_id_for_trace_sampling, chosen.by_request_id),
            context_disabled=_said(entry.disable_context_propagation, chosen.context_disabled),
        )
    return chosen if chosen.provider and not disabled else None


@derived
def _mesh_tracing(view: View, own: str) -> tuple[Tracing, bool, tuple[str, ...]]:
    """The mesh's own settings, whether they are on, and the default providers."""
    mesh = view.mesh()
    settings = proxy_settings(view, own).tracing or mesh_api.Tracing()
    base = Tracing(
        settings.sampling or DEFAULT_SAMPLING,
        settings.custom_tags,
        settings.max_path_tag_length,
        istio_tags=bool(settings.enable_istio_tags),
    )
    defaults = mesh.default_providers
    return base, mesh.enable_tracing, tuple(defaults.tracing if defaults else ())


@attrs.frozen
class _Tracer:
    """A provider as Envoy takes it."""

    config: bytes
    """An encoded ``Tracing.Http``."""
    tag_length: int
    """Longest path tag; 0: not said."""
    child_spans: bool


@derived
def _tracer(view: View, namespace: str, name: str, service: str) -> _Tracer | None:
    """The tracer of a provider for proxies whose spans name this service; None if it can't be used."""
    provider = extension_provider(view, name)
    found = provider_tracer(view, namespace, provider, service) if provider else None
    if provider is None or found is None:
        return None
    config, length = found
    http = http_tracer_pb2.Tracing.Http(name=name, typed_config=config)
    # SkyWalking draws its map of services from spans of requests that go out.
    return _Tracer(encode(http), length, child_spans=provider.skywalking is not None)


def _said(value: bool | None, otherwise: bool) -> bool:
    return otherwise if value is None else value


def _istio_tags(tags: Tags) -> list[CustomTag]:
    found = [CustomTag(tag=name, literal=CustomTag.Literal(value=value)) for name, value in tags]
    for name, key in _TRIED:
        tag = CustomTag(tag=name)
        tag.metadata.kind.request.SetInParent()
        tag.metadata.metadata_key.key = HTTP_RBAC
        tag.metadata.metadata_key.path.append(metadata_pb2.MetadataKey.PathSegment(key=key))
        found.append(tag)
    return found


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
