"""Which suspects a client's reason speaks of: their names, hosts and other texts in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from itertools import islice

from mesh_pilot.model.config import Config
from mesh_pilot.model.events import Item

MIN_TEXT = 4
"""Characters of a text below which finding it in the reason means nothing."""

MAX_TEXTS = 500
"""Texts of one item that are looked for."""

MAX_DEPTH = 20


def is_named(items: tuple[Item, ...], words: str) -> bool:
    """True if a reason, which should be short, contains a text of an item that is long enough to mean something."""
    lower = words.lower()
    return any(
        text.lower() in lower for item in items for text in islice(_texts(item), MAX_TEXTS) if len(text) >= MIN_TEXT
    )


def _texts(item: Item) -> Iterator[str]:
    if isinstance(item, Config):
        yield item.key.name
        yield from _inside(item.spec, MAX_DEPTH)


def _inside(value: object, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth == 0:
        return
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _inside(key, depth - 1)
            yield from _inside(inner, depth - 1)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _inside(inner, depth - 1)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _inside(getattr(value, field.name), depth - 1)
