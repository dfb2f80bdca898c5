"""Copies the state of tables."""

from __future__ import annotations

from typing import Any


class Copied:
    """A table, or a part of one, with state that a copy of it gets: its containers, and its parts."""

    def copy_to(self, other: Copied, done: set[int] | None = None) -> None:
        """Give another object of this class copies of all dicts, sets and lists, nested ones as well; what is in them
        is shared. ``done``: the parts that have been copied, as several tables may know one."""
        done = set() if done is None else done
        if id(self) in done:
            return
        done.add(id(self))
        for name, value in vars(self).items():
            if isinstance(value, (dict, set, list)):
                setattr(other, name, _copied(value))
            elif isinstance(value, Copied):
                value.copy_to(vars(other)[name], done)


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        copied = value.copy()  # of its own kind: a defaultdict, a Counter
        for key, item in value.items():
            if isinstance(item, (dict, set, list)):
                copied[key] = _copied(item)
        return copied
    return value.copy()
