"""The revisions that were published: from the history in the state folder, or without one those of this run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
from starlette.requests import Request

from mesh_pilot.model.history import RevisionNack
from mesh_pilot.model.json import SPREAD, called
from mesh_pilot.ops.api.paging import number_of
from mesh_pilot.ops.api.route import NUMBER, ApiError, ApiTopic, Found, Parameter
from mesh_pilot.ops.api.visitors import EVERYWHERE, Role, Scope, needed, sees_all, sees_name
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.differences import ObjectDifference, object_differences
from mesh_pilot.ops.values.history import RevisionRow, kept_rows, remembered_rows
from mesh_pilot.safety.state.reader import HistoryError, HistoryReader, RevisionRecord, is_called, name_of

LIMIT = Parameter("limit", "Revisions of the answer, 100 by default; the latest first.", schema=NUMBER)
BEFORE = Parameter("before", "Only revisions before this one.", schema=NUMBER)
SINCE = Parameter("since", "Only revisions since then: 2026-11-22T10:00:00Z.")
PROXY = Parameter("proxy", "Only revisions of which this proxy refused something: web-1.shop.")
TRIALS = Parameter("trials", "`true`: revisions in which only quarantine changed something are separate rows.")
OBJECT = Parameter(
    "object", "Only revisions that changed an object with this in its name: shop/reviews, or reviews.shop."
)
REVISION = Parameter("revision", "The number of a revision.", schema=NUMBER)
TO = Parameter("to", "The later revision; the latest by default.", schema=NUMBER)

MOST_DIGITS = 18
"""Digits of a number that SQLite can keep."""

MOST_DIFFERENCES = 1000
"""Objects in a comparison."""


@attrs.frozen
class HistoryPiece:
    """Revisions, the latest first."""

    items: Sequence[RevisionRow]
    latest: int
    next: int | None
    """The value of `before` that gives the next piece; null in the last."""
    kept: str
    """`store`: over restarts; `memory`: the latest of this run."""


@attrs.frozen
class RevisionChange:
    """An object that a revision changed."""

    object: str
    source: str
    action: str
    """``add``, ``update`` or ``delete``."""
    cause: str


@attrs.frozen
class RevisionState:
    """A revision with all that it changed, and the NACKs of what followed."""

    revision: RevisionRecord = attrs.field(metadata=SPREAD)
    nack_count: int
    changes: Sequence[RevisionChange]
    nacks: Sequence[RevisionNack]


@attrs.frozen
class RevisionDifference:
    """The objects in which two revisions differ."""

    older: int = attrs.field(metadata=called("from"))
    newer: int = attrs.field(metadata=called("to"))
    items: Sequence[ObjectDifference]
    total: int
    not_kept: int
    """Objects of which the history knows no more than that they were there."""


routes = ApiTopic()


@routes.declare(
    "/history",
    "The revisions that were published: cause, objects, proxies, bytes, time to the last ACK, NACKs; and whether calls"
    " failed more often after them.",
    parameters=(LIMIT, BEFORE, SINCE, PROXY, OBJECT, TRIALS),
    answers=HistoryPiece,
    scope=Scope.ANY,
)
async def listed(state: PlaneState, request: Request) -> Found:
    # Everybody may know which revisions there were; the names in a row are another matter (row_for).
    query = request.query_params
    limit = number_of(request, "limit", 100, most=1000, least=1)
    before = number_of(request, "before", 0, most=10**9)
    since, is_folded = _since(query.get("since", "")), query.get("trials") != "true"
    proxy, name = query.get("proxy", ""), query.get("object", "")
    if proxy:
        needed(request, Role.VIEW, proxy.partition(".")[2] or EVERYWHERE)
    if not _has_store(state):
        rows = [row_for(request, row) for row in remembered_rows(state, is_folded=is_folded)]
        latest = rows[0].record.number if rows else 0
        found = [
            row
            for row in rows
            if (not before or row.record.number < before)
            and (since is None or row.record.at >= since)
            and (not proxy or any(each.startswith(proxy) for each in row.refused_by))
            and (not name or any(is_called(each, name) for each in row.changed))
        ]
        return _piece(found, limit, latest, "memory")
    folder = _folder(state)

    def answer() -> HistoryPiece:
        with _history(folder) as history:
            asked: Any = {"since": since, "proxy": proxy, "before": before or None}
            asked |= {"object_name": name, "is_seen": sees_name(request)}
            if is_folded:
                found = history.folded(limit=limit + 1, **asked)
            else:
                found = [(record, 0) for record in history.revisions(limit=limit + 1, **asked)]
            rows = [row_for(request, row) for row in kept_rows(history, found)]
            return _piece(rows, limit, history.latest, "store")

    return answer


def row_for(request: Request, row: RevisionRow) -> RevisionRow:
    """A row without what is of namespaces that the one who asks may not view."""
    if sees_all(request) or _is_own(request, row.record, row.changed):
        return row
    seen = [*filter(sees_name(request), row.changed)]
    return attrs.evolve(row, record=_without_names(row.record), changed=seen, refused_by=[])


def _state_for(request: Request, found: RevisionState) -> RevisionState:
    """The same for all of a revision."""
    if sees_all(request) or _is_own(request, found.revision, [each.object for each in found.changes]):
        return found
    is_seen = sees_name(request)
    return RevisionState(
        _without_names(found.revision),
        found.nack_count,
        [each for each in found.changes if is_seen(each.object)],
        [each for each in found.nacks if each.configs and all(map(is_seen, each.configs))],
    )


def _is_own(request: Request, record: RevisionRecord, names: Sequence[str]) -> bool:
    """True if all that a revision changed may be viewed."""
    return record.objects == len(names) and all(map(sees_name(request), names))


def _without_names(record: RevisionRecord) -> RevisionRecord:
    """Causes name objects of any namespace, and traffic workloads of any."""
    return attrs.evolve(record, causes=(), more_causes=record.more_causes + len(record.causes), traffic=None)


def _piece(rows: Sequence[RevisionRow], limit: int, latest: int, kept: str) -> HistoryPiece:
    following = rows[limit - 1].record.number if len(rows) > limit else None
    return HistoryPiece(rows[:limit], latest, following, kept)


@routes.declare(
    "/history/{revision}",
    "A revision: the objects that it changed, and the NACKs of what followed.",
    parameters=(REVISION,),
    answers=RevisionState,
    scope=Scope.ANY,
)
async def one(state: PlaneState, request: Request) -> Found:
    number = _revision(request)
    if not _has_store(state):
        return _state_for(request, _remembered(state, number))
    folder = _folder(state)

    def answer() -> RevisionState:
        with _history(folder) as history:
            record = history.revision(number)
            changes = [
                RevisionChange(name_of(each.key), each.source, each.action, each.cause)
                for each in history.changes(number)
            ]
            found = RevisionState(record, record.nacked, changes, list(history.nacks(number)))
            return _state_for(request, found)

    return answer


@routes.declare(
    "/history/{revision}/diff",
    "The objects in which two revisions differ, as unified diffs of YAML.",
    parameters=(REVISION, TO),
    answers=RevisionDifference,
    scope=Scope.ANY,
)
async def differences(state: PlaneState, request: Request) -> Found:
    folder, older, is_seen = _folder(state), _revision(request), sees_name(request)
    asked = number_of(request, "to", 0, most=10**9)

    def answer() -> RevisionDifference:
        with _history(folder) as history:
            newer = asked or history.latest
            before, after = history.items_at(older), history.items_at(newer)
            found = [each for each in object_differences(before, after) if is_seen(each.name)]
            shown = [each.shown(older, newer) for each in found[:MOST_DIFFERENCES]]
            not_kept = len({*before.unknown, *after.unknown})
            return RevisionDifference(older, newer, shown, len(found), not_kept)

    return answer


def _remembered(state: PlaneState, number: int) -> RevisionState:
    """A revision of this run. Raises ApiError."""
    names = next((each.names for each in state.revisions.revisions if each.number == number), ())
    rows = remembered_rows(state, is_folded=False)
    record = next((row.record for row in rows if row.record.number == number), None)
    if record is None:
        raise ApiError(404, f"revision {number} is not kept")
    outcomes = state.xds.status.revisions.recent()
    nacks = next((each.nacks for each in outcomes if each.revision == number), ())
    return RevisionState(record, record.nacked, [RevisionChange(name, "", "", "") for name in names], nacks)


def _has_store(state: PlaneState) -> bool:
    return state.recorder is not None and state.recorder.history is not None


def _revision(request: Request) -> int:
    """The number in the path. Raises ApiError."""
    asked = str(request.path_params["revision"])
    if not (asked.isascii() and asked.isdigit() and len(asked) <= MOST_DIGITS):
        raise ApiError(404, f"no revision {asked[:40]!r}: it must be a number of at most {MOST_DIGITS} digits")
    return int(asked)


def _folder(state: PlaneState) -> Path:
    if state.recorder is None or state.recorder.history is None:
        raise ApiError(404, "this control plane keeps no history (--no-state, or --history-revisions 0)")
    return state.recorder.store.settings.folder


@contextmanager
def _history(folder: Path) -> Iterator[HistoryReader]:
    """Raises ApiError where it cannot be read, or has no such revision."""
    try:
        with HistoryReader.open(folder) as history:
            yield history
    except HistoryError as error:
        raise ApiError(404, str(error)) from None


def _since(text: str) -> datetime | None:
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ApiError(400, f"since={text[:40]}: write it as 2026-11-22T10:00:00Z") from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
