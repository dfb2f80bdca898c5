"""Plain data from libyaml's events, without lines: the fast path of `yaml_marked`, with the same results.

Anchors, tags, merges and errors are left to `yaml_marked`, which also knows the line of everything.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import cast

from yaml.cyaml import CParser  # type: ignore[attr-defined]  # missing from its stub
from yaml.events import (
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    StreamEndEvent,
)

from mesh_pilot.istio.reading.yaml_marked import MAX_NODES, key_text, scalar_value

MAX_DEPTH = 100
"""The maximum nesting of values on the fast path."""

_Next = Callable[[], Event]


class UncommonYamlError(Exception):
    """The text has to be read by `yaml_marked`."""


def read_documents(text: str) -> list[tuple[dict[str, object], int]]:
    """The data of each document, an object, and the 0-based line on which it starts.

    Raises UncommonYamlError if `yaml_marked` has to read it (also for a list of objects, whose items have lines of
    their own), or libyaml's errors.
    """
    if "&" in text or "!" in text or _may_have_too_many(text):
        raise UncommonYamlError  # there may be anchors in it, or tags, or too many values
    following = cast(_Next, CParser(text).get_event)
    found = []
    while not isinstance(event := following(), StreamEndEvent):
        if isinstance(event, DocumentStartEvent):
            root = following()
            data = _node(root, following, 0)
            if not isinstance(data, dict) or "items" in data:
                raise UncommonYamlError
            found.append((data, root.start_mark.line if root.start_mark else 0))
    return found


def _may_have_too_many(text: str) -> bool:
    """True if there may be more than MAX_NODES values: each but the first follows one of a few characters."""
    return len(text) > MAX_NODES and sum(map(text.count, "\n,:[{-?")) >= MAX_NODES


def _node(event: Event, following: _Next, depth: int) -> object:
    """The value that starts with `event`."""
    if isinstance(event, ScalarEvent):
        return _plain(event.value) if event.implicit[0] else event.value
    if not isinstance(event, CollectionStartEvent) or depth > MAX_DEPTH:
        raise UncommonYamlError
    if isinstance(event, MappingStartEvent):
        return _mapping(following, depth + 1)
    items = []
    while not isinstance(event := following(), SequenceEndEvent):
        items.append(_node(event, following, depth + 1))
    return items


@lru_cache(maxsize=1024)
def _key(written: str) -> str:
    value = scalar_value(written)
    if value is None or written == "<<":
        raise UncommonYamlError
    return key_text(value, 0)


_plain = lru_cache(maxsize=4096)(scalar_value)
"""Cached, so that equal values are one object: most occur many times."""


def _mapping(following: _Next, depth: int) -> dict[str, object]:
    data: dict[str, object] = {}
    while isinstance(event := following(), ScalarEvent):
        key = event.value
        if event.implicit[0]:
            key = _key(key)
        if key in data:
            raise UncommonYamlError
        event = following()
        if isinstance(event, ScalarEvent):  # nearly all are
            data[key] = _plain(event.value) if event.implicit[0] else event.value
        else:
            data[key] = _node(event, following, depth)
    if not isinstance(event, MappingEndEvent):
        raise UncommonYamlError
    return data
