"""gRPC-Web: translates browsers' form of gRPC into gRPC, on ports of that protocol."""

from __future__ import annotations

from envoy.extensions.filters.http.grpc_web.v3 import grpc_web_pb2
from google.protobuf import any_pb2

from mesh_pilot.envoy.core.protobuf import any_of
from mesh_pilot.envoy.filters.translator import FilterTranslator
from mesh_pilot.mesh.policies.context import PolicyContext
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View


def _hcm(view: View, context: PolicyContext, protocol: Protocol) -> any_pb2.Any | None:
    return any_of(grpc_web_pb2.GrpcWeb()) if protocol is Protocol.GRPC_WEB else None


GRPC_WEB = FilterTranslator(name="envoy.filters.http.grpc_web", config=grpc_web_pb2.GrpcWeb, hcm=_hcm)
