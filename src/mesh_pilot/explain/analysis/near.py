"""The name that was probably meant by one that is not there."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from functools import cached_property

_SIMILAR = 0.85
_ALIKE = 0.6
_COMPARISONS = 20
"""Names that are compared with all others, one by one; slips of one character are found without that."""

_CANDIDATES = 2_000


class NearNames:
    """Names, with an index of what each is without one of its characters.

    Mutable state: how many comparisons are left. An analysis of thousands of wrong names gives hints for slips of one
    character only.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        self._left = _COMPARISONS

    def nearest(self, name: str) -> str:
        """The nearest other name; empty if none is near."""
        for key in (name, *_shortened(name)):
            for other in self._index.get(key, ()):
                if other != name and _is_slip(name, other):
                    return other
        if not self._left:
            return ""
        self._left -= 1
        pool = [n for n in self._names if n != name and abs(len(n) - len(name)) <= len(name) // 4]
        found = difflib.get_close_matches(name, pool[:_CANDIDATES], n=1, cutoff=_SIMILAR)
        return next((other for other in found if _is_slip(name, other)), "")

    @cached_property
    def _index(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in self._names:
            for key in (name, *_shortened(name)):
                found.setdefault(key, []).append(name)
        return found


def _is_slip(name: str, other: str) -> bool:
    """True if two names differ as a slip makes them differ: not in a number, and not in a whole short label."""
    if re.sub(r"\D", "", name) != re.sub(r"\D", "", other):
        return False
    ours, theirs = name.split("."), other.split(".")
    while ours and theirs and ours[-1] == theirs[-1]:
        ours.pop()
        theirs.pop()
    return difflib.SequenceMatcher(None, ".".join(ours), ".".join(theirs)).ratio() >= _ALIKE


def _shortened(name: str) -> Iterator[str]:
    """A name without one of its characters, for each."""
    return (name[:at] + name[at + 1 :] for at in range(len(name)))
