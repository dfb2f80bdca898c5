"""Tokens: RequestAuthentications say whose are good; what those say of the caller is left for authorization."""

from __future__ import annotations

from envoy.extensions.filters.http.jwt_authn.v3 import config_pb2 as jwt_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2

from mesh_pilot.envoy.filters.common import http_filter
from mesh_pilot.envoy.filters.jwt_rules import token_filter
from mesh_pilot.mesh.names import JWT_FILTER
from mesh_pilot.mesh.policies import PolicyContext, TrafficSide
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View


def tokens(view: View, context: PolicyContext, protocol: Protocol) -> hcm_pb2.HttpFilter | None:
    found = b"" if context.side is TrafficSide.OUTBOUND else token_filter(view, context.namespace, context.labels)
    return http_filter(JWT_FILTER, jwt_pb2.JwtAuthentication.FromString(found)) if found else None
