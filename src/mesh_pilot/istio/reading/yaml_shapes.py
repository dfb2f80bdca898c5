"""YAML documents of a known shape: their data without reading YAML again.

The objects of a large mesh are written by programs: thousands of documents differ in nothing but names, addresses and
numbers. Cut at its words, such a document is a *shape* with gaps for some of them. What a word in a gap means was found
out once, with a marker in each; of every further document the words are put where the markers came out.

That is right for words that mean themselves wherever a whole value may stand, with quotes or without, and that end
nothing and begin nothing: those of `_TEXT`, which every reader takes for strings, and those of `_NUMBER`. A gap is
where a marker came out as a whole value. In a key, a longer string or a comment it does not: there the shape has the
word itself, as it has all words of other forms. So another key, boolean, tag, line or indentation makes another shape,
and nothing of YAML is decided here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter

import attrs
import msgspec

from mesh_pilot.istio.reading.yaml_fast import UncommonYamlError, read_document
from mesh_pilot.istio.reading.yaml_marked import MEANINGFUL, NumberTooLongError

MAX_TEXT = 16 * 1024
"""Characters of a document that may have a shape."""

MAX_SHAPES = 8
"""Shapes that differ in words only, such as a protocol."""

MAX_OUTLINES = 256

_IN_WORDS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./-"
_WORD = re.compile(r"([A-Za-z0-9_./-]+)")
_ONLY_WORDS = bytes(byte if byte in _IN_WORDS else 0x20 for byte in range(256))
_NO_WORDS = bytes(0x20 if byte in _IN_WORDS else byte | 0x80 for byte in range(256))
"""Translations of ASCII: what is between words becomes spaces; words become spaces, and nothing else is one."""

_TEXT = r"(?:[a-z](?:[a-z0-9.-]{0,250}[a-z0-9])?|[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3})"
_NUMBER = "[1-9][0-9]{0,8}"
_TEXTS = re.compile(f"(?:{_TEXT}(?: {_TEXT})*)?")
_NUMBERS = re.compile(f"(?:{_NUMBER}(?: {_NUMBER})*)?")
_TEXT_MARKER, _NUMBER_MARKER = "zz-gap-", "97310"
"""How markers begin; the place of the word follows. Where a document has one of these nothing is marked."""

_Words = Callable[[Sequence[str]], tuple[str, ...]]
"""Some of the words of a document."""


@attrs.frozen
class _Shape:
    fixed: _Words
    values: tuple[str, ...]
    """The words that are the same in each document, and which these are."""
    texts: _Words
    numbers: _Words
    """The words in gaps for strings, and for numbers."""
    gaps: _Words
    """All words in gaps, in the order of the data."""
    data: str
    """The data as JSON, with `%s` for each gap."""
    line: int
    """As of `read_document`."""

    def read(self, words: Sequence[str]) -> dict[str, object] | None:
        """The data of a document with these words; None if it has another shape."""
        if self.fixed(words) != self.values:
            return None
        texts = self.texts(words)
        if not _TEXTS.fullmatch(" ".join(texts)) or not MEANINGFUL.isdisjoint(texts):
            return None
        if not _NUMBERS.fullmatch(" ".join(self.numbers(words))):
            return None
        found: dict[str, object] = msgspec.json.decode(self.data % self.gaps(words))
        return found


@attrs.define
class _Outline:
    """Documents that are the same between their words.

    State: `seen`, if there was one, and the shapes of those that came again.
    """

    seen: bool = False
    shapes: tuple[_Shape, ...] = ()


@lru_cache(maxsize=MAX_OUTLINES)
def _outline(between: bytes) -> _Outline:
    return _Outline()


def _between(encoded: bytes) -> bytes:
    """Everything between the words, with a space for each word; only fit to be compared."""
    # A regular expression takes five times as long.
    return b" ".join((b"\n%b\n" % encoded).translate(_NO_WORDS).split())


def read_shaped(text: str) -> tuple[dict[str, object], int]:
    """The same as `read_document`, which only reads what has no known shape."""
    if len(text) > MAX_TEXT or not text.isascii():
        return read_document(text)
    encoded = text.encode()
    outline, words = _outline(_between(encoded)), encoded.translate(_ONLY_WORDS).decode().split()
    for shape in outline.shapes:
        data = shape.read(words)
        if data is not None:
            return data, shape.line
    found = read_document(text)
    if not outline.seen:
        outline.seen = True  # most shapes do not come again, and to learn one takes as long as to read three texts
    elif len(outline.shapes) < MAX_SHAPES:
        outline.shapes += _learned(text, found)
    return found


def _learned(text: str, found: tuple[dict[str, object], int]) -> tuple[_Shape, ...]:
    """The shape of a document that was read; none if markers cannot tell it."""
    parts = _WORD.split(text)
    words = parts[1::2]
    if any(marker in word for word in words for marker in (_TEXT_MARKER, _NUMBER_MARKER)):
        return ()
    markers = {place: marker for place, word in enumerate(words) if (marker := _marker(place, word))}
    try:
        _, order = _marked(parts, markers)
        data, again = _marked(parts, {place: markers[place] for place in order})
        shape = _shape(words, order, data, found[1])
        is_right = again == order and repr(shape.read(words)) == repr(found[0])
    except (UncommonYamlError, NumberTooLongError, ValueError):
        return ()
    return (shape,) if is_right else ()


def _marker(place: int, word: str) -> str:
    """A word of the same form; empty: it can be in no gap."""
    if word not in MEANINGFUL and _TEXTS.fullmatch(word):
        return f"{_TEXT_MARKER}{place}"
    return f"{_NUMBER_MARKER}{place:04}" if _NUMBERS.fullmatch(word) else ""


def _marked(parts: Sequence[str], markers: Mapping[int, str]) -> tuple[str, list[int]]:
    """The data of a document with markers in the place of some words, as JSON with `%s` where one is a whole value; and
    the places of these in their order."""
    marked = list(parts)
    for place, marker in markers.items():
        marked[2 * place + 1] = marker
    order: list[int] = []
    places: dict[object, int] = {}
    for place, marker in markers.items():
        places[int(marker) if marker.isdecimal() else marker] = place

    def written(value: object) -> str:
        if type(value) is dict:
            return f"{{{','.join(f'{_json(key)}:{written(item)}' for key, item in value.items())}}}"
        if type(value) is list:
            return f"[{','.join(map(written, value))}]"
        if type(value) in (str, int) and value in places:
            order.append(places[value])
            return '"%s"' if type(value) is str else "%s"
        return _json(value)

    return written(read_document("".join(marked))[0]), order


def _json(value: object) -> str:
    return json.dumps(value).replace("%", "%%")


def _shape(words: Sequence[str], order: Sequence[int], data: str, line: int) -> _Shape:
    fixed = _words([place for place in range(len(words)) if place not in order])
    numbers = [place for place in order if words[place].isdecimal()]
    texts = [place for place in order if place not in numbers]
    return _Shape(fixed, fixed(words), _words(texts), _words(numbers), _words(order), data, line)


def _words(places: Collection[int]) -> _Words:
    if len(places) > 1:
        return itemgetter(*places)
    return lambda words: tuple(words[place] for place in places)
