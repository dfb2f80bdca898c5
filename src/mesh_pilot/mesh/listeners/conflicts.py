"""Listener conflicts: services and Gateways which a proxy cannot serve as they are declared."""

from __future__ import annotations

from enum import StrEnum

import attrs


class ConflictKind(StrEnum):
    """The kind of a conflict, named after Istio's metric for it if there is one."""

    INBOUND = "pilot_conflict_inbound_listener"
    HTTP_OVER_TCP = "pilot_conflict_outbound_listener_http_over_current_tcp"
    TCP_OVER_HTTP = "pilot_conflict_outbound_listener_tcp_over_current_http"
    TCP_OVER_TCP = "pilot_conflict_outbound_listener_tcp_over_current_tcp"
    GATEWAY = "mesh_pilot_conflict_gateway_server"
    """A server of a Gateway, or a route bound to one."""


@attrs.frozen(cache_hash=True)
class Conflict:
    """A service that can't be reached as declared, because another one has precedence on a listener."""

    listener: str
    kept: str
    """The host with precedence; empty if there is none."""
    dropped: str
    """The host that is left out."""
    reason: str
    kind: ConflictKind = ConflictKind.TCP_OVER_TCP
