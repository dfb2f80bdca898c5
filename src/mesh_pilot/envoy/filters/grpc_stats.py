"""gRPC statistics: counts of messages and statuses, of the requests that are gRPC."""

from __future__ import annotations

from envoy.extensions.filters.http.grpc_stats.v3 import config_pb2
from google.protobuf import any_pb2

from mesh_pilot.envoy.core.protobuf import any_of, boolean
from mesh_pilot.envoy.filters.translator import FilterTranslator
from mesh_pilot.mesh.policies.context import PolicyContext
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View


def _hcm(view: View, context: PolicyContext, protocol: Protocol) -> any_pb2.Any | None:
    return any_of(config_pb2.FilterConfig(emit_filter_state=True, stats_for_all_methods=boolean(False)))


GRPC_STATS = FilterTranslator(name="envoy.filters.http.grpc_stats", config=config_pb2.FilterConfig, hcm=_hcm)
