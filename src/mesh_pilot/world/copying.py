"""Copies the state of a table."""

from __future__ import annotations

from typing import Any


def copy_containers(source: Any, target: Any) -> None:
    """Give an object copies of another's dicts, sets and lists, nested ones as well; what is in them is shared."""
    for name, value in vars(source).items():
        if isinstance(value, (dict, set, list)):
            setattr(target, name, _copied(value))


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        copied = value.copy()  # of its own kind: a defaultdict, a Counter
        for key, item in value.items():
            if isinstance(item, (dict, set, list)):
                copied[key] = _copied(item)
        return copied
    return value.copy()
