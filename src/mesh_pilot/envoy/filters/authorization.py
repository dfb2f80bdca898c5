"""Authorization: AuthorizationPolicies of each action, and what somebody else says of a request (CUSTOM)."""

from __future__ import annotations

from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2

from mesh_pilot.envoy.filters.rbac.filters import http_authorization
from mesh_pilot.mesh.policies import PolicyContext
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View


def mark(view: View, context: PolicyContext, protocol: Protocol) -> hcm_pb2.HttpFilter | None:
    return _filter(http_authorization(view, context).marking)


def ask(view: View, context: PolicyContext, protocol: Protocol) -> hcm_pb2.HttpFilter | None:
    return _filter(http_authorization(view, context).checking)


def audit(view: View, context: PolicyContext, protocol: Protocol) -> hcm_pb2.HttpFilter | None:
    return _filter(http_authorization(view, context).audit)


def deny(view: View, context: PolicyContext, protocol: Protocol) -> hcm_pb2.HttpFilter | None:
    return _filter(http_authorization(view, context).deny)


def allow(view: View, context: PolicyContext, protocol: Protocol) -> hcm_pb2.HttpFilter | None:
    return _filter(http_authorization(view, context).allow)


def _filter(body: bytes | None) -> hcm_pb2.HttpFilter | None:
    return None if body is None else hcm_pb2.HttpFilter.FromString(body)
