"""The context of a rule, and shorthands for the problems it reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from mesh_pilot.model.config import Problem, Severity


@attrs.frozen
class Context:
    """The object whose spec is checked."""

    name: str
    namespace: str
    labels: Mapping[str, str] = attrs.field(factory=dict)
    annotations: Mapping[str, str] = attrs.field(factory=dict)


def error(path: str, reason: str) -> Problem:
    return Problem(path, reason)


def warning(path: str, reason: str) -> Problem:
    return Problem(path, reason, Severity.WARNING)


def check(path: str, reason: str) -> Iterator[Problem]:
    """An error if there is a reason."""
    if reason:
        yield Problem(path, reason)
