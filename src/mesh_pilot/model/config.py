"""Configs: one object of the Istio API, where it came from, and what may be wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

import attrs

EPOCH = datetime.fromtimestamp(0, UTC)


class ConfigKey(NamedTuple):
    """The key of a config: kind (``VirtualService``), namespace and name."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}"


@attrs.frozen
class Origin:
    """The location of a config for people: ``demo/reviews.yaml:12`` or ``consul mesh-pilot/config/...``."""

    source: str
    """Name of the source that sent it, such as ``files``."""
    location: str = ""
    """File path or registry key."""
    line: int = 0
    """1-based line of the object in a file; 0 where there are no lines."""
    digest: bytes = attrs.field(default=b"", eq=False, repr=False)
    """That of the part of a file that holds this object alone, and of the code that reads it; empty for others."""

    def __str__(self) -> str:
        return f"{self.location or self.source}:{self.line}" if self.line else (self.location or self.source)


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"


LONGEST_TEXT = 2000
"""Characters of a string in a Problem."""

SHADOWED = "is already defined at"
"""In the reason of a Problem: the object is good, but another one of its name is in force."""


def _cut(text: str) -> str:
    """A string that quotes what somebody wrote, which may be of any size, as logs and pages take it.

    What is wrong may be said before the quotation or after it.
    """
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[: half - 3]}...{text[-half:]}"


@attrs.frozen
class Problem:
    """One thing wrong with an object: the field's path, why, and how bad."""

    path: str = attrs.field(converter=_cut)
    """Such as ``spec.http[0].route[1].weight``; empty for the object as a whole."""
    reason: str = attrs.field(converter=_cut)
    severity: Severity = Severity.ERROR
    line: int = 0
    """1-based line of the field where the source has lines, else 0."""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


def worst_first(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Errors before warnings, else in the order in which they were found."""
    return tuple(sorted(problems, key=lambda problem: problem.severity is Severity.WARNING))


class ConfigError(Exception):
    """An object that is refused: its location and all its problems."""

    def __init__(self, origin: Origin, key: ConfigKey | None, problems: tuple[Problem, ...]) -> None:
        self.origin = origin
        self.key = key
        self.problems = problems
        what = f"{key}: " if key else ""
        super().__init__(f"{origin}: {what}" + "; ".join(map(str, problems)))

    @property
    def lines(self) -> tuple[str, ...]:
        """The errors without the warnings, each with its own line of the file."""
        what = f"{self.key}: " if self.key else ""
        errors = [problem for problem in self.problems if problem.severity is Severity.ERROR]
        places = [attrs.evolve(self.origin, line=problem.line or self.origin.line) for problem in errors]
        return tuple(f"{place}: {what}{problem}" for place, problem in zip(places, errors, strict=True))


@attrs.frozen(eq=False)
class Config:
    """One object of the Istio API, decoded and valid. Its ``spec`` is never changed afterwards.

    Two configs are equal if their contents are, regardless of where they were read.
    """

    key: ConfigKey
    spec: Any
    """The betterproto message of the kind (an Istio ``VirtualService``, ...)."""
    created: datetime = EPOCH
    """``metadata.creationTimestamp``; orders configs of a kind, oldest first."""
    labels: Mapping[str, str] = attrs.field(factory=dict)
    annotations: Mapping[str, str] = attrs.field(factory=dict)
    conditions: Mapping[str, str] = MappingProxyType({})
    """The status of each of ``status.conditions`` by its type, such as ``Healthy: "False"``; WorkloadEntries only."""
    api_version: str = ""
    """As written, such as ``networking.istio.io/v1alpha3``."""
    origin: Origin = Origin("memory")
    warnings: tuple[Problem, ...] = ()
    made_from: tuple[ConfigKey, ...] = ()
    """The objects of another API that it is made from, such as an HTTPRoute; empty if users wrote it."""

    @property
    def namespace(self) -> str:
        return self.key.namespace

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def order(self) -> tuple[datetime, str, str]:
        """Sort key among configs of a kind: oldest first, then by name and namespace, as Istio does."""
        return (self.created, self.key.name, self.key.namespace)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Config):
            return NotImplemented
        return (
            self.key == other.key
            and self.created == other.created
            and self.labels == other.labels
            and self.annotations == other.annotations
            and self.conditions == other.conditions
            and bool(self.spec == other.spec)
        )

    def __hash__(self) -> int:
        return hash(self.key)
