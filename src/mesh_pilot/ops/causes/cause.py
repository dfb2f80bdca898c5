"""A cause: something that is wrong now, told once however many things it touches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum

import attrs

from mesh_pilot.model.json import SPREAD
from mesh_pilot.ops.values.assessments import Assessment, Gravity

NAMED = 5
"""Names of what a cause touches."""

MOST_WORDS = 600
"""Characters of a reason."""


class CauseKind(StrEnum):
    """The sort of thing that a cause is about."""

    OBJECT = "object"
    PROXIES = "proxies"
    SOURCE = "source"
    SERVICE = "service"
    CERTIFICATE = "certificate"
    PLANE = "plane"


@attrs.frozen
class CauseSubject:
    """The thing that a cause is about; of several, the first."""

    kind: str
    """The kind of an object; else `Proxy`, `Source`, `Service`, `Certificate` or `Plane`."""
    namespace: str
    name: str


@attrs.frozen
class CauseReach:
    """The things that a cause touches."""

    count: int
    of: int | None
    """The number of all; null if it is not known."""
    what: str
    """`proxies`, `objects`, `services`, `endpoints`"""
    names: Sequence[str]
    """The first of them."""


@attrs.frozen(kw_only=True)
class Cause:
    """Something that is wrong now."""

    kind: CauseKind
    subject: CauseSubject
    assessment: Assessment = attrs.field(metadata=SPREAD)
    touches: CauseReach
    where: str = ""
    """File and line, or another place."""
    command: str = ""
    """The command that fixes it, or shows more."""
    more: str = ""
    """Further words, such as what is served instead."""

    @property
    def order(self) -> tuple[object, ...]:
        """The worst and the widest first; proxies count before all others."""
        is_of_proxies = self.touches.what == "proxies" and self.touches.count > 0
        return -self.assessment.severity.rank, not is_of_proxies, -self.touches.count, self.kind, self.subject.name


def reach(what: str, names: Iterable[str], of: int | None = None) -> CauseReach:
    """The reach of a cause, from the names of all that it touches."""
    found = sorted(set(names))
    return CauseReach(len(found), of, what, found[:NAMED])


def assessed(state: str, severity: Gravity, why: str, since: datetime | None = None) -> Assessment:
    """An assessment whose reason is cut."""
    return Assessment(state, severity, why if len(why) <= MOST_WORDS else why[:MOST_WORDS] + "...", since)


def together(causes: Iterable[Cause]) -> list[Cause]:
    """The causes, those of the same state and reason as one: about the first, touching all that they are about.

    Only causes about objects that touch nothing else are joined: forty files with one mistake are one line.
    """
    found: dict[object, list[Cause]] = {}
    for number, each in enumerate(causes):
        is_joined = each.kind is CauseKind.OBJECT and each.touches.what == "objects"
        assessment = each.assessment
        key: object = (each.subject.kind, assessment.state, assessment.why) if is_joined else number
        found.setdefault(key, []).append(each)
    return [group[0] if len(group) == 1 else _joined(group) for group in found.values()]


def _joined(group: Sequence[Cause]) -> Cause:
    first = group[0]
    times = [each.assessment.since for each in group if each.assessment.since is not None]
    names = [name for each in group for name in each.touches.names]
    return attrs.evolve(
        first,
        assessment=attrs.evolve(first.assessment, since=min(times, default=None)),
        touches=reach("objects", names, first.touches.of),
    )
