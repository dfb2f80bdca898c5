"""What a file says: its objects, good and bad, in order."""

from __future__ import annotations

import os
from typing import NamedTuple

import attrs

from mesh_pilot.sources.published import InvalidObject, ValidObject


class Place(NamedTuple):
    """Where objects stand; places sort in the order in which their objects win."""

    root: int
    """The position of the root among those that were configured: an earlier root wins."""
    path: str
    """The root as it was given, and the way from there; bytes that are not UTF-8 are surrogates, as `os` has them."""

    @property
    def shown(self) -> str:
        """The path as people are told of it."""
        return printable(self.path)


def printable(path: str) -> str:
    """A path with what can't be printed, or is not UTF-8, as backslash escapes: fit for any page, log and encoding."""
    if path.isprintable():
        return path
    text = os.fsencode(path).decode(errors="backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@attrs.frozen
class Ignored:
    """An object of a kind that is not ours, such as a Deployment."""

    api_version: str
    kind: str
    line: int = 0
    is_named: bool = True
    """False: it has no name, so it may be an object of ours that was overwritten."""


Entry = ValidObject | InvalidObject


@attrs.frozen
class Content:
    """All that a readable place says."""

    entries: tuple[Entry, ...] = ()
    is_empty: bool = False
    """Whether there is no document at all, not even one that is ignored: what it says then is what nothing says."""
    unnamed_line: int = 0
    """Where the first document stands that is ignored and has no name; 0: there is none."""


@attrs.frozen
class Unreadable:
    """A place that can't be read at present: what it said before stays."""

    reason: str


@attrs.frozen
class Gone:
    """A place that is no more: what it said is taken back."""


Reading = Content | Unreadable | Gone
"""What looking at a place has shown."""
