"""The declaration of one HTTP filter: its name and what configures it on listeners, on routes and in gRPC."""

from __future__ import annotations

from collections.abc import Callable

import attrs
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import HttpFilter
from google.protobuf import any_pb2, message

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.core.protobuf import any_of
from mesh_pilot.mesh.policies.context import PolicyContext
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View

FilterClass = api.EnvoyFilterPatchFilterClass


@attrs.frozen(kw_only=True)
class FilterTranslator:
    """Translates Istio's configuration into that of one HTTP filter. Functions return None where it has no part."""

    name: str
    """Envoy's name of the filter, ``envoy.filters.http.cors``."""
    config: type[message.Message]
    """The type of its configuration in HTTP connection managers."""
    hcm: Callable[[View, PolicyContext, Protocol], any_pb2.Any | None]
    """The configuration in the HTTP connection managers of a context, for ports of a protocol."""
    per_route: Callable[[api.HttpRoute], any_pb2.Any | None] | None = None
    """The configuration for one route (``typed_per_filter_config``); the type may be another than ``config``."""
    grpc_client: bool = False
    """True if proxyless gRPC clients support the filter; they get it with default values and with ``per_route``.
    They refuse listeners and route tables with an unsupported filter."""
    grpc_server: Callable[[View, PolicyContext], any_pb2.Any | None] | None = None
    """The configuration for proxyless gRPC servers of a context."""
    filter_class: FilterClass = FilterClass.UNSPECIFIED
    """The class that EnvoyFilter's ``filterClass`` counts it among."""

    def with_config(self, config: any_pb2.Any) -> HttpFilter:
        """The filter in an HTTP connection manager."""
        return HttpFilter(name=self.name, typed_config=config)

    def with_defaults(self) -> HttpFilter:
        """The filter with an empty configuration."""
        return self.with_config(any_of(self.config()))
