"""JSON of others, read without trust: a value of another type than the reader wants counts as absent.

    as_string(answer, "Config", "Datacenter")       # "" where there is no such string
    as_objects(pod, "spec", "containers")           # [] where there is no such list

For answers of servers, metadata of proxies and bodies of requests, where a wrong value must cost that value and
nothing more. What a user wrote in a file is read with errors instead: see `istio.reading`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def member(value: object, *path: str) -> Any:
    """The value below nested objects; None where one of them is absent or not an object."""
    for name in path:
        # What a decoder gives is a dict, which costs a tenth to recognize.
        value = value.get(name) if type(value) is dict or isinstance(value, Mapping) else None
    return value


def as_object(value: object, *path: str) -> Mapping[str, Any]:
    """The value at a path if it is an object, else an empty one."""
    found = member(value, *path)
    return found if type(found) is dict or isinstance(found, Mapping) else {}


def as_list(value: object, *path: str) -> list[Any]:
    """The value at a path if it is a list, else an empty one."""
    found = member(value, *path)
    return found if isinstance(found, list) else []


def as_objects(value: object, *path: str) -> list[Mapping[str, Any]]:
    """The objects in a list at a path."""
    return [each for each in as_list(value, *path) if isinstance(each, Mapping)]


def as_string(value: object, *path: str) -> str:
    """The value at a path if it is a string, else an empty one."""
    found = member(value, *path)
    return found if isinstance(found, str) else ""


def as_strings(value: object, *path: str) -> list[str]:
    """The strings in a list at a path."""
    return [each for each in as_list(value, *path) if isinstance(each, str)]


def as_string_map(value: object, *path: str) -> dict[str, str]:
    """The members that are strings of an object at a path."""
    return {str(name): each for name, each in as_object(value, *path).items() if isinstance(each, str)}


def as_integer(value: object, *path: str) -> int:
    """The value at a path if it is a whole number, else 0."""
    found = member(value, *path)
    return found if isinstance(found, int) and not isinstance(found, bool) else 0
