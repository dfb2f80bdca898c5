"""The one who asks, and the roles."""

from __future__ import annotations

from enum import StrEnum

import attrs

VISITOR = "mesh_pilot.visitor"
"""The member of an ASGI scope that has the Visitor who was let in."""

STILL_LET_IN = "mesh_pilot.still_let_in"
"""The member of an ASGI scope that tells, when called, whether the Visitor would still be let in."""


class Role(StrEnum):
    """The right of a caller. ``OPERATE`` includes ``VIEW``."""

    VIEW = "view"
    OPERATE = "operate"


@attrs.frozen
class Visitor:
    """The one who asks."""

    name: str
    role: Role | None
    """None: nothing but what everybody may see."""
    how: str
    """``token``, ``certificate``, ``socket``, or ``loopback``."""
    digest: bytes = attrs.field(default=b"", repr=False)
    """SHA-256 of the token."""

    def may(self, role: Role) -> bool:
        return self.role is Role.OPERATE or self.role is role
