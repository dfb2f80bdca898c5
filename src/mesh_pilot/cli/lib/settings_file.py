"""Settings files, ``mesh-pilot.yaml`` and ``proxy.yaml``: YAML whose keys are the flags without their dashes.

A value is written as on the command line, so ``off`` and ``1.10`` are those texts, and not what YAML makes of them. A
flag that takes several values may have a list. An unknown key is refused with its line and the one that may be
meant, and so is a value that the flag would refuse: a file is wrong as a whole, or it counts as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from mesh_pilot.base.suggestions import did_you_mean
from mesh_pilot.cli.lib.options import WRITTEN, ListOption, one_line, section_of

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 1_000_000


class SettingsFileError(Exception):
    """A mistake in the file: one line, with its place and what to do."""


@attrs.frozen
class Entry:
    """A value of the file, and where it is: ``FILE:LINE``."""

    value: Any
    text: str | None
    """The text of a scalar, as it is written; None for others, and without a value."""
    place: str
    places: Mapping[str, str] = attrs.field(factory=dict)
    """The places of what is in an object, by path, such as ``tracing.zipkin``."""


def read_file(path: Path, flag: str = "--config") -> dict[str, Entry]:
    """The entries by key. ``flag`` names the file. Raises SettingsFileError."""
    import yaml

    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SettingsFileError(f"{path}: {error.strerror}: name another file with {flag}") from None
    if len(data) > MAX_BYTES:
        raise SettingsFileError(f"{path}: more than {MAX_BYTES} bytes: this is not a file of settings")
    try:
        loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(data)
        try:
            root = loader.get_single_node()
            return {} if root is None else dict(_entries(path, loader, root))
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise SettingsFileError(_describe(path, error)) from None
    except (ValueError, RecursionError) as error:  # an impossible date; a string too deep
        raise SettingsFileError(f"{path}: {str(error) or 'too deep'}") from None


def default_map(ctx: click.Context, path: Path, leave: Collection[str] = ()) -> dict[str, Any]:
    """Click's ``default_map`` of a file: values by the names of parameters. Raises UsageError, with the place.

    ``leave``: keys that make no sense there.
    """
    known = {key_of(param): param for param in ctx.command.params if key_of(param) not in leave}
    with one_line(SettingsFileError, as_=click.UsageError):
        entries = read_file(path, "--config-file")
        for key, entry in entries.items():
            refuse_unknown(key, entry.place, known)
        return {str(known[key].name): value_of(ctx, known[key], entry) for key, entry in entries.items()}


def key_of(param: click.Parameter) -> str:
    """The key of a flag in a file."""
    return param.opts[0].removeprefix("--")


def value_of(ctx: click.Context, param: click.Parameter, entry: Entry) -> Any:
    """The value of an entry in the form that click takes. Raises SettingsFileError."""
    name = key_of(param)
    is_list = isinstance(entry.value, list)
    if is_list and not (param.multiple or isinstance(param, ListOption)):
        raise SettingsFileError(f"{entry.place}: {name} has one value, not a list")
    texts = [_as_text(one) for one in entry.value] if is_list else [entry.text]
    if None in texts:
        raise SettingsFileError(f"{entry.place}: {name} has no value: write one, or remove the line")
    found = texts if param.multiple else ",".join(map(str, texts))
    try:
        param.type_cast_value(ctx, found)
    except click.BadParameter as error:
        raise SettingsFileError(f"{entry.place}: {name}: {error.message}") from None
    return found


def _as_text(value: object) -> str | None:
    if value is None or isinstance(value, list | dict):
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def written_file(ctx: click.Context, given: Collection[str], secrets: Mapping[str, str]) -> str:
    """The file that says what the flags, the variables and the file of a context say.

    ``given``: the names of the parameters that somebody gave. ``secrets``: keys whose values are left out, each with
    the flag of a file that can have it.
    """
    import yaml

    lines = [f"# Settings of {ctx.command_path}; {ctx.command_path} --help-all has all that there are."]
    section = ""
    for param in ctx.command.params:
        if param.name not in given:
            continue
        if section != section_of(param):
            section = section_of(param)
            lines += ["", f"# {section}"]
        key, value = key_of(param), ctx.meta[WRITTEN][param.name]
        if key in secrets:
            file = secrets[key].removeprefix("--")
            lines.append(f"# {key} is a secret, which is not printed: put it into a file, and name that as {file}")
            continue
        values = [_plain(ctx, param, one) for one in value] if param.multiple else _plain(ctx, param, value)
        lines += yaml.safe_dump({key: values}, width=1000, allow_unicode=True).splitlines()
    return "\n".join(lines) + "\n"


def _plain(ctx: click.Context, param: click.Parameter, value: object) -> object:
    """A value for YAML, which quotes a string that it would take for something else; numbers need no quotes here."""
    if isinstance(param.type, click.types.BoolParamType):
        return param.type_cast_value(ctx, value)
    text = str(value)
    for number in (int, float):
        with suppress(ValueError):
            if str(number(text)) == text:
                return number(text)
    return text


def refuse_unknown(name: str, place: str, known: Collection[str], what: str = "setting") -> None:
    """Raise SettingsFileError for a name that is not known, with the one that may be meant."""
    if name not in known:
        raise SettingsFileError(f"{place}: there is no {what} {name!r}{did_you_mean(name, known)}")


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
        value = loader.construct_object(value_node, deep=True)
        text = value_node.value if isinstance(value_node, yaml.ScalarNode) and value is not None else None
        yield key, Entry(value, text, place, places)


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
    return f"{path}{f':{mark.line + 1}' if mark else ''}: this is not YAML: {problem}"
