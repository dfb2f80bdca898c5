"""HTTP filters: a file each, and one tuple that says in which order a request meets them.

To add a filter, write a file with a function like the others and name it here.
"""

from __future__ import annotations

from collections.abc import Callable

from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2

from mesh_pilot.envoy.filters.authorization import allow, ask, audit, deny, mark
from mesh_pilot.envoy.filters.cors import cors
from mesh_pilot.envoy.filters.dynamic_dns import dynamic_dns
from mesh_pilot.envoy.filters.fault import fault
from mesh_pilot.envoy.filters.grpc_stats import grpc_stats
from mesh_pilot.envoy.filters.grpc_web import grpc_web
from mesh_pilot.envoy.filters.jwt_authn import tokens
from mesh_pilot.envoy.filters.on_demand import on_demand
from mesh_pilot.envoy.filters.router import router
from mesh_pilot.mesh.policies import PolicyContext
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View

HttpFilterBuilder = Callable[[View, PolicyContext, Protocol], hcm_pb2.HttpFilter | None]
"""A filter for HTTP of this context and port protocol; None where it has no part."""

HTTP_FILTERS: tuple[HttpFilterBuilder, ...] = (
    mark,
    ask,
    tokens,
    audit,
    deny,
    allow,
    grpc_web,
    grpc_stats,
    fault,
    cors,
    on_demand,
    dynamic_dns,
    router,
)
"""All HTTP filters, in the order of a request; the last one sends it on."""


def http_filters(view: View, context: PolicyContext, protocol: Protocol) -> list[hcm_pb2.HttpFilter]:
    """The filters of an HTTP connection manager."""
    built = (build(view, context, protocol) for build in HTTP_FILTERS)
    return [f for f in built if f is not None]
