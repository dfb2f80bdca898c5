"""The router: sends the request to the cluster that the route names."""

from __future__ import annotations

from envoy.extensions.filters.http.router.v3 import router_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2

from mesh_pilot.envoy.core.pieces import optional_piece
from mesh_pilot.envoy.filters.common import http_filter
from mesh_pilot.envoy.telemetry.tracing import tracing
from mesh_pilot.mesh.policies import PolicyContext
from mesh_pilot.mesh.proxy.proxy_config import headers
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View

NAME = "envoy.filters.http.router"


def router(view: View, context: PolicyContext, protocol: Protocol) -> hcm_pb2.HttpFilter:
    debug = headers(view, context.settings).envoy_debug_headers
    config = router_pb2.Router(suppress_envoy_headers=bool(debug and debug.disabled))
    with optional_piece("child spans", namespace=context.namespace):
        config.start_child_span = tracing(view, context).child_spans
    return http_filter(NAME, config)
