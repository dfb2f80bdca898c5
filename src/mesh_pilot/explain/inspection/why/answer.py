"""The answer to "why": steps, each with the objects that decide it, and an outcome."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from mesh_pilot.explain.inspection.why.matchers import shown_percentage
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
    """The name of what was chosen."""
    text: str
    """The choice and its reason, in words."""
    details: dict[str, Any] = attrs.Factory(dict)
    """Facts for programs; the members depend on the step."""
    decided_by: list[DecidedBy] = attrs.Factory(list)
    """The objects that decided, the most important first."""


@attrs.frozen
class WhyOutcome:
    """The fate of a share of such requests."""

    share: float
    """In percent."""
    text: str
    """The fate, and, after a colon, its reason."""
    fails: bool
    """True if they are refused, answered with an error, or no endpoint takes them."""
    cluster: str = ""
    """The cluster that they are for."""


@attrs.define
class WhyAnswer:
    """The story of a request."""

    request: WhyRequest = attrs.field(metadata=shown_as(AskedRequest, AskedRequest.of))
    outcome: str = ""
    """In a sentence: the worst of ``outcomes`` first."""
    outcomes: list[WhyOutcome] = attrs.Factory(list)
    result: dict[str, Any] = attrs.Factory(dict)
    """The result for programs: ``kind`` is ``cluster``, ``redirect``, ``response`` or ``closed``; ``clusters``
    by share."""
    steps: list[Step] = attrs.Factory(list)
    nearly: list[Step] = attrs.Factory(list)
    """Routes that the request would have met but for some condition, the nearest first."""
    notes: list[str] = attrs.Factory(list)
    """Assumptions, and what could not be decided."""

    def conclude(self, outcomes: Iterable[WhyOutcome]) -> None:
        """Take other outcomes, and tell them in a sentence."""
        every = list(outcomes)
        self.outcomes = [each for each in every if each.share > 0] or every
        told = sorted(self.outcomes, key=lambda each: (not each.fails, -each.share))
        if len(told) == 1 and told[0].share > 99.99:
            self.outcome = told[0].text
        else:
            self.outcome = "; ".join(f"{shown_percentage(each.share)} {each.text}" for each in told)
        undecided = [each.text for each in self.steps if each.step == "policy" and each.details["admits"] is None]
        if undecided and not all(each.fails for each in told):
            self.outcome += f"; a policy may deny it: {undecided[0]}"

    def add(self, step: str, name: str, text: str, **details: Any) -> Step:
        found = Step(step, name, text, details)
        self.steps.append(found)
        return found
