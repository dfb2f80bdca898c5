"""The one who asks, the roles, and where a role counts.

A role is held in a namespace, or in all of them (``*``). A route says which role it needs (`Role`) and where (`Scope`);
that is all there is to authorization here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum

import attrs
from starlette.requests import Request

VISITOR = "mesh_pilot.visitor"
"""The member of an ASGI scope that has the Visitor who was let in."""

STILL_LET_IN = "mesh_pilot.still_let_in"
"""The member of an ASGI scope that tells, when called, whether the Visitor would still be let in."""

ISSUER = "mesh_pilot.issuer"
"""The member of an ASGI scope that has the KnownIssuer, or None: for the route that tells it."""

EVERYWHERE = "*"
"""All namespaces, and what is in none."""


class Role(StrEnum):
    """The right of a caller, the least first. Each includes those before it."""

    VIEW = "view"
    EDIT = "edit"
    OPERATE = "operate"

    @property
    def rank(self) -> int:
        return [*Role].index(self)


class Scope(StrEnum):
    """The place where a route needs its role."""

    NONE = "none"
    """Nowhere: it is for everybody, also for callers without a role."""
    ANY = "any"
    """In at least one namespace: it is about the mesh, or leaves out what is of other namespaces."""
    NAMESPACE = "namespace"
    """In the namespace that its path names."""
    PROXY = "proxy"
    """In the namespace of the proxy that it names; in all of them where it names several, or none."""
    ALL = "all"
    """In all namespaces."""


@attrs.frozen
class Visitor:
    """The one who asks."""

    name: str
    grants: Mapping[str, Role]
    """The role in each namespace; that of `EVERYWHERE` counts in all. Empty: nothing but what everybody may see."""
    how: str
    """``token``, ``session``, ``login``, ``certificate``, ``socket``, or ``loopback``."""
    digest: bytes = attrs.field(default=b"", repr=False)
    """SHA-256 of the token."""
    subject: str = ""
    """The issuer's own name of a person, which never changes; empty for others."""
    groups: tuple[str, ...] = ()
    until: float = math.inf
    """Seconds since 1970 at which the evidence ends."""

    @property
    def role(self) -> Role | None:
        """The role in all namespaces."""
        return self.grants.get(EVERYWHERE)

    def may(self, role: Role, namespace: str = EVERYWHERE) -> bool:
        """True if the role is held in a namespace; in all of them by default."""
        held = (self.grants.get(namespace), self.grants.get(EVERYWHERE))
        return any(each is not None and each.rank >= role.rank for each in held)

    def may_somewhere(self, role: Role) -> bool:
        """True if the role is held in at least one namespace."""
        return any(each.rank >= role.rank for each in self.grants.values())

    @property
    def shown_subject(self) -> dict[str, str]:
        """The field of the log that tells people of one name apart; none for others."""
        return {"subject": self.subject} if self.subject else {}

    @property
    def shown_roles(self) -> str:
        """The roles for people: ``view in bank, edit in shop``; ``operate`` for one in all namespaces."""
        if not self.grants:
            return "no role"
        return ", ".join(
            f"{role}" if namespace == EVERYWHERE else f"{role} in {namespace}"
            for namespace, role in sorted(self.grants.items())
        )


def largest(several: Iterable[Mapping[str, Role]]) -> Mapping[str, Role]:
    """The largest role of several in each namespace."""
    found: dict[str, Role] = {}
    for grants in several:
        for namespace, role in grants.items():
            found[namespace] = max(role, found.get(namespace, role), key=lambda each: each.rank)
    return found


@attrs.frozen
class KnownIssuer:
    """The issuer and the client by which a program logs somebody in."""

    issuer: str
    """The URL of the OpenID Connect issuer."""
    client_id: str
    """The client that it has for programs."""
    scopes: Sequence[str]
    """Empty: the usual ones that it supports."""


_NAMESPACE_AT: Mapping[str, int] = {"service": 1, "endpoints": 1, "secret": 0, "health": 0, "credential": 0}
"""Where an item's name says the namespace, after its kind."""

_OF_THE_MESH = ("", "mesh", "networks", "rollout", "quarantine")
"""The first parts of names of what belongs to all."""


def visitor_of(request: Request) -> Visitor | None:
    """The one who asks; None without a gate, as between workers."""
    found = request.scope.get(VISITOR)
    return found if isinstance(found, Visitor) else None


def sees(request: Request) -> Callable[[str], bool]:
    """Tells of a namespace whether the one who asks may view it. What has no namespace may be viewed by all."""
    visitor = visitor_of(request)
    if visitor is None or visitor.may(Role.VIEW):
        return lambda _: True
    return lambda namespace: not namespace or visitor.may(Role.VIEW, namespace)


def sees_all(request: Request) -> bool:
    """True if the one who asks may view all namespaces."""
    visitor = visitor_of(request)
    return visitor is None or visitor.may(Role.VIEW)


def sees_name(request: Request) -> Callable[[str], bool]:
    """The same of a thing by its name in texts: ``KIND/NAMESPACE/NAME``, ``service/HOST/NAMESPACE``, ``secret/...``.

    What was made from objects and does not say from which, such as a module, is for those who may view all.
    """
    is_seen, is_for_all = sees(request), sees_all(request)

    def answer(name: str) -> bool:
        first, *rest = name.removeprefix("extension/").split("/")
        place = 0 if first[:1].isupper() else _NAMESPACE_AT.get(first)
        if place is None:
            return is_for_all or first in _OF_THE_MESH
        return len(rest) < 2 or is_seen(rest[place])

    return answer


class Forbidden(Exception):
    """A role that is missing: which, where, and what the one who asks has."""

    def __init__(self, visitor: Visitor, role: Role, namespace: str) -> None:
        where = "all namespaces" if namespace == EVERYWHERE else f"namespace {namespace}"
        super().__init__(f"this needs {role} in {where}, and {visitor.name} has {visitor.shown_roles}")


def needed(request: Request, role: Role, namespace: str = EVERYWHERE) -> None:
    """Raises Forbidden unless the one who asks has a role in a namespace."""
    visitor = visitor_of(request)
    if visitor is not None and not visitor.may(role, namespace):
        raise Forbidden(visitor, role, namespace)
