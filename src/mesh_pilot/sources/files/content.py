"""The content of a file: its objects, good and bad, in order."""

from __future__ import annotations

import os
from typing import NamedTuple

import attrs

from mesh_pilot.sources.base.published import InvalidObject, ValidObject


class FileLocation(NamedTuple):
    """A file or a folder of credentials: what is read in one piece. Locations sort in order of precedence."""

    root: int
    """The position of the root among those that were configured: an earlier root wins."""
    path: str
    """The root as it was given, and the path from there; bytes that are not UTF-8 are surrogates, as in `os`."""

    def __str__(self) -> str:
        """The path for people."""
        return printable(self.path)


def printable(path: str) -> str:
    """A path fit for any page, log and encoding: unprintable characters and bytes that are not UTF-8 are escaped."""
    if path.isprintable():
        return path
    text = os.fsencode(path).decode(errors="backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@attrs.frozen
class IgnoredObject:
    """An object of a kind that is not read, such as a Deployment."""

    api_version: str
    kind: str
    line: int = 0
    is_named: bool = True
    """False: it has no name, so it may be an Istio object that was overwritten."""


ParsedObject = ValidObject | InvalidObject
ParsedDocument = ValidObject | InvalidObject | IgnoredObject


@attrs.frozen
class FileContent:
    """The content of a readable location."""

    entries: tuple[ParsedObject, ...] = ()
    is_empty: bool = False
    """True if there is no document at all, not even one that is ignored."""
    unnamed_line: int = 0
    """The line of the first document that is ignored and has no name; 0: there is none."""


@attrs.frozen
class Unreadable:
    """A location that can't be read at present: its objects stay."""

    reason: str


@attrs.frozen
class Gone:
    """A location that is gone, with its objects."""


FileReading = FileContent | Unreadable | Gone
"""A location as a scan found it."""
