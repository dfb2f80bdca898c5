"""The one who asks, as the control plane knows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
from starlette.requests import Request

from mesh_pilot.ops.api.route import ApiError, ApiTopic, Found
from mesh_pilot.ops.api.visitors import EVERYWHERE, ISSUER, KnownIssuer, Role, Scope, visitor_of
from mesh_pilot.ops.plane.state import PlaneState


@attrs.frozen
class KnownVisitor:
    """The one who asks."""

    name: str
    role: Role | None
    """The role in all namespaces; null: none there, see ``roles``."""
    how: str
    """The evidence: ``token``, ``login`` (a token of the issuer), ``session``, ``certificate``, ``socket`` or
    ``loopback``."""
    may_log_out: bool
    """True if there is a session that ``POST /logout`` ends."""
    roles: Mapping[str, Role]
    """The role in each namespace; ``*`` stands for all."""
    subject: str
    """The issuer's name of a person; empty for others."""
    groups: Sequence[str]


routes = ApiTopic()


@routes.declare("/whoami", "The name and the roles of whoever asks.", answers=KnownVisitor, scope=Scope.ANY)
async def whoami(_: PlaneState, request: Request) -> Found:
    visitor = visitor_of(request)
    if visitor is None or not visitor.grants:
        return KnownVisitor("anybody", Role.VIEW, "", False, {EVERYWHERE: Role.VIEW}, "", ())
    return KnownVisitor(
        visitor.name,
        visitor.role,
        visitor.how,
        visitor.how == "session",
        visitor.grants,
        visitor.subject,
        visitor.groups,
    )


@routes.declare(
    "/login",
    "The issuer that people log in at; 404 where people do not log in.",
    answers=KnownIssuer,
    scope=Scope.NONE,
    failures={404: "People do not log in here."},
)
async def issuer(_: PlaneState, request: Request) -> Found:
    found = request.scope.get(ISSUER)
    if not isinstance(found, KnownIssuer):
        raise ApiError(404, "people do not log in here: the control plane has no --api-people-file (docs/access.md)")
    return found
