"""Texts of YAML and JSON as foreign objects: lists of any kind are taken apart, and each object knows its lines.

Dumps come as lists of Kubernetes (``items``), as JSON arrays of Consul's API, and as several JSON values one after
another, as shells collect them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

import attrs
import yaml

from mesh_pilot.istio.reading.yaml import Document, load_part, split
from mesh_pilot.istio.reading.yaml_marked import MarkedReader, NumberTooLongError, UnsupportedYamlError
from mesh_pilot.model.config import ConfigError, Origin

LineOf = Callable[[str], int]
"""The 1-based line of a field."""

_DECODER = json.JSONDecoder()
_MAX_DEPTH = 200
"""Values within values; deeper ones are refused."""


@attrs.frozen(eq=False)
class ForeignObject:
    """An object of another system."""

    data: Mapping[str, object]
    place: str
    """The file of the object, or its name in a registry."""
    name: str
    """The name for people: ``Deployment/shop/web``."""
    _line_of: LineOf = attrs.field(default=lambda path: 0, repr=False)
    _prefix: str = ""

    def where_of(self, path: str) -> str:
        """The file and line of a field; of the object, if the path is empty."""
        line = self._line_of(f"{self._prefix}.{path}".strip(".") if self._prefix else path)
        return f"{self.place}:{line}" if line else self.place

    @cached_property
    def where(self) -> str:
        return self.where_of("")


@attrs.frozen
class UnreadPart:
    """A part of a string that is not an object."""

    where: str
    reason: str


def read_text(data: bytes, place: str) -> Iterator[ForeignObject | UnreadPart]:
    """Every object of a file, in order; what can't be read costs itself."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        yield UnreadPart(_at(place, data.count(b"\n", 0, error.start) + 1), "is not UTF-8 text")
        return
    for offset, part in split(text):
        body = part.removeprefix("---").lstrip()
        if body.startswith(("{", "[")):
            values = _json_values(part, offset)
            if values is not None:
                for value, line_of in values:
                    yield from _objects(_encodable(value), place, line_of, "")
                continue
        for found in load_part(part, offset, Origin("", place)):
            if isinstance(found, ConfigError):
                (problem,) = found.problems
                yield UnreadPart(str(found.origin), problem.reason)
            else:
                yield from _objects(_encodable(found.data), place, found.line_of, "", found)


def foreign_object(
    data: Mapping[str, object], place: str, line_of: LineOf = lambda path: 0, prefix: str = ""
) -> ForeignObject:
    """The object, with the name that its system gives it."""
    return ForeignObject(data, place, _name_of(data), line_of, prefix)


def _objects(
    value: object, place: str, line_of: LineOf, prefix: str, whole: Document | None = None
) -> Iterator[ForeignObject | UnreadPart]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _objects(item, place, line_of, f"{prefix}[{index}]")
        return
    if not isinstance(value, Mapping):
        if value is not None:
            yield UnreadPart(_at(place, line_of(prefix)), "is not an object")
        return
    items = value.get("items")
    if isinstance(items, list) and not value.keys() & {"type", "spec", "Kind"}:
        for index, item in enumerate(items):
            yield from _objects(item, place, line_of, f"{prefix}.items[{index}]".lstrip("."))
        return
    if not value:
        return
    yield foreign_object(value, place, line_of, prefix)


def _at(place: str, line: int) -> str:
    return f"{place}:{line}" if line else place


def _json_values(text: str, offset: int) -> list[tuple[object, LineOf]] | None:
    """The JSON values of a string, one after another; None if it is not JSON."""
    found: list[tuple[object, LineOf]] = []
    position = 0
    while True:
        while position < len(text) and (text[position].isspace() or text.startswith("---", position)):
            position += 3 if text.startswith("---", position) else 1
        if position >= len(text):
            return found
        try:
            value, end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            return None
        if _depth_exceeds(value, _MAX_DEPTH):
            return None
        line = offset + text.count("\n", 0, position)
        found.append((value, _lines_of(text[position:end], line)))
        position = end


def _lines_of(text: str, offset: int) -> LineOf:
    """The lines of a JSON value's fields; that of the value alone, where YAML can't read it."""
    marked: list[Document] = []

    def line_of(path: str) -> int:
        if not marked:
            try:
                (_, marks), *_ = MarkedReader(text.replace("\t", " "), offset).documents()
            except (yaml.YAMLError, UnsupportedYamlError, NumberTooLongError, RecursionError, ValueError):
                return offset + 1
            marked.append(Document({}, marks.line, lambda: marks))
        return marked[0].line_of(path)

    return line_of


def _depth_exceeds(value: object, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        deeper: list[object] = []
        for each in level:
            deeper += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        if not deeper:
            return False
        level = deeper
    return True


def _encodable(value: object) -> object:
    """A value without lone surrogates, which no file can hold."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_encodable(each) for each in value]
    if isinstance(value, Mapping):
        return {str(_encodable(str(key))): _encodable(each) for key, each in value.items()}
    return value


def _name_of(data: Mapping[str, object]) -> str:
    """The name of an object of Kubernetes, of Consul or of Kuma for people."""
    metadata = data.get("metadata")
    if isinstance(metadata, Mapping):
        return _joined(data.get("kind"), metadata.get("namespace"), metadata.get("name"))
    if "SourceName" in data and "DestinationName" in data:
        return f"intention/{_text(data['SourceName'])} => {_text(data['DestinationName'])}"
    if isinstance(data.get("Service"), Mapping):
        service: Mapping[str, object] = data["Service"]  # type: ignore[assignment]  # as the line above says
        return _joined("service", service.get("Service"), service.get("ID"))
    if "ServiceName" in data:
        return _joined("service", data.get("ServiceName"), data.get("ServiceID"))
    kind = data.get("type") or data.get("Kind") or data.get("kind")
    mesh = "" if kind in ("Mesh", "Zone") else data.get("mesh")
    return _joined(kind, mesh, data.get("name") or data.get("Name"))


def _joined(*parts: object) -> str:
    return "/".join(filter(None, map(_text, parts)))


def _text(value: object) -> str:
    return value if isinstance(value, str) and value.isprintable() else "" if value is None else repr(value)[:80]
