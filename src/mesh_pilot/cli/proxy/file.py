"""The settings file of ``mesh-pilot proxy``: YAML whose keys are the flags without their dashes.

``label``, ``annotation``, ``metadata`` and ``proxy-config`` are objects there. A key that is none is refused with its
line, and so is a key of the ProxyConfig.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 1_000_000


class SettingsFileError(Exception):
    """A mistake in the file: one line, with its place and what to do."""


@attrs.frozen
class Entry:
    """A value of the file, and where it is: ``FILE:LINE``."""

    value: Any
    place: str
    places: Mapping[str, str] = attrs.field(factory=dict)
    """For an object: the places of what is in it, by path, such as ``tracing.zipkin``."""


def read_file(path: Path) -> dict[str, Entry]:
    """The entries by key. Raises SettingsFileError."""
    import yaml

    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SettingsFileError(f"{path}: {error.strerror}: name another file with --config") from None
    if len(data) > MAX_BYTES:
        raise SettingsFileError(f"{path}: more than {MAX_BYTES} bytes: this is no file of settings")
    try:
        loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(data)
        try:
            root = loader.get_single_node()
            return {} if root is None else dict(_entries(path, loader, root))
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise SettingsFileError(_describe(path, error)) from None
    except (ValueError, RecursionError) as error:  # an impossible date; a text too deep
        raise SettingsFileError(f"{path}: {str(error) or 'too deep'}") from None


def refuse_unknown(name: str, place: str, known: Collection[str], what: str = "setting") -> None:
    """Raise SettingsFileError for a name that is not known, with the one that may be meant."""
    if name not in known:
        raise SettingsFileError(f"{place}: there is no {what} {name!r}{did_you_mean(name, known)}")


def did_you_mean(name: str, known: Collection[str]) -> str:
    """The end of a sentence about a name that is not known."""
    by_spelling = {_spelling(other): other for other in known}
    near = difflib.get_close_matches(_spelling(name), by_spelling, n=1)
    return f"; did you mean {by_spelling[near[0]]}?" if near else ""


def _spelling(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _entries(path: Path, loader: Any, root: yaml.Node) -> Iterator[tuple[str, Entry]]:
    import yaml

    if not isinstance(root, yaml.MappingNode):
        raise SettingsFileError(f"{_place(path, root)}: expected settings, each a line such as: name: web-1")
    seen: dict[str, str] = {}
    for key_node, value_node in root.value:
        key, place = str(key_node.value), _place(path, key_node)
        if key in seen:
            raise SettingsFileError(f"{place}: {key} is there already, at {seen[key]}: remove one of them")
        seen[key] = place
        places = dict(_places(path, value_node))
        yield key, Entry(loader.construct_object(value_node, deep=True), place, places)


def _places(path: Path, node: yaml.Node, above: str = "") -> Iterator[tuple[str, str]]:
    import yaml

    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            where = f"{above}{key.value}"
            yield where, _place(path, key)
            yield from _places(path, value, f"{where}.")


def _place(path: Path, node: yaml.Node) -> str:
    return f"{path}:{node.start_mark.line + 1}"


def _describe(path: Path, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    return f"{path}{f':{mark.line + 1}' if mark else ''}: this is no YAML: {problem}"
