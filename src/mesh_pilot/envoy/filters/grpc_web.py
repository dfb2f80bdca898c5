"""gRPC-Web: browsers' form of gRPC, turned into gRPC on ports that say so."""

from __future__ import annotations

from envoy.extensions.filters.http.grpc_web.v3 import grpc_web_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2

from mesh_pilot.envoy.filters.common import http_filter
from mesh_pilot.mesh.policies import PolicyContext
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View

NAME = "envoy.filters.http.grpc_web"


def grpc_web(view: View, context: PolicyContext, protocol: Protocol) -> hcm_pb2.HttpFilter | None:
    return http_filter(NAME, grpc_web_pb2.GrpcWeb()) if protocol is Protocol.GRPC_WEB else None
