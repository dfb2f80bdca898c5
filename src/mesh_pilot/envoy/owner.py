"""Whose connections a listener takes: the side it stands on, and the proxy that policies select."""

from __future__ import annotations

from enum import StrEnum

import attrs

from mesh_pilot.envoy.scope import Labels, Scope, Workload


class Side(StrEnum):
    """Which way connections come."""

    OUTBOUND = "outbound"
    """From the application beside the proxy."""
    INBOUND = "inbound"
    """To the application beside the proxy."""
    GATEWAY = "gateway"
    """Through a router."""


@attrs.frozen(cache_hash=True)
class Owner:
    """What decides the policies for connections, besides what they are for."""

    side: Side
    namespace: str
    labels: Labels
    http10: bool = False
    """HTTP/1.0 is accepted too (node metadata HTTP10)."""


def outbound_owner(scope: Scope) -> Owner:
    return Owner(Side.OUTBOUND, scope.namespace, scope.labels, accepts_http10(scope))


def inbound_owner(workload: Workload) -> Owner:
    return Owner(Side.INBOUND, workload.scope.namespace, workload.labels, accepts_http10(workload.scope))


def gateway_owner(workload: Workload) -> Owner:
    return Owner(Side.GATEWAY, workload.scope.namespace, workload.labels, accepts_http10(workload.scope))


def accepts_http10(scope: Scope) -> bool:
    return scope.meta("HTTP10").lower() in ("1", "true", "t")
