"""Values of settings that are objects, as YAML in a flag or a variable, or as they are in the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click


def read_object(value: Any) -> Mapping[str, Any]:
    """An object. Raises BadParameter."""
    found = _read(value)
    if not isinstance(found, Mapping):
        raise click.BadParameter("expected an object, such as {name: value}")
    return found


def read_objects(value: Any) -> Sequence[Mapping[str, Any]]:
    """The objects of a list, or the one that there is. Raises BadParameter."""
    found = _read(value)
    many = found if isinstance(found, list) else [found]
    if not all(isinstance(one, Mapping) for one in many):
        raise click.BadParameter("expected an object, such as {name: value}, or a list of objects")
    return many


def _read(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    import yaml

    try:
        return yaml.safe_load(value)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise click.BadParameter(f"this is not YAML: {' '.join(str(error).split())}") from None
