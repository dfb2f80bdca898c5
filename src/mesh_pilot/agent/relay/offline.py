"""Answers to an Envoy while no control plane can be reached: a pure state machine over what was accepted before.

    wanted = stream.ask(request)           # None: nothing is to be answered
    response = stream.answer(wanted, ...)  # with what the disk has of it

An Envoy that starts gets everything that it asks for. One that comes back with what it has keeps that: nothing on disk
is newer. It gets only what it lacks, such as the endpoints of a cluster that warms.

An Envoy would wait for a name that the disk lacks. One that has nothing of the type waits for it before it takes
traffic: it is told that the resource does not exist. So is one that asks for resources on demand. Any other may have
an older resource in service, and waits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import attrs

from mesh_pilot.agent.relay.messages import KeptResource, Request, XdsProtocol, empty_body, write_delta, write_sotw
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, ROUTE, SECRET, VIRTUAL_HOST

WILDCARD = "*"

ON_DEMAND = frozenset((CLUSTER, VIRTUAL_HOST))
"""Types that are asked for by name when a request needs them."""

WITHOUT_CONTENT = frozenset((ENDPOINT, ROUTE, SECRET))
"""Types of which a resource with only a name is sent where there is none: State of the World cannot say that. It is
valid, or refused (a secret), and in both cases Envoy stops waiting."""


@attrs.frozen
class Lookup:
    """The resources of a type that a client waits for."""

    type_url: str
    names: tuple[str, ...] | None
    """None: all."""
    held: Mapping[str, str] = attrs.field(factory=dict)
    """The versions of those that it has."""
    has_none: bool = True
    """True if the client has nothing of the type."""


@attrs.define
class _Subscription:
    names: set[str] = attrs.field(factory=set)
    nonce: str = ""
    has_named: bool = False
    held: Mapping[str, str] = attrs.field(factory=dict)
    has_none: bool = True


class OfflineStream:
    """One stream. Mutable state: what was asked for, by type, and the number of the last response."""

    def __init__(self, protocol: XdsProtocol) -> None:
        self._protocol = protocol
        self._types: dict[str, _Subscription] = {}
        self._responses = 0

    def __repr__(self) -> str:
        return f"<OfflineStream {self._protocol.name}, {len(self._types)} types, {self._responses} responses>"

    def ask(self, request: Request) -> Lookup | None:
        """Take a request in; what there is to look up for it."""
        return self._ask_sotw(request) if self._protocol is XdsProtocol.SOTW else self._ask_delta(request)

    def _ask_sotw(self, request: Request) -> Lookup | None:
        head = request.head
        is_first = head.type_url not in self._types
        known = self._types.setdefault(head.type_url, _Subscription())
        if is_first:
            known.has_none = not request.version
        elif head.nonce != known.nonce:
            return None  # it was sent before our last response, which it answers next
        names = set(request.names) - {WILDCARD}
        known.has_named = known.has_named or bool(request.names)
        new = [name for name in request.names if name in names and name not in known.names]
        known.names = names
        if not known.has_named or WILDCARD in request.names:
            return Lookup(head.type_url, None) if is_first and known.has_none else None
        return Lookup(head.type_url, tuple(new), has_none=known.has_none) if new else None

    def _ask_delta(self, request: Request) -> Lookup | None:
        head = request.head
        is_first = head.type_url not in self._types
        known = self._types.setdefault(head.type_url, _Subscription())
        if is_first:
            known.held = request.held
            known.has_none = not request.held
        known.names.difference_update(request.unsubscribed)
        names = tuple(name for name in request.names if name != WILDCARD)
        known.names.update(names)
        is_wildcard = WILDCARD in request.names or (is_first and not request.names)
        if is_wildcard and known.has_none:
            return Lookup(head.type_url, None)
        return Lookup(head.type_url, names, known.held, known.has_none) if names else None

    def answer(self, wanted: Lookup, version: str, found: Sequence[KeptResource]) -> bytes | None:
        """The response, given what the disk has of ``wanted``; None for none.

        ``version`` is that of the type in State of the World.
        """
        missing = self._missing(wanted, found)
        if self._protocol is XdsProtocol.SOTW:
            bodies = [answer.body for answer in found]
            if missing:
                version = ""  # of no control plane: it sends everything again
                bodies += [empty_body(wanted.type_url, name) for name in missing]
            if not bodies and wanted.names is not None:
                return None
            return write_sotw(wanted.type_url, version, self._next_nonce(wanted), bodies)
        answers = [answer for answer in found if self._is_of_use(wanted, answer)]
        if not answers and not missing and wanted.names is not None:
            return None
        return write_delta(wanted.type_url, self._next_nonce(wanted), answers, missing)

    @staticmethod
    def _is_of_use(wanted: Lookup, answer: KeptResource) -> bool:
        """True if the client lacks it. It may wait for endpoints that it has: those of a cluster that was replaced."""
        held = wanted.held.get(answer.name)
        return held is None or (wanted.type_url == ENDPOINT and held == answer.version)

    def _missing(self, wanted: Lookup, found: Sequence[KeptResource]) -> Collection[str]:
        """The names of which the client is told that there is no such resource."""
        if wanted.names is None:
            return ()
        if self._protocol is XdsProtocol.SOTW:
            told = wanted.has_none and wanted.type_url in WITHOUT_CONTENT
        else:
            told = wanted.has_none or wanted.type_url in ON_DEMAND
        if not told:
            return ()
        there = {name for answer in found for name in (answer.name, *answer.aliases)}
        return [name for name in wanted.names if name not in there and name not in wanted.held]

    def _next_nonce(self, wanted: Lookup) -> str:
        self._responses += 1
        nonce = self._types[wanted.type_url].nonce = f"offline-{self._responses}"
        return nonce
