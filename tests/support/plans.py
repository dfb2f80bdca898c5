"""Whole plans, where the program itself only reads their parts."""

from __future__ import annotations

from mesh_pilot.engine import derived
from mesh_pilot.envoy.clusters.outbound import cluster_plans
from mesh_pilot.envoy.listeners.outbound import listener_plans
from mesh_pilot.mesh.proxy.plans import Plan, merged_plan
from mesh_pilot.mesh.proxy.scope import OutboundScope, ProxyLocality
from mesh_pilot.mesh.proxy.span_source import NO_SOURCE, SpanSource
from mesh_pilot.world.view import View


@derived
def outbound_clusters(view: View, scope: OutboundScope, place: ProxyLocality) -> Plan:
    """The outbound clusters of a scope."""
    return merged_plan(view, cluster_plans(view, scope, place))


@derived
def outbound_listeners(view: View, scope: OutboundScope, spans: SpanSource = NO_SOURCE) -> Plan:
    """The outbound listeners of a scope."""
    return merged_plan(view, listener_plans(view, scope, spans))
