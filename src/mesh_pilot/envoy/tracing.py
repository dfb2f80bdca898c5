"""Tracing of HTTP connection managers as the mesh config says: how much is sampled, and what spans are tagged with.

Where spans go is in the proxy's bootstrap. Rules: Istio's MeshConfig reference (``enableTracing``,
``defaultConfig.tracing``).
"""

from __future__ import annotations

from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from envoy.type.tracing.v3 import custom_tag_pb2

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.envoy.messages import encode, percent, uint32
from mesh_pilot.envoy.owner import Owner
from mesh_pilot.world.view import View

DEFAULT_SAMPLING = 1.0
"""Percent of requests that start a trace where the mesh says nothing."""


def tracing(view: View, owner: Owner) -> bytes:
    """An encoded ``HttpConnectionManager.Tracing``, empty for none."""
    mesh = view.mesh()
    if not mesh.enable_tracing:
        return b""
    settings = (mesh.default_config and mesh.default_config.tracing) or mesh_api.Tracing()
    config = hcm_pb2.HttpConnectionManager.Tracing(
        client_sampling=percent(100),
        random_sampling=percent(settings.sampling or DEFAULT_SAMPLING),
        overall_sampling=percent(100),
        custom_tags=[_tag(name, tag) for name, tag in sorted(settings.custom_tags.items())],
    )
    if settings.max_path_tag_length:
        config.max_path_tag_length.CopyFrom(uint32(settings.max_path_tag_length))
    return encode(config)


def _tag(name: str, tag: mesh_api.TracingCustomTag) -> custom_tag_pb2.CustomTag:
    kind = custom_tag_pb2.CustomTag
    if tag.environment is not None:
        source = tag.environment
        return kind(tag=name, environment=kind.Environment(name=source.name, default_value=source.default_value))
    if tag.header is not None:
        header = tag.header
        return kind(tag=name, request_header=kind.Header(name=header.name, default_value=header.default_value))
    return kind(tag=name, literal=kind.Literal(value=tag.literal.value if tag.literal else ""))
