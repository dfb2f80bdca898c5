"""The context of a rule, and shorthands for the problems it reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs
import betterproto2

from mesh_pilot.istio.meaning.descriptors import json_name
from mesh_pilot.model.config import Problem, Severity


@attrs.frozen
class Context:
    """The object whose spec is checked."""

    name: str
    namespace: str
    labels: Mapping[str, str] = attrs.field(factory=dict)
    annotations: Mapping[str, str] = attrs.field(factory=dict)


def error(path: str, reason: str) -> Problem:
    return Problem(path, reason)


def warning(path: str, reason: str) -> Problem:
    return Problem(path, reason, Severity.WARNING)


def check(path: str, reason: str) -> Iterator[Problem]:
    """An error if there is a reason."""
    if reason:
        yield Problem(path, reason)


def check_values(
    path: str, message: betterproto2.Message, reason: Callable[[Any], str], *names: str, required: bool = False
) -> Iterable[Problem]:
    """An error for each value of these fields that there is a reason for; of a list or map, for each of its values.

    ``path`` is that of ``message``; ``required``: a field that is not set is an error, too.
    """
    if not required and not _is_any_set(message, names):
        return ()
    return (
        Problem(here, found)
        for here, value in _set_values(path, message, names)
        if (found := "is missing" if value is None and required else "" if value is None else reason(value))
    )


def check_parts(
    path: str,
    message: betterproto2.Message,
    check: Callable[[str, Any], Iterable[Problem]],
    *names: str,
    required: bool = False,
) -> Iterable[Problem]:
    """The same, with a check that yields the problems of a value at a path."""
    if not required and not _is_any_set(message, names):
        return ()
    return (
        problem
        for here, value in _set_values(path, message, names)
        for problem in (check(here, value) if value is not None else (Problem(here, "is missing"),) if required else ())
    )


def _is_any_set(message: betterproto2.Message, names: Iterable[str]) -> bool:
    # Most fields are not set: to make no generator for them keeps decoding fast. Of a message, nothing is asked.
    for name in names:
        value = getattr(message, name)
        if (value is not None and value.__class__ is not list) or value:
            return True
    return False


def _set_values(path: str, message: betterproto2.Message, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """The path and value of each field, of each value of a list, and of each value of a map."""
    for name in names:
        value = getattr(message, name)
        here = f"{path}.{json_name(name)}" if path else json_name(name)
        if isinstance(value, list):
            for index, item in enumerate(value):
                yield f"{here}[{index}]", item
        elif isinstance(value, dict):
            for key, item in value.items():
                yield f"{here}[{key}]", item
        else:
            yield here, value
