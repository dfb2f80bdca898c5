"""The JSON patch (RFC 6902) that makes one JSON value of another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Operation = dict[str, Any]


def difference(before: Any, after: Any, path: str = "") -> Iterator[Operation]:
    """The operations, in order. Nothing where both are equal."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key, old in before.items():
            if key not in after:
                yield {"op": "remove", "path": f"{path}/{escaped(key)}"}
            else:
                yield from difference(old, after[key], f"{path}/{escaped(key)}")
        for key, new in after.items():
            if key not in before:
                yield {"op": "add", "path": f"{path}/{escaped(key)}", "value": new}
    elif isinstance(before, list) and isinstance(after, list):
        yield from _of_lists(before, after, path)
    elif before != after or isinstance(before, bool) != isinstance(after, bool):
        yield {"op": "replace", "path": path, "value": after}


def escaped(key: str) -> str:
    """A key as a part of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def _of_lists(before: list[Any], after: list[Any], path: str) -> Iterator[Operation]:
    """Entries that have the same name are compared; where their order changes, the list is replaced."""
    names_before, names_after = list(map(_name, before)), list(map(_name, after))
    if names_before == names_after:
        start = 0
    elif names_before and names_after[-len(names_before) :] == names_before:
        start = len(after) - len(before)  # what is new comes first
    elif names_after[: len(names_before)] == names_before:
        start = 0
    else:
        yield {"op": "replace", "path": path, "value": after}
        return
    for index, old in enumerate(before):
        yield from difference(old, after[start + index], f"{path}/{index}")
    for index, new in enumerate(after[:start]):
        yield {"op": "add", "path": f"{path}/{index}", "value": new}
    for new in after[start + len(before) :]:
        yield {"op": "add", "path": f"{path}/-", "value": new}


def _name(entry: Any) -> object:
    """The identity of an entry of a list: its name, or its whole value."""
    if isinstance(entry, Mapping):
        return ("name", entry["name"]) if isinstance(entry.get("name"), str) else sorted(map(repr, entry.items()))
    return ("value", repr(entry))
