"""The context of a listener: everything that policies, filters and access logs depend on, except what it serves."""

from __future__ import annotations

from enum import StrEnum

import attrs

from mesh_pilot.engine import derived
from mesh_pilot.mesh.legacy.authorization import role_labels
from mesh_pilot.mesh.legacy.ports import NO_LEGACY_POLICIES, LegacyPolicies, legacy_policies
from mesh_pilot.mesh.policies.rate_limits import NO_RATE_LIMITS, RateLimits, limited_ports, rate_limits
from mesh_pilot.mesh.policies.sessions import keeps_sessions
from mesh_pilot.mesh.proxy.proxy_config import METADATA
from mesh_pilot.mesh.proxy.scope import OutboundScope, Workload
from mesh_pilot.mesh.proxy.span_source import NO_SOURCE, SpanSource
from mesh_pilot.mesh.selection.workloads import NO_LABELS, Labels, selecting_labels
from mesh_pilot.model.config import Config
from mesh_pilot.model.proxy import RBAC_RULE_STATS
from mesh_pilot.world.view import View

SELECTING_KINDS = (
    "AuthorizationPolicy",
    "RequestAuthentication",
    "Telemetry",
    "WasmPlugin",
    "TrafficExtension",
    "EnvoyFilter",
    "LocalRateLimit",
    "GlobalRateLimit",
)
"""Kinds that select workloads by labels and affect their inbound listeners."""


DRY_RUN_ANNOTATION = "istio.io/dry-run"
"""On a policy that is not enforced: what it would do is counted and logged."""


def is_in_dry_run(config: Config) -> bool:
    """True for an AuthorizationPolicy that is not enforced."""
    return config.annotations.get(DRY_RUN_ANNOTATION, "").lower() in ("true", "t", "1")


class TrafficSide(StrEnum):
    """The direction of connections."""

    OUTBOUND = "outbound"
    """From the proxy's application."""
    INBOUND = "inbound"
    """To the proxy's application."""
    GATEWAY = "gateway"
    """Through a router."""


@attrs.frozen(cache_hash=True)
class PolicyContext:
    """Everything that the policies for connections depend on, except their destination."""

    side: TrafficSide
    namespace: str
    labels: Labels
    http10: bool = False
    """HTTP/1.0 is accepted, too (node metadata HTTP10)."""
    settings: str = ""
    """The proxy's own ProxyConfig (see ``proxy_settings``)."""
    on_demand: bool = False
    """True if requests may wait for their cluster."""
    spans: SpanSource = NO_SOURCE
    """The proxy's properties in its spans."""
    legacy: LegacyPolicies = NO_LEGACY_POLICIES
    """The demands of Istio 1.1's security kinds on requests to its port."""
    limits: RateLimits = NO_RATE_LIMITS
    """The limits of the requests and connections that are let in."""
    rule_stats: bool = False
    """Each rule of a policy counts what it admits and denies (node metadata RBAC_RULE_STATS)."""
    sessions: bool = False
    """True if requests may be bound to an endpoint."""


def outbound_context(view: View, scope: OutboundScope, spans: SpanSource = NO_SOURCE) -> PolicyContext:
    """The context of outbound listeners; ``spans`` is for HTTP listeners, others send no spans."""
    return PolicyContext(
        TrafficSide.OUTBOUND,
        scope.namespace,
        scope.labels,
        accepts_http10(scope),
        scope.meta(METADATA),
        scope.on_demand,
        spans,
        sessions=keeps_sessions(view, scope),
    )


def inbound_context(view: View, workload: Workload) -> PolicyContext:
    """The context of inbound listeners, with only the labels by which any policy selects: replicas share it."""
    selected = _policy_labels(view)
    labels = frozenset((k, v) for k, v in workload.labels if k in selected) or NO_LABELS
    scope = workload.scope
    return PolicyContext(
        TrafficSide.INBOUND,
        scope.namespace,
        labels,
        accepts_http10(scope),
        scope.meta(METADATA),
        spans=workload.spans,
        legacy=legacy_policies(view, scope.namespace, ()),
        limits=rate_limits(view, scope.namespace, labels),
        rule_stats=scope.is_on(RBAC_RULE_STATS),
    )


def gateway_context(view: View, workload: Workload) -> PolicyContext:
    """The context of a router's listeners."""
    scope = workload.scope
    return PolicyContext(
        TrafficSide.GATEWAY,
        scope.namespace,
        workload.labels,
        accepts_http10(scope),
        scope.meta(METADATA),
        spans=workload.spans,
        limits=rate_limits(view, scope.namespace, workload.labels),
        rule_stats=scope.is_on(RBAC_RULE_STATS),
        sessions=keeps_sessions(view, scope),
    )


def limited_at(view: View, context: PolicyContext, port: int) -> PolicyContext:
    """The context of a port, if some limits are for it alone."""
    if port not in limited_ports(view, context.limits):
        return context
    return attrs.evolve(context, limits=attrs.evolve(context.limits, port=port))


@derived
def _policy_labels(view: View) -> frozenset[str]:
    """The label keys by which any policy selects workloads."""
    specs = (config.spec for kind in SELECTING_KINDS for config in view.all_configs(kind))
    return frozenset(label for spec in specs for label in selecting_labels(spec)) | role_labels(view)


def accepts_http10(scope: OutboundScope) -> bool:
    return scope.meta("HTTP10").lower() in ("1", "true", "t")
