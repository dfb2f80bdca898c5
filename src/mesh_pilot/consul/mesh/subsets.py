"""Filters of a resolver's subsets as labels of endpoints.

A label is a key of a service's metadata, or a tag ``key=value``. So of Consul's filter language that can be said which
demands these to be equal to something, in parts that ``and`` joins.
"""

from __future__ import annotations

import re
from collections.abc import Container

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|`[^`]*`')
_AND = re.compile(r"\s+and\s+")
_VALUE = r'(?:"(?P<quoted>[^"\\]*)"|`(?P<raw>[^`]*)`|(?P<bare>[\w.:/-]+))'
_META = re.compile(rf'Service\.Meta(?:\.(?P<key>[\w-]+)|\[["`](?P<index>[^"`\\]+)["`]\])\s*==\s*{_VALUE}')
_IN_TAGS = re.compile(rf"{_VALUE}\s+in\s+Service\.Tags")
_TAGS_CONTAIN = re.compile(rf"Service\.Tags\s+contains\s+{_VALUE}")
_TAG = re.compile(r"(?P<key>[^=|]+)[=|](?P<value>.+)")


class FilterError(ValueError):
    """A filter that labels can't say, with the part at fault."""


def labels_of(filter: str, reserved: Container[str]) -> dict[str, str]:
    """The labels that the instances of a filter have. Raises FilterError.

    ``reserved``: the keys that are not labels.
    """
    labels: dict[str, str] = {}
    for part in _conjuncts(filter):
        key, value = _label(part)
        if key in reserved:
            raise FilterError(f"{part!r}: {key!r} is not a label of an endpoint; it has its own meaning")
        if labels.setdefault(key, value) != value:
            raise FilterError(f"{key!r} would have two values at once")
    return labels


def _label(part: str) -> tuple[str, str]:
    if found := _META.fullmatch(part):
        return found["key"] or found["index"], _value(found)
    if found := _IN_TAGS.fullmatch(part) or _TAGS_CONTAIN.fullmatch(part):
        if tag := _TAG.fullmatch(_value(found)):
            return tag["key"].strip(), tag["value"].strip()
        raise FilterError(f"{part!r}: a tag is a label only where it is key=value")
    raise FilterError(f"{part!r}: only metadata and tags that equal something can be said, joined by 'and'")


def _value(found: re.Match[str]) -> str:
    return next(found[name] for name in ("quoted", "raw", "bare") if found[name] is not None)


def _conjuncts(filter: str) -> list[str]:
    """The parts that ``and`` joins at the top; an ``and`` in a string joins nothing."""
    strings: list[str] = []

    def hide(found: re.Match[str]) -> str:
        strings.append(found[0])
        return f"\0{len(strings) - 1}\0"

    hidden = _STRING.sub(hide, filter.replace("\0", " ")).strip()
    while hidden.startswith("(") and hidden.endswith(")") and "(" not in hidden[1:]:
        hidden = hidden[1:-1].strip()
    return [re.sub(r"\0(\d+)\0", lambda m: strings[int(m[1])], part).strip() for part in _AND.split(hidden)]
