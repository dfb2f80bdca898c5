"""Suggestions of what is meant by a name that is not known: one way to find it, and one way to say it."""

from __future__ import annotations

from collections.abc import Iterable

LIKE = 0.6
"""Similarity from which a name is taken for a misspelling of another."""


def nearest(name: str, known: Iterable[str], *, like: float = LIKE) -> str:
    """The known name that is most like it, whatever the case, hyphens and underscores; empty if none is."""
    from difflib import get_close_matches  # a command that makes no mistake does not wait for it

    by_spelling: dict[str, str] = {}
    for other in known:
        by_spelling.setdefault(_spelling(other), other)
    found = get_close_matches(_spelling(name), by_spelling, n=1, cutoff=like)
    return by_spelling[found[0]] if found else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a name that is not known; empty if no known name is like it."""
    return asked(nearest(name, known))


def asked(*meant: str) -> str:
    """The end of a sentence that asks whether one of these is meant; empty without any."""
    names = [*filter(None, meant)]
    return f"; did you mean {' or '.join(names)}?" if names else ""


def _spelling(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
