"""Objects and fields that a client's reason speaks of: their names, hosts and other texts are in it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice

from mesh_pilot.istio.reading.encode_json import to_json
from mesh_pilot.model.config import Config
from mesh_pilot.model.events import Item
from mesh_pilot.xds.ads.warming import NOT_IN_USE

MIN_TEXT = 4
"""Characters of a string below which finding it in the reason means nothing."""

MAX_TEXTS = 500
"""Texts of one item that are looked for."""

MAX_DEPTH = 20

MAX_FIELDS = 3
"""Fields of one object that are named to people."""

_OF_MACHINES = re.compile(
    "|".join(
        (
            "cannot bind",
            "address already in use",
            "cannot assign requested address",
            "address family not supported",
            "no such (file|device)",
            "unable to (open|read) (the )?file",
            "failed to open",
            r"\bfile .* does not exist",
            "existing path in the system",
            "invalid path",
            "too many open files",
            "file descriptor",
            "permission denied",
            "operation not permitted",
            "operation not supported",
            "(setting|set) socket option",
            "setsockopt",
            "read-only file system",
            "no space left",
            "(cannot allocate|out of) memory",
            NOT_IN_USE,
            "resource (busy|temporarily unavailable)",
        )
    ),
    re.IGNORECASE,
)
"""Words of Envoy and of its system about ports, files, descriptors and memory; and ours about what an Envoy never uses:
what it waits for may be missing to it alone."""

_CONSTANT = re.compile(r"[A-Z][A-Z0-9_]*")


def may_be_the_machine(words: str) -> bool:
    """True if a reason speaks of what a client's machine has or lacks, so that it says nothing about other clients."""
    return _OF_MACHINES.search(words) is not None


def is_named(items: tuple[Item, ...], words: str) -> bool:
    """True if a reason, which should be short, contains a string of an item that is long enough to mean something."""
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


def named_fields(items: tuple[Item, ...], words: str) -> tuple[str, ...]:
    """The fields whose strings a reason contains, the longest first: ``spec.http[0].match[0].uri.regex``.

    A string within another one that is found does not count, nor do the constants of enums.
    """
    found: dict[str, list[str]] = {}
    for item in items:
        for path, text in islice(_fields(item), MAX_TEXTS):
            if MIN_TEXT <= len(text) <= len(words) and not _CONSTANT.fullmatch(text):
                found.setdefault(text.lower(), []).append(path)
    longest: list[str] = []
    for text in sorted(filter(partial(_is_in, words.lower()), found), key=len, reverse=True):
        if not any(text in other for other in longest):
            longest.append(text)
    return tuple(path for text in longest for path in found[text])[:MAX_FIELDS]


def _is_in(words: str, text: str) -> bool:
    """True if a string is in a reason and does not begin or end within a word."""
    return text in words and re.search(rf"(?<!\w){re.escape(text)}(?!\w)", words) is not None


def _fields(item: Item) -> Iterator[tuple[str, str]]:
    """The texts of a spec with their paths. Keys of maps are texts, too, unless they look like names of fields."""
    if not isinstance(item, Config):
        return
    try:
        spec = to_json(item.spec)
    except Exception:
        return  # no verdict should fail because its fields cannot be named
    yield from _leaves(spec, "spec", MAX_DEPTH)


def _leaves(value: object, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif depth and isinstance(value, Mapping):
        for key, inner in value.items():
            if key.isidentifier():
                yield from _leaves(inner, f"{path}.{key}", depth - 1)
            else:
                yield f"{path}[{key}]", key
                yield from _leaves(inner, f"{path}[{key}]", depth - 1)
    elif depth and isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{index}]", depth - 1)
