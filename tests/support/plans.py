"""Whole plans, where the program itself only reads their parts."""

from __future__ import annotations

from mesh_pilot.envoy.clusters.outbound import cluster_plans
from mesh_pilot.envoy.listeners.outbound import listener_plans
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.proxy.scope import Place, Plan, Scope, joined
from mesh_pilot.mesh.proxy.span_source import NO_SOURCE, SpanSource
from mesh_pilot.world.view import View


@derived
def outbound_clusters(view: View, scope: Scope, place: Place) -> Plan:
    """The outbound clusters of a scope."""
    return joined(view, cluster_plans(view, scope, place))


@derived
def outbound_listeners(view: View, scope: Scope, spans: SpanSource = NO_SOURCE) -> Plan:
    """The outbound listeners of a scope."""
    return joined(view, listener_plans(view, scope, spans))
