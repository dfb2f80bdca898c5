"""Whose connections a listener takes: the side it stands on, and the proxy that policies select."""

from __future__ import annotations

from enum import StrEnum

import attrs

from mesh_pilot.incremental import derived
from mesh_pilot.mesh.proxy.proxy_config import METADATA
from mesh_pilot.mesh.proxy.scope import Labels, OutboundScope, Workload
from mesh_pilot.mesh.proxy.span_source import NO_SOURCE, SpanSource
from mesh_pilot.mesh.selection import selecting_labels
from mesh_pilot.world.view import View

SELECTING_KINDS = ("AuthorizationPolicy", "RequestAuthentication", "Telemetry", "WasmPlugin")
"""Kinds that pick workloads by ``selector`` and shape their inbound listeners; EnvoyFilter has its own field."""


class TrafficSide(StrEnum):
    """Which way connections come."""

    OUTBOUND = "outbound"
    """From the application beside the proxy."""
    INBOUND = "inbound"
    """To the application beside the proxy."""
    GATEWAY = "gateway"
    """Through a router."""


@attrs.frozen(cache_hash=True)
class PolicyContext:
    """What decides the policies for connections, besides what they are for."""

    side: TrafficSide
    namespace: str
    labels: Labels
    http10: bool = False
    """HTTP/1.0 is accepted too (node metadata HTTP10)."""
    settings: str = ""
    """What the proxy says of its own settings (see ``proxy_settings``)."""
    on_demand: bool = False
    """Requests may have to wait for their cluster."""
    spans: SpanSource = NO_SOURCE
    """What spans say of the proxy."""


def outbound_context(scope: OutboundScope, spans: SpanSource = NO_SOURCE) -> PolicyContext:
    """``spans`` is for listeners of HTTP: others have no spans."""
    settings = scope.meta(METADATA)
    return PolicyContext(
        TrafficSide.OUTBOUND, scope.namespace, scope.labels, accepts_http10(scope), settings, scope.on_demand, spans
    )


def inbound_context(view: View, workload: Workload) -> PolicyContext:
    """With those of the workload's labels that any policy selects by: replicas then have the same context."""
    selected = _policy_labels(view)
    labels = frozenset((k, v) for k, v in workload.labels if k in selected)
    scope = workload.scope
    settings = scope.meta(METADATA)
    return PolicyContext(
        TrafficSide.INBOUND, scope.namespace, labels, accepts_http10(scope), settings, spans=workload.spans
    )


def gateway_context(workload: Workload) -> PolicyContext:
    scope = workload.scope
    settings, http10 = scope.meta(METADATA), accepts_http10(scope)
    return PolicyContext(TrafficSide.GATEWAY, scope.namespace, workload.labels, http10, settings, spans=workload.spans)


@derived
def _policy_labels(view: View) -> frozenset[str]:
    """The label keys by which any policy picks workloads."""
    specs = [c.spec for kind in SELECTING_KINDS for c in view.all_configs(kind)]
    selected = {label for spec in specs for label in selecting_labels(spec)}
    filters = (c.spec.workload_selector for c in view.all_configs("EnvoyFilter"))
    return frozenset(selected | {label for s in filters if s for label in s.labels})


def accepts_http10(scope: OutboundScope) -> bool:
    return scope.meta("HTTP10").lower() in ("1", "true", "t")
