"""Clusters on demand: a request whose cluster is not there waits until Envoy has asked for it."""

from __future__ import annotations

from envoy.extensions.filters.http.on_demand.v3 import on_demand_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2

from mesh_pilot.envoy.core.protobuf import ads, seconds
from mesh_pilot.envoy.filters.common import http_filter
from mesh_pilot.mesh.policies import PolicyContext
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View

NAME = "envoy.filters.http.on_demand"
PATIENCE = 3
"""Seconds that a request waits at most; then it is answered 503. Envoy asks once for a cluster: where there is none, it
answers that first request at once, and lets others wait."""


def on_demand(view: View, context: PolicyContext, protocol: Protocol) -> hcm_pb2.HttpFilter | None:
    if not context.on_demand:
        return None
    filter_ = on_demand_pb2.OnDemand()
    filter_.odcds.source.CopyFrom(ads())
    filter_.odcds.timeout.CopyFrom(seconds(PATIENCE))
    return http_filter(NAME, filter_)
