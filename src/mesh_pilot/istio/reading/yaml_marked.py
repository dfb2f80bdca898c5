"""Plain data and line marks from libyaml's events, in one pass: the full path of `yaml.load`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import yaml

MAX_NODES = 1_000_000
"""Values of a document after its aliases are expanded; more are refused, as an attack or a mistake."""

_BOOLEANS = {
    spelling: value
    for words, value in ((("true", "yes", "on"), True), (("false", "no", "off"), False))
    for word in words
    for spelling in (word, word.capitalize(), word.upper())
}
_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
MEANINGFUL = frozenset((*_BOOLEANS, *_NULLS))
"""Texts without a digit that mean something else than themselves if they have no quotes."""

_DECIMAL = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)")
_BASED = re.compile(r"([-+]?)0(x[0-9a-fA-F_]+|b[01_]+|o?[0-7_]+)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_INFINITY = re.compile(r"([-+]?)\.(?:inf|Inf|INF)")
_NOT_A_NUMBER = frozenset((".nan", ".NaN", ".NAN"))
_NUMERIC_START = frozenset("0123456789-+.")
MAX_NUMBER = 400
"""Characters of a number: the largest float has 309 digits."""

_TAG = "tag:yaml.org,2002:"
_TOO_DEEP = "maximum nesting depth"
"""The part of libyaml's words for a string that is nested too deeply."""


_CHILDLESS: Mapping[str, Marks] = {}


class UnsupportedYamlError(Exception):
    """Well-formed YAML that is not supported."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason)
        self.line = line


class NumberTooLongError(ValueError):
    """A number with more than MAX_NUMBER characters."""


class Marks(NamedTuple):
    """The line of a value, and the marks of its members. A tuple, to be small: there is one for every value."""

    line: int
    """1-based; of a member of an object, the line of its key."""
    children: Mapping[str, Marks] = _CHILDLESS
    """Marks of the children by key, or by index as a string."""
    size: int = 1
    """Values in it, itself included."""


class MarkedReader:
    """Builds data and marks from the events of one text.

    State: the event stream, and of the document at hand the anchors and how many values it has. `offset` is the
    number of lines before the text.
    """

    def __init__(self, text: str, offset: int) -> None:
        self._events: Iterator[yaml.Event] = yaml.parse(text, Loader=yaml.CSafeLoader)
        self._first_line = offset + 1
        self._anchors: dict[str, tuple[object, Marks]] = {}
        self._nodes = 0

    def documents(self) -> list[tuple[object, Marks]]:
        """Every document. Raises UnsupportedYamlError, libyaml's errors, or RecursionError if it nests too deeply."""
        found = []
        try:
            for event in self._events:
                if isinstance(event, yaml.DocumentStartEvent):
                    self._anchors = {}
                    self._nodes = 0
                    found.append(self._node(next(self._events)))
        except yaml.MarkedYAMLError as error:
            if _TOO_DEEP in (error.problem or ""):  # a limit that not every libyaml has
                raise RecursionError from None
            raise
        return found

    def _line(self, event: yaml.Event) -> int:
        return self._first_line + (event.start_mark.line if event.start_mark else 0)

    def _node(self, event: yaml.Event, key_line: int = 0) -> tuple[object, Marks]:
        """The value that starts with `event`; the line of a member is that of its key."""
        line = key_line or self._line(event)
        assert isinstance(event, yaml.NodeEvent)
        anchor = event.anchor
        if type(event) is yaml.ScalarEvent and anchor is None:  # nearly all there is
            self._count(1, line)
            return self._scalar(event, line), Marks(line)
        if isinstance(event, yaml.AliasEvent):
            if anchor is None or anchor not in self._anchors:
                raise UnsupportedYamlError(f"the alias *{anchor} has no anchor", line)
            data, marks = self._anchors[anchor]
            self._count(marks.size, line)
            return data, marks._replace(line=line)
        self._count(1, line)
        if isinstance(event, yaml.ScalarEvent):
            built: tuple[object, Marks] = self._scalar(event, line), Marks(line)
        elif isinstance(event, yaml.SequenceStartEvent):
            built = self._sequence(line)
        else:
            built = self._mapping(line)
        if anchor is not None:
            self._anchors[anchor] = built
        return built

    def _count(self, nodes: int, line: int) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise UnsupportedYamlError(f"more than {MAX_NODES} values once aliases are expanded", line)

    def _sequence(self, line: int) -> tuple[object, Marks]:
        data: list[object] = []
        children: dict[str, Marks] = {}
        size = 1
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            value, marks = self._node(event)
            children[str(len(data))] = marks
            size += marks.size
            data.append(value)
        return data, Marks(line, children, size)

    def _mapping(self, line: int) -> tuple[object, Marks]:
        data: dict[str, object] = {}
        children: dict[str, Marks] = {}
        merged: list[tuple[object, Marks]] = []
        size = 1
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key_line = self._line(event)
            if isinstance(event, yaml.ScalarEvent) and event.value == "<<" and event.implicit[0]:
                merged.append(self._merge_source(key_line))
                size += merged[-1][1].size
                continue
            key, _ = self._node(event, key_line)
            name = key if type(key) is str else key_text(key, key_line)
            if name in data:
                raise UnsupportedYamlError(f'the key "{name}" is given twice', key_line)
            data[name], children[name] = self._node(next(self._events), key_line)
            size += children[name].size
        for source, marks in merged:
            _merge(data, children, source, marks)
        return data, Marks(line, children, size)

    def _merge_source(self, line: int) -> tuple[object, Marks]:
        value, marks = self._node(next(self._events), line)
        if isinstance(value, dict) or (isinstance(value, list) and all(isinstance(item, dict) for item in value)):
            return value, marks
        raise UnsupportedYamlError("<< merges objects only", line)

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> object:
        try:
            return self._meaning(event, line)
        except NumberTooLongError as error:
            raise UnsupportedYamlError(str(error), line) from None

    def _meaning(self, event: yaml.ScalarEvent, line: int) -> object:
        value = event.value
        if event.tag is None:
            return scalar_value(value) if event.implicit[0] else value
        if event.tag == "!":
            return value
        read = scalar_value(value)
        match event.tag.removeprefix(_TAG), read:
            case (("str" | "timestamp" | "binary"), _):
                return value
            case ("bool", bool()) | ("null", None):
                return read
            case "int", int() if not isinstance(read, bool):
                return read
            case "float", int() | float() if not isinstance(read, bool):
                return float(read)
        raise UnsupportedYamlError(f"{value!r} can't be read as {event.tag}", line)


def _merge(data: dict[str, object], children: dict[str, Marks], source: object, marks: Marks) -> None:
    """Add the members of a `<<` source; members that exist already win."""
    if isinstance(source, list):
        for index, item in enumerate(source):
            _merge(data, children, item, marks.children[str(index)])
    elif isinstance(source, dict):
        for name, value in source.items():
            if name not in data:
                data[name] = value
                children[name] = marks.children[name]


def key_text(key: object, line: int) -> str:
    """The name of an object's key."""
    match key:
        case str():
            return key
        case bool():
            return str(key).lower()
        case int() | float():
            return str(key)
    raise UnsupportedYamlError("a key must be a plain value", line)


def scalar_value(value: str) -> object:
    """The value of an unquoted scalar. Raises NumberTooLongError."""
    if not value or value[0] not in _NUMERIC_START:
        if value in _NULLS:
            return None
        return _BOOLEANS.get(value, value)
    if value.count(".") > 1:  # an address: spares it all that follows
        return value
    if len(value) > MAX_NUMBER:
        if _DECIMAL.fullmatch(value) or _BASED.fullmatch(value) or _FLOAT.fullmatch(value):
            raise NumberTooLongError(f"a number of {len(value)} characters, allowed are {MAX_NUMBER}")
        return value
    if _DECIMAL.fullmatch(value):
        return int(value.replace("_", ""))
    if match := _BASED.fullmatch(value):
        sign, digits = match.groups()
        base = {"x": 16, "b": 2}.get(digits[0], 8)
        bare = digits.lstrip("xbo").replace("_", "")
        return int(sign + bare, base) if bare else value
    if _FLOAT.fullmatch(value):
        return float(value)
    if match := _INFINITY.fullmatch(value):
        return float(f"{match[1]}inf")
    return float("nan") if value in _NOT_A_NUMBER else value
