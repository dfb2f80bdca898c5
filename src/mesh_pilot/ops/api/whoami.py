"""The one who asks, as the control plane knows them."""

from __future__ import annotations

import attrs
from starlette.requests import Request

from mesh_pilot.ops.api.route import ApiTopic, Found
from mesh_pilot.ops.api.visitors import VISITOR, Role, Visitor
from mesh_pilot.ops.plane.state import PlaneState


@attrs.frozen
class KnownVisitor:
    """The one who asks."""

    name: str
    role: Role
    how: str
    """The evidence: ``token``, ``session``, ``certificate``, ``socket`` or ``loopback``."""
    may_log_out: bool
    """True if there is a session that ``POST /logout`` ends."""


routes = ApiTopic()


@routes.declare("/whoami", "The name and the role of whoever asks.", answers=KnownVisitor)
async def whoami(_: PlaneState, request: Request) -> Found:
    visitor = request.scope.get(VISITOR)
    if not isinstance(visitor, Visitor) or visitor.role is None:
        return KnownVisitor("anybody", Role.VIEW, "", False)
    return KnownVisitor(visitor.name, visitor.role, visitor.how, visitor.how == "session")
