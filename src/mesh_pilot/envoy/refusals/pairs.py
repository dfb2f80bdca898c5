"""Rules about two fields of a message, which Envoy's API does not declare: each is a line in a table of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Rule = Callable[[Any], Iterator[str]]
"""The reasons why Envoy refuses a message, as ``field: reason``."""


def _is_set(message: Any, name: str) -> bool:
    field = message.DESCRIPTOR.fields_by_name[name]
    return bool(message.HasField(name) if field.has_presence else getattr(message, name))


def excludes(name: str, other: str) -> Rule:
    def check(message: Any) -> Iterator[str]:
        if _is_set(message, name) and _is_set(message, other):
            yield f"{name}: goes not with {other}"

    return check


def one_of(name: str, other: str) -> Rule:
    def check(message: Any) -> Iterator[str]:
        if _is_set(message, name) == _is_set(message, other):
            yield f"{name}: one of {name} and {other} has to be set"

    return check


def needed_by(name: str, other: str) -> Rule:
    def check(message: Any) -> Iterator[str]:
        if _is_set(message, other) and not _is_set(message, name):
            yield f"{name}: is missing; {other} needs it"

    return check


def not_less(name: str, least: str, default: int = 0) -> Rule:
    """The rule that the duration ``name`` is not less than ``least``; ``default``: nanoseconds if that is unset."""

    def check(message: Any) -> Iterator[str]:
        bound = getattr(message, least).ToNanoseconds() if message.HasField(least) else default
        if message.HasField(name) and getattr(message, name).ToNanoseconds() < bound:
            yield f"{name}: is less than {least}"

    return check
