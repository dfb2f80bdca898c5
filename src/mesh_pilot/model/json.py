"""JSON as a type, and attrs values as JSON: a class is written, and described, by its fields.

One declaration makes an answer and its schema, so that the two cannot differ. The writer of a class is made once, from
the types of its fields: an answer may have a hundred thousand rows, and to ask every value what it is costs more than
the dict that it becomes. cattrs writes values but does not describe them; pydantic does both, for no classes but
pydantic's, and costs every command that imports it a tenth of a second. A field's documentation is the docstring below
it, as elsewhere in this code; it is read from the source when a description is asked for, and never else.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from datetime import datetime
from enum import Enum
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import attrs

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | int | float | bool | None"

_NAME, _IF_GIVEN, _SPREAD, _AS = "json name", "json if given", "json spread", "json as"

IF_GIVEN = {_IF_GIVEN: True}
"""Metadata of a field that is left out if it has no value."""

SPREAD = {_SPREAD: True}
"""Metadata of a field whose members are members of the object itself; None has none."""

REFERENCES = "#/components/schemas/"


def called(name: str) -> Mapping[str, str]:
    """Metadata of a field that has another name in JSON."""
    return {_NAME: name}


def shown_as(kind: Any, convert: Callable[[Any], Any]) -> Mapping[str, Any]:
    """Metadata of a field that is converted to another type before it is written."""
    return {_AS: (kind, convert)}


@attrs.frozen
class JsonForm:
    """A type in JSON."""

    write: Callable[[Any], Json]
    schema: Mapping[str, Json]
    classes: tuple[Any, ...] = ()
    """The attrs classes that the schema refers to."""


def as_json(value: Any) -> Json:
    """A value of an attrs class."""
    return form_of(value.__class__).write(value)


@cache
def form_of(kind: Any) -> JsonForm:
    """The form of a type: an attrs class, what JSON has, or a container or union of such."""
    # The most special first: a str is a Sequence, too, and so is an enum of strings. What no case knows (Any, Json) is
    # JSON already, and only a field that is said to be any object at all is looked at when it is written.
    if kind in _PLAIN:
        return JsonForm(_same, {"type": _PLAIN[kind]})
    if attrs.has(get_origin(kind) or kind):
        return JsonForm(_Writer(kind), {"$ref": REFERENCES + name_of(kind)}, (kind,))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return JsonForm(lambda value: value.value, {"type": "string", "enum": [each.value for each in kind]})
    if kind is datetime:
        return JsonForm(datetime.isoformat, {"type": "string", "format": "date-time"})
    origin, args = get_origin(kind), get_args(kind)
    write: Callable[[Any], Json]
    if origin in (Union, UnionType):
        first = form_of(next(each for each in args if each is not NoneType))
        schema: Mapping[str, Json] = {"anyOf": [first.schema, {"type": "null"}]}
        return JsonForm(lambda value: None if value is None else first.write(value), schema, first.classes)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        entry = form_of(args[1])
        schema = {"type": "object", "additionalProperties": entry.schema}
        is_plain = entry.write is _same
        write = dict if is_plain else (lambda value: {k: entry.write(v) for k, v in value.items()})
        return JsonForm(write, schema, entry.classes)
    if isinstance(origin, type) and issubclass(origin, (Sequence, Set)):
        entry = form_of(args[0])
        write = list if entry.write is _same else (lambda value: [entry.write(each) for each in value])
        return JsonForm(write, {"type": "array", "items": entry.schema}, entry.classes)
    return JsonForm(as_json if kind is object else _same, {})


def _same(value: Any) -> Json:
    found: Json = value
    return found


_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}


class _Writer:
    """The writer of a class. Its fields are looked at when a value is written: classes may contain themselves."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._fields: list[tuple[str, str, Callable[[Any], Json], bool, bool]] | None = None

    def __call__(self, value: Any) -> Json:
        if self._fields is None:
            self._fields = [
                (field.name, name, form.write, _IF_GIVEN in field.metadata, _SPREAD in field.metadata)
                for field, name, form in _members(self._kind)
            ]
        found: dict[str, Json] = {}
        for attribute, name, write, if_given, is_spread in self._fields:
            own = getattr(value, attribute)
            if is_spread:
                found.update(write(own) or ())  # type: ignore[arg-type]  # an object, as the class says
            elif own is not None or not if_given:
                found[name] = own if write is _same else write(own)
        return found


def _members(kind: Any) -> Iterator[tuple[Any, str, JsonForm]]:
    """The fields of a class, their names in JSON, and their forms. A parameter of a generic class is replaced."""
    origin = get_origin(kind) or kind
    hints = get_type_hints(origin, localns={"Json": Any})
    given = dict(zip(getattr(origin, "__parameters__", ()), get_args(kind), strict=False))
    for field in attrs.fields(origin):
        if not field.name.startswith("_"):
            form, converted = form_of(_replaced(hints[field.name], given)), field.metadata.get(_AS)
            yield field, field.metadata.get(_NAME, field.name), form if converted is None else _converted(*converted)


def _converted(kind: Any, convert: Callable[[Any], Any]) -> JsonForm:
    form = form_of(kind)
    return attrs.evolve(form, write=lambda value: form.write(convert(value)))


def _replaced(kind: Any, given: Mapping[Any, Any]) -> Any:
    if isinstance(kind, TypeVar):
        return given.get(kind, Any)
    free = getattr(kind, "__parameters__", ())
    return kind[tuple(given.get(each, Any) for each in free)] if free and given else kind


# -- descriptions


def name_of(kind: Any) -> str:
    """The name of a class in descriptions; ``PagedServiceSummary`` for a generic one."""
    origin: Any = get_origin(kind) or kind
    return str(origin.__name__) + "".join(getattr(each, "__name__", "") for each in get_args(kind))


def schemas_of(kinds: Sequence[Any]) -> dict[str, Json]:
    """The JSON schemas of classes and of all that they refer to, by name."""
    found: dict[str, Json] = {}
    waiting = [*kinds]
    while waiting:
        kind = waiting.pop()
        if name_of(kind) in found:
            continue
        about = _description(inspect.getdoc(get_origin(kind) or kind) or "")
        found[name_of(kind)] = {"type": "object", **about, "properties": _properties(kind, waiting)}
    return dict(sorted(found.items()))


def _properties(kind: Any, waiting: list[Any]) -> dict[str, Json]:
    """The schemas of the members of a class; the classes that they refer to are added to ``waiting``."""
    found: dict[str, Json] = {}
    docs = _docs(get_origin(kind) or kind)
    for field, name, form in _members(kind):
        if _SPREAD in field.metadata:
            for each in form.classes:
                found |= _properties(each, waiting)
        else:
            waiting += form.classes
            found[name] = {**form.schema, **_description(docs.get(field.name, ""))}
    return found


def _description(text: str) -> dict[str, Json]:
    return {"description": " ".join(text.split())} if text else {}


def _docs(kind: Any) -> dict[str, str]:
    """The docstrings below the fields of a class."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__[:-1]):
        (body,) = ast.parse(inspect.cleandoc("\n" + inspect.getsource(each))).body
        for node, below in pairwise(getattr(body, "body", ())):
            match node, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = text
    return found
