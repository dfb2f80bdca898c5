"""The answer to "why": steps, each with the objects that decide it, and an outcome."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from mesh_pilot.explain.inspection.why.request import WhyRequest
from mesh_pilot.model.json import shown_as


@attrs.frozen
class DecidedBy:
    """An object that decides something, with the place of the field that does."""

    object: str
    field: str
    place: str
    text: str
    """The way in which it decides, in words; may be empty."""


@attrs.frozen
class AskedRequest:
    """The request that is asked about."""

    text: str
    """In a line."""
    method: str
    scheme: str
    host: str
    port: int
    path: str
    address: str
    """The address that the client connects to."""
    headers: Sequence[Sequence[str]]
    inbound: bool
    """True: a request to the proxy's application."""

    @classmethod
    def of(cls, own: WhyRequest) -> AskedRequest:
        to = (own.host, own.port, own.path, own.address)
        return cls(own.text, own.method, own.scheme, *to, [list(pair) for pair in own.headers], own.inbound)


@attrs.define
class Step:
    """One decision."""

    step: str
    """``listener``, ``filter chain``, ``policy``, ``route table``, ``virtual host``, ``route``, ``cluster``,
    ``endpoints``."""
    name: str
    """Of what was chosen."""
    text: str
    """The choice and its reason, in words."""
    details: dict[str, Any] = attrs.Factory(dict)
    """Facts for programs; the members depend on the step."""
    decided_by: list[DecidedBy] = attrs.Factory(list)
    """The objects that decided, the most important first."""


@attrs.define
class WhyAnswer:
    """The story of a request."""

    request: WhyRequest = attrs.field(metadata=shown_as(AskedRequest, AskedRequest.of))
    outcome: str = ""
    """In a sentence."""
    result: dict[str, Any] = attrs.Factory(dict)
    """For programs: ``kind`` is ``cluster``, ``redirect``, ``response`` or ``closed``, with ``clusters`` by share."""
    steps: list[Step] = attrs.Factory(list)
    nearly: list[Step] = attrs.Factory(list)
    """Routes that the request would have met but for some condition, the nearest first."""
    notes: list[str] = attrs.Factory(list)
    """Assumptions, and what could not be decided."""

    def add(self, step: str, name: str, text: str, **details: Any) -> Step:
        found = Step(step, name, text, details)
        self.steps.append(found)
        return found
