"""gRPC statistics: counts of messages and statuses on gRPC ports."""

from __future__ import annotations

from envoy.extensions.filters.http.grpc_stats.v3 import config_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2

from mesh_pilot.envoy.core.protobuf import boolean
from mesh_pilot.envoy.filters.common import http_filter
from mesh_pilot.mesh.policies import PolicyContext
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View

NAME = "envoy.filters.http.grpc_stats"


def grpc_stats(view: View, context: PolicyContext, protocol: Protocol) -> hcm_pb2.HttpFilter | None:
    if protocol not in (Protocol.GRPC, Protocol.GRPC_WEB):
        return None
    return http_filter(NAME, config_pb2.FilterConfig(emit_filter_state=True, stats_for_all_methods=boolean(False)))
