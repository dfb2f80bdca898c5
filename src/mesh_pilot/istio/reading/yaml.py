"""YAML (and JSON) text to plain data, as Kubernetes reads it, with a line for every field.

Scalars follow Kubernetes' YAML reader: `yes`, `on` and the like are booleans, timestamps stay strings, `10:30` is a
string, keys become strings. Duplicate keys are errors.

Lines double the cost and are needed only for problems: a document is read without them, and again with them when a line
is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial

import attrs
import yaml

from mesh_pilot.istio.reading.yaml_fast import UncommonYamlError
from mesh_pilot.istio.reading.yaml_marked import MarkedReader, Marks, NumberTooLongError, UnsupportedYamlError
from mesh_pilot.istio.reading.yaml_shapes import read_shaped
from mesh_pilot.model.config import ConfigError, Origin, Problem

_SEGMENT = re.compile(r"\[([^\]]*)\]|([^.\[]+)")
_SEPARATOR = re.compile(r"\n---(?=\s|\Z)")
"""Begins with fixed text, which is searched for ten times as fast as the beginning of a line."""
_MAX_PATH = 2000
"""Characters of a field path that are used to find its line."""

_MAX_FIELDS = 200
"""More members than any message has fields: a larger object is a map, whose keys have one spelling."""

_PREAMBLE = re.compile(r"(?:\s*(?:[#%][^\n]*)?\n?)*")


@attrs.frozen
class Document:
    """One object of a YAML text."""

    data: Mapping[str, object]
    """Plain Python: dict with string keys, list, str, int, float, bool, None."""
    line: int
    """1-based line it starts on."""
    _read_marks: Callable[[], Marks] = attrs.field(repr=False, eq=False)

    @cached_property
    def marks(self) -> Marks:
        """The lines of all its fields."""
        return self._read_marks()

    def line_of(self, path: str) -> int:
        """The 1-based line of a field such as `spec.http[0].route[1].weight`, or of its nearest existing parent."""
        marks = self.marks
        for index, name in _SEGMENT.findall(path[:_MAX_PATH]):
            child = marks.children.get(index or name) or _respelled(marks.children, name)
            if child is None:
                break
            marks = child
        return marks.line


def load(text: str, origin: Origin) -> Iterator[Document | ConfigError]:
    """Every object of a string of one or more YAML documents, in order; items of a `kind: List` as separate objects.

    A document that cannot be read yields (not raises) a ConfigError with the line; the other documents are read.
    """
    for offset, part in split(text):
        yield from load_part(part, offset, origin)


def split(text: str) -> Iterator[tuple[int, str]]:
    """The text cut before every `---` line, so that a broken document costs only itself: the number of lines before
    each part, and the part."""
    start = line = 0
    for match in _SEPARATOR.finditer(text):
        begin = match.start() + 1
        yield line, text[start:begin]
        line += text.count("\n", start, begin)
        start = begin
    yield line, text[start:]


def load_part(text: str, offset: int, origin: Origin) -> Iterator[Document | ConfigError]:
    """`load` for one part of a string that `split` has cut."""
    preamble = _PREAMBLE.match(text)
    if preamble is not None and preamble.end() == len(text):
        return
    try:
        data, line = read_shaped(text)
    except (UncommonYamlError, NumberTooLongError):
        yield from _load_marked(text, offset, origin)
        return
    yield Document(data, offset + line + 1, partial(_marks, text, offset))


def _marks(text: str, offset: int) -> Marks:
    """The lines of a document that was read by the fast path."""
    return MarkedReader(text, offset).documents()[0][1]


def _load_marked(text: str, offset: int, origin: Origin) -> Iterator[Document | ConfigError]:
    """The full path, for errors and uncommon YAML."""
    try:
        documents = _documents(text, offset)
    except UnsupportedYamlError as error:
        yield _error(origin, error.line, f"not valid YAML: {error}")
        return
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = offset + (mark.line + 1 if mark else 1)
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        yield _error(origin, line, f"not valid YAML: {reason}")
        return
    except RecursionError:
        yield _error(origin, offset + 1, "nested too deeply")
        return
    except yaml.reader.ReaderError as error:
        line = offset + text.encode()[: error.position].count(b"\n") + 1
        yield _error(origin, line, f"not valid YAML: {error.reason}")
        return
    for data, marks in documents:
        if data is not None:
            yield from _objects(data, marks, origin)


def _documents(text: str, offset: int) -> list[tuple[object, Marks]]:
    """The documents of a string, with quotes added where libyaml wants more of them than YAML. Raises as `MarkedReader`
    does."""
    for _ in range(MAX_MENDED):
        try:
            return MarkedReader(text, offset).documents()
        except yaml.MarkedYAMLError as error:
            mended = with_quotes(text, error)
            if mended is None:
                raise
            text = mended
    return MarkedReader(text, offset).documents()


def _objects(data: object, marks: Marks, origin: Origin) -> Iterator[Document | ConfigError]:
    if not isinstance(data, dict):
        yield _error(origin, marks.line, "expected an object with apiVersion, kind, metadata and spec")
        return
    items = data.get("items")
    kind = data.get("kind")
    if isinstance(kind, str) and kind.endswith("List") and isinstance(items, list):
        for index, item in enumerate(items):
            yield from _objects(item, marks.children["items"].children[str(index)], origin)
        return
    yield Document(data, marks.line, lambda: marks)


def _error(origin: Origin, line: int, reason: str) -> ConfigError:
    return ConfigError(attrs.evolve(origin, line=line), None, (Problem("", reason, line=line),))


def _respelled(children: Mapping[str, Marks], name: str) -> Marks | None:
    """The child whose key is another spelling (`export_to`) of a camelCase name."""
    if len(children) > _MAX_FIELDS:
        return None
    plain = name.replace("_", "").lower()
    for key, child in children.items():
        if key.replace("_", "").lower() == plain:
            return child
    return None


MAX_MENDED = 64
"""Values quoted in one text; each costs another reading."""

MAX_TEXT = 64 * 1024
"""Characters of a string that is repaired."""

_VALUE = re.compile(r"[^,\[\]{}\s'\"]+(?=\s*[,\]}])")
_ADDRESS = re.compile(r"::[0-9a-fA-F:.]*(?:/[0-9]{1,3})?")


def with_quotes(text: str, error: yaml.MarkedYAMLError) -> str | None:
    """The text with quotes around the value at which libyaml stopped; None if the error has another cause.

    libyaml refuses plain values with colons in flow lists, ``[10.0.0.1, 2001:db8::]``. YAML allows them, Go's reader
    accepts them, and files written for Istio have them.
    """
    if len(text) > MAX_TEXT:
        return None
    if error.problem == "found unexpected ':'" and error.context_mark is not None:
        value = _VALUE.match(text, error.context_mark.index)
    elif error.problem == "did not find expected node content" and error.problem_mark is not None:
        value = _VALUE.match(text, error.problem_mark.index)
        if value is not None and not _ADDRESS.fullmatch(value[0]):
            return None
    else:
        return None
    return f"{text[: value.start()]}'{value[0]}'{text[value.end() :]}" if value is not None else None
