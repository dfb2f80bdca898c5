"""Lists in pieces: at most ``limit`` entries in order of their keys, and a word by which to go on.

Lists of things that have an assessment are searched, filtered and sorted here, not by whoever shows them: no browser
needs ten thousand services to find the one that is down.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import attrs
from starlette.requests import Request

from mesh_pilot.model.json import IF_GIVEN, Json, as_json, called
from mesh_pilot.ops.api.route import NUMBER, ApiError, Parameter
from mesh_pilot.ops.values.assessments import Gravity
from mesh_pilot.ops.web.responses import printable

T = TypeVar("T")
U = TypeVar("U")

MOST = 1000
"""Entries of an answer."""

USUAL = 100
"""Entries of an answer, unless the client says how many."""

LIMIT = Parameter("limit", f"Entries of the answer: 1 to {MOST}, {USUAL} by default.", schema=NUMBER)
CONTINUE = Parameter("continue", "Go on after this: the `continue` of the answer before.")
OFFSET = Parameter("offset", "Leave out so many entries.", schema=NUMBER)
SEARCH = Parameter("q", "Only entries with these words in their name, in any case and order.")
PAGING = (LIMIT, OFFSET, CONTINUE)

STATE = Parameter("state", "Only entries in these states, with commas; `ill` for all whose severity is not `ok`.")
SORT = Parameter("sort", "The member to sort by, after `-` for descending; `severity` for the worst first.")
ILL = "ill"


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
class AssessedPiece(Generic[T]):
    """A piece of a list of things that have a state."""

    items: Sequence[T]
    total: int
    """The number of entries in all pieces."""
    offset: int
    """That of the first entry; one that was asked for past the end is that of the last piece."""
    counts: Mapping[str, int]
    """The number of entries by state, whichever states are asked for."""
    go_on: str | None = attrs.field(default=None, metadata={**called("continue"), **IF_GIVEN})
    """The word by which to ask for the next piece; left out in the last, and where it is sorted."""


@attrs.frozen
class AssessedEntry(Generic[T]):
    """An entry of such a list, before it is shown."""

    key: str
    """The place without `sort`."""
    value: T
    texts: Sequence[str]
    """The texts that are searched."""
    namespace: str
    state: str
    severity: str


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
        offset = self.offset
        if found and offset >= len(found):
            offset = self._last(len(found))
            end = offset + self.limit
        items = [show(entry) for _, _, entry in found[offset:end]]
        return Piece(items, total, offset, found[end - 1][0] if len(found) > end else None)

    def assessed(
        self, entries: Iterable[AssessedEntry[T]], query: Mapping[str, str], show: Callable[[T], U]
    ) -> AssessedPiece[U]:
        """The same of entries that have a state, as the query wants them. Raises ApiError."""
        # One pass over all, as each filter tells how many the others would give; only the rows of the piece are shown,
        # unless the order depends on a member of them.
        states = [each for each in query.get("state", "").split(",") if each]
        counts: Counter[str] = Counter()
        found: list[AssessedEntry[T]] = []
        for entry in _searched(entries, query):
            counts[entry.state] += 1
            if not states or entry.state in states or (ILL in states and entry.severity != "ok"):
                found.append(entry)
        sort = query.get("sort", "")
        shown = _sorted([(entry, show(entry.value)) for entry in found], sort) if sort else ()
        if not sort:
            found.sort(key=lambda entry: printable(entry.key))
        total = len(found)
        left = [entry for entry in found if sort or printable(entry.key) > self.after] if self.after else found
        offset = self.offset if self.offset < len(left) else self._last(len(left))
        end = offset + self.limit
        items = [row for _, row in shown[offset:end]] if sort else [show(entry.value) for entry in left[offset:end]]
        goes_on = not sort and len(left) > end
        return AssessedPiece(items, total, offset, counts, printable(left[end - 1].key) if goes_on else None)

    def _last(self, total: int) -> int:
        """The offset of the last piece."""
        return max(0, total - 1) // self.limit * self.limit


def number_of(request: Request, name: str, usual: int, *, most: int, least: int = 0) -> int:
    """A whole number of the query. Raises ApiError."""
    asked = request.query_params.get(name, "")
    if not asked:
        return usual
    if not (asked.isascii() and asked.isdigit() and len(asked) < 10 and least <= int(asked) <= most):
        raise ApiError(400, f"{name}={asked[:40]}: must be a number from {least} to {most}")
    return int(asked)


def matches(search: str, *texts: str) -> bool:
    """True if each wanted word is in one of the texts; case is ignored."""
    return all(any(word in text.lower() for text in texts) for word in search.lower().split())


def _searched(entries: Iterable[AssessedEntry[T]], query: Mapping[str, str]) -> Iterator[AssessedEntry[T]]:
    search, namespace = query.get("q", ""), query.get("namespace", "")
    for entry in entries:
        if namespace in ("", entry.namespace) and matches(search, *entry.texts):
            yield entry


def _sorted(rows: list[tuple[AssessedEntry[T], U]], sort: str) -> list[tuple[AssessedEntry[T], U]]:
    """Rows in order of a member; entries that have none come last. Raises ApiError for one that no row has."""
    name, is_descending = sort.removeprefix("-"), sort.startswith("-")
    known: list[tuple[AssessedEntry[T], U, Any]] = [
        (entry, row, as_json(row) if attrs.has(type(row)) else row) for entry, row in rows
    ]
    rows_as_json = [each for _, _, each in known]
    if rows_as_json and not any(name in each for each in rows_as_json):
        raise ApiError(400, f"sort={name[:40]}: there are {', '.join(map(str, rows_as_json[0]))}")

    def place(each: tuple[AssessedEntry[T], U, Any]) -> tuple[Any, ...]:
        value = each[2].get(name)
        if name == "severity":
            value = -Gravity(value).rank
        return (isinstance(value, str), value if isinstance(value, (str, int, float)) else str(value))

    known.sort(key=lambda each: printable(each[0].key))
    there = sorted((each for each in known if each[2].get(name) is not None), key=place, reverse=is_descending)
    absent = [each for each in known if each[2].get(name) is None]
    return [(entry, row) for entry, row, _ in (*there, *absent)]


def piece_of(rows: Json, name: str, query: Mapping[str, str], paging: Paging | None) -> Json:
    """The rows of a list that a query wants, in order of a member, which is also what is searched; with ``paging`` a
    piece of them. Those that are gone are in it only if they are asked for. Raises ApiError."""
    assert isinstance(rows, list)
    asked = {*query.get("state", "").split(",")}
    has_gone = query.get("gone") == "true" or bool(asked & {"gone", ILL})
    entries = [
        AssessedEntry(
            f"{row[name]}/{number:07}",
            row,
            [str(row.get(each, "")) for each in (name, "address", "proxy_id")],
            str(row.get("namespace", "")),
            str(row.get("state", "")),
            str(row.get("severity", "")),
        )
        for number, row in enumerate(rows)
        if has_gone or not row.get("gone")
    ]
    if paging is None:
        is_asked = any(query.get(each) for each in ("q", "state", "namespace", "sort"))
        whole = Paging(limit=max(1, len(entries)))
        return whole.assessed(entries, query, lambda row: row).items if is_asked else [each.value for each in entries]
    return as_json(paging.assessed(entries, query, lambda row: row))
