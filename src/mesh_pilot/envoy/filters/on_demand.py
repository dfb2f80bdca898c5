"""Clusters on demand (ODCDS): a request whose cluster is missing waits until Envoy has requested it."""

from __future__ import annotations

from envoy.extensions.filters.http.on_demand.v3 import on_demand_pb2
from google.protobuf import any_pb2

from mesh_pilot.envoy.core.protobuf import ads, any_of, seconds
from mesh_pilot.envoy.filters.translator import FilterTranslator
from mesh_pilot.mesh.policies.context import PolicyContext
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View

CLUSTER_TIMEOUT_SECONDS = 3
"""The longest that a request waits for its cluster; then it is answered 503. Envoy requests a cluster once: if it
does not exist, Envoy answers that first request at once, and lets others wait."""


def _hcm(view: View, context: PolicyContext, protocol: Protocol) -> any_pb2.Any | None:
    if not context.on_demand:
        return None
    config = on_demand_pb2.OnDemand()
    config.odcds.source.CopyFrom(ads())
    config.odcds.timeout.CopyFrom(seconds(CLUSTER_TIMEOUT_SECONDS))
    return any_of(config)


ON_DEMAND = FilterTranslator(name="envoy.filters.http.on_demand", config=on_demand_pb2.OnDemand, hcm=_hcm)
