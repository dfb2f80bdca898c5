"""HTTP filters, one to a file, and the order in which a request passes them.

To add an HTTP filter:

1. ``filters/NAME.py``: a ``FilterTranslator`` with Envoy's name, the type of the configuration, and ``hcm``: the
   configuration for HTTP connection managers. It returns None unless something uses the filter, so that the listeners
   of other meshes stay as they are; what it reads of the World decides which edits make listeners again.
2. ``per_route`` in the same declaration, if routes configure the filter.
3. ``grpc_client``, ``grpc_server`` and ``filter_class`` there, if proxyless gRPC supports the filter, or if it belongs
   to a ``filterClass`` of EnvoyFilter.
4. A line in ``HTTP_FILTERS`` below: its position is the order of requests.
5. A test in ``tests/envoy`` (``test_toy_filter.py`` is a model); a golden in ``tests/golden`` if Istio has the filter.
6. ``docs/istio-differences.md``, if Istio has not.

Network filters are in ``tcp``, those of users in ``extensions``.
"""

from __future__ import annotations

from collections.abc import Iterator

from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import HttpFilter
from google.protobuf import any_pb2

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.filters.cors import CORS
from mesh_pilot.envoy.filters.dynamic_dns import DYNAMIC_DNS
from mesh_pilot.envoy.filters.ext_authz import EXT_AUTHZ, RBAC_SHADOW
from mesh_pilot.envoy.filters.extensions import http_extensions
from mesh_pilot.envoy.filters.external_auth import external_auth_filters, external_auth_per_route
from mesh_pilot.envoy.filters.fault import FAULT
from mesh_pilot.envoy.filters.global_rate_limit import global_limits
from mesh_pilot.envoy.filters.grpc_stats import GRPC_STATS
from mesh_pilot.envoy.filters.grpc_web import GRPC_WEB
from mesh_pilot.envoy.filters.jwt_authn import JWT_AUTHN
from mesh_pilot.envoy.filters.local_rate_limit import request_limits
from mesh_pilot.envoy.filters.on_demand import ON_DEMAND
from mesh_pilot.envoy.filters.peer_names import PEER_NAMES
from mesh_pilot.envoy.filters.rbac.policies import RBAC_ALLOW, RBAC_AUDIT, RBAC_DENY
from mesh_pilot.envoy.filters.rbac.roles import RBAC_ROLES
from mesh_pilot.envoy.filters.router import ROUTER
from mesh_pilot.envoy.filters.stateful_session import STATEFUL_SESSION
from mesh_pilot.envoy.filters.translator import FilterClass, FilterTranslator
from mesh_pilot.mesh.policies.context import PolicyContext
from mesh_pilot.mesh.policies.extensions import ExtensionPhase, Extensions
from mesh_pilot.mesh.virtual_hosts.authorizers import Authorizer
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View

HTTP_FILTERS: tuple[FilterTranslator, ...] = (
    RBAC_SHADOW,
    EXT_AUTHZ,
    JWT_AUTHN,
    RBAC_AUDIT,
    RBAC_DENY,
    RBAC_ALLOW,
    RBAC_ROLES,
    GRPC_WEB,
    GRPC_STATS,
    FAULT,
    CORS,
    PEER_NAMES,
    ON_DEMAND,
    DYNAMIC_DNS,
    STATEFUL_SESSION,
    ROUTER,
)
"""All HTTP filters, in the order of a request. The router ends the chain."""


_EXTENSIONS_BEFORE: tuple[tuple[FilterTranslator, tuple[ExtensionPhase, ...]], ...] = (
    (JWT_AUTHN, (ExtensionPhase.AUTHN,)),
    (RBAC_AUDIT, (ExtensionPhase.AUTHZ,)),
    (GRPC_WEB, (ExtensionPhase.STATS, ExtensionPhase.LAST)),
)
"""Before which of them users' extensions of a phase go."""


def http_filters(
    view: View,
    context: PolicyContext,
    protocol: Protocol,
    extensions: Extensions = (),
    authorizers: tuple[Authorizer, ...] = (),
) -> list[HttpFilter]:
    """The filters of an HTTP connection manager; ``authorizers`` are those that its routes name."""
    found: list[HttpFilter] = []
    for filter_ in HTTP_FILTERS:
        for before, phases in _EXTENSIONS_BEFORE if extensions else ():
            if filter_ is before:
                found += http_extensions(extensions, *phases)
        config = filter_.hcm(view, context, protocol)
        if config is not None:
            found.append(filter_.with_config(config))
        if filter_ is CORS:
            # As many as there are authorizers and policies.
            found += external_auth_filters(view, context.namespace, authorizers)
            found += request_limits(view, context)
            found += global_limits(view, context)
    return found


def per_route_filters(spec: api.HttpRoute) -> Iterator[tuple[str, any_pb2.Any]]:
    """The configuration of filters for one route of a VirtualService, by the filter's name."""
    for filter_ in HTTP_FILTERS:
        config = filter_.per_route(spec) if filter_.per_route is not None else None
        if config is not None:
            yield filter_.name, config
    yield from external_auth_per_route(spec)


def grpc_client_filters() -> list[HttpFilter]:
    """The filters of a proxyless gRPC client."""
    return [filter_.with_defaults() for filter_ in HTTP_FILTERS if filter_.grpc_client]


def grpc_client_supports(name: str) -> bool:
    """True if proxyless gRPC clients support the filter of this name; they refuse route tables with any other."""
    return any(filter_.grpc_client for filter_ in HTTP_FILTERS if filter_.name == name)


def grpc_server_filters(view: View, context: PolicyContext) -> list[HttpFilter]:
    """The filters of a proxyless gRPC server."""
    servers = ((filter_, filter_.grpc_server) for filter_ in HTTP_FILTERS if filter_.grpc_server is not None)
    configs = ((filter_, grpc_server(view, context)) for filter_, grpc_server in servers)
    return [filter_.with_config(config) for filter_, config in configs if config is not None]


def types_in_class(*classes: FilterClass) -> frozenset[str]:
    """The names of the configuration types of the filters in any of these classes of EnvoyFilter."""
    return frozenset(f.config.DESCRIPTOR.full_name for f in HTTP_FILTERS if f.filter_class in classes)
