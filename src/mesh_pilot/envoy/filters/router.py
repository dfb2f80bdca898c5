"""The router: sends the request to the cluster that its route names."""

from __future__ import annotations

from envoy.extensions.filters.http.router.v3 import router_pb2
from google.protobuf import any_pb2

from mesh_pilot.envoy.core.protobuf import any_of
from mesh_pilot.envoy.filters.translator import FilterTranslator
from mesh_pilot.mesh.policies.context import PolicyContext
from mesh_pilot.mesh.proxy.proxy_config import headers
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View


def _hcm(view: View, context: PolicyContext, protocol: Protocol) -> any_pb2.Any:
    debug = headers(view, context.settings).envoy_debug_headers
    config = router_pb2.Router(suppress_envoy_headers=bool(debug and debug.disabled))
    return any_of(config)


def _grpc_server(view: View, context: PolicyContext) -> any_pb2.Any:
    return any_of(router_pb2.Router())


ROUTER = FilterTranslator(
    name="envoy.filters.http.router",
    config=router_pb2.Router,
    hcm=_hcm,
    grpc_client=True,
    grpc_server=_grpc_server,
)
