"""Rules of validation as tables: what a field may be, what it may not, and what is then said."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

import attrs

from mesh_pilot.istio.kinds import KINDS
from mesh_pilot.istio.reading.decode import decode
from mesh_pilot.model.config import ConfigError, Origin, Problem, Severity

ABSENT = object()
"""As a value: the field is not there."""

OLD = "is deprecated"
IDLE = "has no effect"
"""How the reason begins for fields that nothing carries out, right or wrong."""

_PART = re.compile(r"\[(\d+)\]|([^.\[]+)")


@attrs.frozen
class Rule:
    """A field of a spec with a value that is fine and one that is not."""

    path: str
    """From the spec: `http[0].timeout`; empty for the spec itself."""
    good: Any
    bad: Any
    said: str
    """Part of the reason that is given for the bad value."""
    at: str | None = None
    """Where the problem is found, from the spec; else at the field."""
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        bad = "absent" if self.bad is ABSENT else str(self.bad)
        return f"{self.path or 'spec'}={bad[:60]}"


def warns(path: str, good: Any, bad: Any, said: str, at: str | None = None) -> Rule:
    """A rule whose breach is only a warning."""
    return Rule(path, good, bad, said, at, Severity.WARNING)


def holds(kind: str, base: Mapping[str, Any], rule: Rule, name: str = "x") -> None:
    """Asserts that the base with the good value is faultless, and with the bad one has the problem that is said."""
    good = problems_of(kind, changed(base, rule.path, rule.good), name)
    assert [p for p in good if p.reason.partition(":")[0] not in (IDLE, OLD)] == []
    found = problems_of(kind, changed(base, rule.path, rule.bad), name)
    path = f"spec.{rule.at if rule.at is not None else rule.path}".removesuffix(".")
    assert any(p.path == path and rule.said in p.reason and p.severity is rule.severity for p in found), (path, found)


def problems_of(kind: str, spec: object, name: str = "x") -> list[Problem]:
    """Everything that is said of an object with this spec, in the namespace `shop`."""
    document = {
        "apiVersion": KINDS[kind].api_versions[-1],
        "kind": KINDS[kind].written,
        "metadata": {"name": name, "namespace": "shop"},
        "spec": spec,
    }
    try:
        return list(decode(document, origin=Origin("test")).warnings)
    except ConfigError as error:
        return list(error.problems)


def changed(base: Mapping[str, Any], path: str, value: Any) -> Any:
    """A copy of the base with a field changed; what leads to it is made as needed."""
    if not path:
        return value
    result = copy.deepcopy(dict(base))
    parts = [int(index) if index else name for index, name in _PART.findall(path)]
    here: Any = result
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        if following is None:
            _set(here, part, value)
            break
        inner: Any = [] if isinstance(following, int) else {}
        if isinstance(part, int) and len(here) <= part:
            here.append(inner)
        elif isinstance(part, str):
            inner = here.setdefault(part, inner)
        here = here[part]
    return result


def _set(here: Any, part: int | str, value: Any) -> None:
    if value is ABSENT:
        if isinstance(part, int) or part in here:
            del here[part]
    elif isinstance(part, int) and len(here) <= part:
        here.append(value)
    else:
        here[part] = value
