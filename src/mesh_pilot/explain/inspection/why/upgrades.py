"""Requests that change the protocol of their connection: CONNECT, WebSocket (Envoy: "HTTP upgrades")."""

from __future__ import annotations

from collections.abc import Sequence

from mesh_pilot.explain.inspection.why.matchers import Message
from mesh_pilot.explain.inspection.why.request import WhyRequest


def upgrade_of(request: WhyRequest) -> str:
    """The protocol that a request asks for on its connection, in lower case; empty if none."""
    if request.method == "CONNECT":
        return "connect"
    headers = dict(request.headers)
    tokens = [token.strip().lower() for token in headers.get("connection", "").split(",")]
    found = headers.get("upgrade", "").lower() if "upgrade" in tokens else ""
    return "" if found == "h2c" else found


def may_upgrade(manager: Message, route: Message, kind: str) -> bool:
    """True if a connection manager, or a route, lets requests change the protocol of their connection to this one."""

    def said_by(configs: Sequence[Message]) -> bool | None:
        named = [each for each in configs if str(each.get("upgrade_type", "")).lower() == kind]
        return named[-1].get("enabled", True) is not False if named else None

    of_route = said_by(route.get("route", {}).get("upgrade_configs", ()))
    return of_route if of_route is not None else bool(said_by(manager.get("upgrade_configs", ())))
