"""Differences of two JSON values, field by field: short to read where a resource has thousands of lines.

Members of lists are matched by their names (``name``, else ``domains``, ``host``, ...) if they have any, else in order,
by what is equal.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from enum import Enum
from typing import Any

import attrs

from mesh_pilot.model.json import Json


class _Absent(Enum):
    ABSENT = "absent"


ABSENT = _Absent.ABSENT
"""There is no such field."""

NAMES = ("name", "virtual_hosts", "domains", "host", "filter_chain_match", "locality", "hosts", "number")
"""Fields by which the members of a list are told apart, the best first."""

MATCHED_AT_MOST = 100_000
"""Pairs of equal members that are looked at to match two lists: their number grows with the square of the length."""

LABEL_LENGTH = 60
"""The characters of a member's name in a path."""


@attrs.frozen
class FieldDifference:
    """A field of which two values differ."""

    path: str
    """``virtual_hosts[reviews:9080].routes[0].route.cluster``; empty: all of it."""
    indexed: str
    """The same with the positions of members in place of their names: in the value after, or before if it is gone."""
    before: Json | _Absent
    after: Json | _Absent

    @property
    def sign(self) -> str:
        return "+" if self.before is ABSENT else "-" if self.after is ABSENT else "~"

    def as_json(self) -> dict[str, Json]:
        sides = {"before": self.before, "after": self.after}
        return {"path": self.path, **{name: value for name, value in sides.items() if value is not ABSENT}}


def differences(before: Json | _Absent, after: Json | _Absent) -> Iterator[FieldDifference]:
    """The fields that differ, in the order of the values."""
    return _differences(before, after, "", "")


def _differences(before: Any, after: Any, path: str, indexed: str) -> Iterator[FieldDifference]:
    if before == after and (before is after or _text(before) == _text(after)):
        return  # equal in Python are 1 and true, too
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in dict.fromkeys((*before, *after)):
            below, at = (f"{parent}.{name}" if parent else str(name) for parent in (path, indexed))
            yield from _differences(before.get(name, ABSENT), after.get(name, ABSENT), below, at)
    elif isinstance(before, list) and isinstance(after, list):
        labels = _labels(before, after)
        if labels is not None:
            yield from _of_named(*labels, path, indexed)
        else:
            yield from _of_lists(before, after, path, indexed)
    else:
        yield FieldDifference(path, indexed, before, after)


def _of_lists(before: Sequence[Any], after: Sequence[Any], path: str, indexed: str) -> Iterator[FieldDifference]:
    olds, news = [*map(_text, before)], [*map(_text, after)]
    for step, i, j, k, m in _steps(olds, news):
        if step == "equal":
            continue
        for offset in range(max(j - i, m - k)):
            old = before[i + offset] if i + offset < j else ABSENT
            new = after[k + offset] if k + offset < m else ABSENT
            at = f"[{k + offset if new is not ABSENT else i + offset}]"
            yield from _differences(old, new, f"{path}{at}", f"{indexed}{at}")


def _steps(olds: Sequence[str], news: Sequence[str]) -> Sequence[tuple[str, int, int, int, int]]:
    """The steps from one list to another; place by place where too many members are alike to be matched."""
    before, after = Counter(olds), Counter(news)
    if sum(count * after[text] for text, count in before.items()) > MATCHED_AT_MOST:
        common = min(len(olds), len(news))
        places = [("equal" if olds[i] == news[i] else "replace", i, i + 1, i, i + 1) for i in range(common)]
        return [*places, ("replace", common, len(olds), common, len(news))]
    return SequenceMatcher(None, olds, news, autojunk=False).get_opcodes()


def _of_named(
    before: Mapping[str, Any], after: Mapping[str, Any], path: str, indexed: str
) -> Iterator[FieldDifference]:
    olds, news = [*before], [*after]
    position = {label: number for labels in (olds, news) for number, label in enumerate(labels)}
    for label in dict.fromkeys((*olds, *news)):
        old, new = before.get(label, ABSENT), after.get(label, ABSENT)
        yield from _differences(old, new, f"{path}[{label}]", f"{indexed}[{position[label]}]")
    common = [label for label in olds if label in after]
    if common != [label for label in news if label in before]:
        yield FieldDifference(f"{path} (order)", indexed, olds, news)


def _labels(before: Sequence[Any], after: Sequence[Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """The members of both lists by name; None if they have no names that tell them apart."""
    for name in NAMES:
        found = []
        for members in (before, after):
            if not all(isinstance(member, Mapping) and name in member for member in members):
                break
            labelled = {_label(member[name]): member for member in members}
            if len(labelled) < len(members):
                break
            found.append(labelled)
        if len(found) == 2:
            return found[0], found[1]
    return None


def _label(value: Json) -> str:
    if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
        value = value[0]
    text = value if isinstance(value, str) else _text(value)
    return text if len(text) <= LABEL_LENGTH else f"{text[: LABEL_LENGTH - 1]}…"


def _text(value: Json) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
