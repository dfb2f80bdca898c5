"""Tracing of HTTP connection managers: how much is sampled, what spans are tagged with, and where they go.

Without a Telemetry that speaks of tracing, and without default providers, it is as the mesh config's own settings
say, and spans go where the proxy's bootstrap says. Rules: Istio's Telemetry and MeshConfig references.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from envoy.config.trace.v3 import http_tracer_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from envoy.type.tracing.v3.custom_tag_pb2 import CustomTag

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.api.istio.telemetry import v1alpha1 as api
from mesh_pilot.envoy.extension_providers import extension_provider
from mesh_pilot.envoy.messages import encode, percent, uint32
from mesh_pilot.envoy.owner import Owner
from mesh_pilot.envoy.proxy_settings import proxy_settings
from mesh_pilot.envoy.telemetry import is_for_side, provider_names, telemetry_for
from mesh_pilot.envoy.trace_providers import provider_tracer
from mesh_pilot.incremental import derived
from mesh_pilot.world.view import View

DEFAULT_SAMPLING = 1.0
"""Percent of requests that start a trace where nobody says."""

Tag = mesh_api.TracingCustomTag | api.TracingCustomTag


@attrs.frozen
class Tracing:
    """What is traced of an owner's requests."""

    sampling: float
    """Percent of requests."""
    tags: Mapping[str, Tag]
    tag_length: int
    """Longest path that goes into a span; 0: Envoy's default."""
    provider: str = ""
    """Name of the extension provider that spans go to; empty: as the bootstrap says."""


@derived
def tracing(view: View, owner: Owner) -> bytes:
    """An encoded ``HttpConnectionManager.Tracing``, empty for none."""
    chosen = chosen_tracing(view, owner)
    if chosen is None:
        return b""
    config = hcm_pb2.HttpConnectionManager.Tracing(
        client_sampling=percent(100),
        random_sampling=percent(chosen.sampling),
        overall_sampling=percent(100),
        custom_tags=[_tag(name, tag) for name, tag in sorted(chosen.tags.items())],
    )
    length = chosen.tag_length
    if chosen.provider:
        tracer, own_length = _tracer(view, owner.namespace, chosen.provider)
        if not tracer:
            return b""
        config.provider.MergeFromString(tracer)
        length = own_length or length
    if length:
        config.max_path_tag_length.CopyFrom(uint32(length))
    return encode(config)


@derived
def chosen_tracing(view: View, owner: Owner) -> Tracing | None:
    """What Telemetry and the mesh say together; None for no tracing.

    A Telemetry about tracing needs a provider, its own or a default one: as in Istio, without any it ends tracing.
    """
    base, enabled, providers = _mesh_tracing(view, owner.settings)
    entries = [
        next((t for t in spec.tracing if is_for_side(t.match, owner)), None)
        for spec in telemetry_for(view, owner.namespace, owner.labels)
    ]
    said = [e for e in entries if e is not None]
    if not said and not providers:
        return base if enabled else None
    chosen = attrs.evolve(base, provider=providers[0] if providers else "", tags={})
    disabled = False
    for entry in said:
        named = provider_names(entry.providers)
        sampling = entry.random_sampling_percentage
        disabled = disabled if entry.disable_span_reporting is None else entry.disable_span_reporting
        chosen = attrs.evolve(
            chosen,
            provider=named[0] if named else chosen.provider,
            sampling=chosen.sampling if sampling is None else sampling,
            tags=entry.custom_tags or chosen.tags,
        )
    return chosen if chosen.provider and not disabled else None


@derived
def _mesh_tracing(view: View, own: str) -> tuple[Tracing, bool, tuple[str, ...]]:
    """The mesh's own settings, whether they are on, and the default providers."""
    mesh = view.mesh()
    settings = proxy_settings(view, own).tracing or mesh_api.Tracing()
    base = Tracing(settings.sampling or DEFAULT_SAMPLING, settings.custom_tags, settings.max_path_tag_length)
    defaults = mesh.default_providers
    return base, mesh.enable_tracing, tuple(defaults.tracing if defaults else ())


@derived
def _tracer(view: View, namespace: str, name: str) -> tuple[bytes, int]:
    """An encoded ``Tracing.Http`` for a provider (empty if it can't be used), and its tag length."""
    provider = extension_provider(view, name)
    found = provider_tracer(view, namespace, provider) if provider else None
    if found is None:
        return b"", 0
    config, length = found
    return encode(http_tracer_pb2.Tracing.Http(name=name, typed_config=config)), length


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
