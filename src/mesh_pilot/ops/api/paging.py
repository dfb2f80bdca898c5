"""Lists in pieces: at most ``limit`` entries in order of their keys, and a word by which to go on."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import attrs
from starlette.requests import Request

from mesh_pilot.model.json import IF_GIVEN, Json, as_json, called
from mesh_pilot.ops.api.route import NUMBER, ApiError, Parameter
from mesh_pilot.ops.web.responses import printable

T = TypeVar("T")
U = TypeVar("U")

MOST = 1000
"""Entries of an answer."""

USUAL = 100
"""Entries of an answer, where nobody says how many."""

LIMIT = Parameter("limit", f"Entries of the answer: 1 to {MOST}, {USUAL} by default.", schema=NUMBER)
CONTINUE = Parameter("continue", "Go on after this: the `continue` of the answer before.")
OFFSET = Parameter("offset", "Leave out so many entries.", schema=NUMBER)
SEARCH = Parameter("q", "Only entries with this text in their name, in any case.")
PAGING = (LIMIT, OFFSET, CONTINUE)


@attrs.frozen
class Piece(Generic[T]):
    """A piece of a list."""

    items: Sequence[T]
    total: int
    """The number of entries in all pieces."""
    offset: int
    go_on: str | None = attrs.field(default=None, metadata={**called("continue"), **IF_GIVEN})
    """The word by which to ask for the next piece; left out in the last."""


@attrs.frozen
class Paging:
    """The piece of a list that is asked for."""

    limit: int = USUAL
    after: str = ""
    """The key of the last entry that is known already; empty: from the beginning."""
    offset: int = 0
    """Entries that are left out."""

    @classmethod
    def of(cls, request: Request) -> Paging:
        """Raises ApiError."""
        query = request.query_params
        return cls(
            number_of(request, "limit", USUAL, most=MOST, least=1),
            query.get("continue", ""),
            number_of(request, "offset", 0, most=10**7),
        )

    def piece(self, entries: Iterable[tuple[str, T]], show: Callable[[T], U]) -> Piece[U]:
        """The answer: of all entries, with their keys in any order, those that are asked for.

        Uses nothing but its arguments, so that it can run in a thread.
        """
        total = 0

        def wanted() -> Iterable[tuple[str, int, T]]:
            nonlocal total
            for total, (key, entry) in enumerate(entries, 1):
                shown = printable(key)
                if shown > self.after:
                    yield shown, total, entry

        end = self.offset + self.limit
        found = heapq.nsmallest(end + 1, wanted())
        items = [show(entry) for _, _, entry in found[self.offset : end]]
        return Piece(items, total, self.offset, found[end - 1][0] if len(found) > end else None)


def number_of(request: Request, name: str, usual: int, *, most: int, least: int = 0) -> int:
    """A whole number of the query. Raises ApiError."""
    asked = request.query_params.get(name, "")
    if not asked:
        return usual
    if not (asked.isascii() and asked.isdigit() and len(asked) < 10 and least <= int(asked) <= most):
        raise ApiError(400, f"{name}={asked[:40]}: must be a number from {least} to {most}")
    return int(asked)


def matches(search: str, *texts: str) -> bool:
    """True if one of the texts has the wanted one in it; case is ignored."""
    return not search or any(search.lower() in text.lower() for text in texts)


def piece_of(entries: Json, name: str, query: Mapping[str, str], paging: Paging) -> Json:
    """A piece of a list of objects in order of a member, which is also what is searched."""
    assert isinstance(entries, list)
    search = query.get("q", "")
    rows = ((f"{each[name]}/{number:07}", each) for number, each in enumerate(entries))
    return as_json(paging.piece((row for row in rows if matches(search, str(row[1][name]))), lambda each: each))
