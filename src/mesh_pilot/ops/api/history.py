"""The revisions that were published, from the history in the state folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import attrs
from starlette.requests import Request

from mesh_pilot.model.json import Json
from mesh_pilot.ops.api.paging import number_of
from mesh_pilot.ops.api.route import NUMBER, TEXT, ApiError, ApiRoute, Found, Parameter, list_of, object_of
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.differences import object_differences
from mesh_pilot.safety.state.reader import HistoryError, HistoryReader, RevisionRecord, name_of

LIMIT = Parameter("limit", "Revisions of the answer, 100 by default; the latest first.", schema=NUMBER)
BEFORE = Parameter("before", "Only revisions before this one.", schema=NUMBER)
SINCE = Parameter("since", "Only revisions since then: 2026-11-22T10:00:00Z.")
PROXY = Parameter("proxy", "Only revisions of which this proxy refused something: web-1.shop.")
OBJECT = Parameter("object", "Only revisions that changed an object with this in its name: shop/reviews.")
REVISION = Parameter("revision", "The number of a revision.", schema=NUMBER)
TO = Parameter("to", "The later revision; the latest by default.", schema=NUMBER)

MOST_DIGITS = 18
"""Digits of a number that SQLite can keep."""

MOST_DIFFERENCES = 1000
"""Objects in a comparison."""

SCHEMA = object_of(revision=NUMBER, at=TEXT, causes=list_of(TEXT), objects=NUMBER, proxies=NUMBER, bytes=NUMBER)


def routes(state: PlaneState) -> list[ApiRoute]:
    async def listed(request: Request) -> Found:
        folder, query = _folder(state), request.query_params
        limit = number_of(request, "limit", 100, most=1000, least=1)
        before = number_of(request, "before", 0, most=10**9)
        since = _since(query.get("since", ""))
        proxy, name = query.get("proxy", ""), query.get("object", "")

        def answer() -> Json:
            with _history(folder) as history:
                found = history.revisions(
                    limit=limit, since=since, proxy=proxy, object_name=name, before=before or None
                )
                return {"items": [_shown(each) for each in found], "latest": history.latest}

        return answer

    async def one(request: Request) -> Found:
        folder, number = _folder(state), _revision(request)

        def answer() -> Json:
            with _history(folder) as history:
                record = history.revision(number)
                return {
                    **_shown(record),
                    "nack_count": record.nacked,
                    "changes": [
                        {
                            "object": name_of(each.key),
                            "source": each.source,
                            "action": each.action,
                            "cause": each.cause,
                        }
                        for each in history.changes(number)
                    ],
                    "nacks": [
                        {**attrs.asdict(each, recurse=False), "at": each.at.isoformat()}
                        for each in history.nacks(number)
                    ],
                }

        return answer

    async def differences(request: Request) -> Found:
        folder, older = _folder(state), _revision(request)
        asked = number_of(request, "to", 0, most=10**9)

        def answer() -> Json:
            with _history(folder) as history:
                newer = asked or history.latest
                before, after = history.items_at(older), history.items_at(newer)
                found = [each.as_json(older, newer) for each in object_differences(before, after)]
                return {
                    "from": older,
                    "to": newer,
                    "items": found[:MOST_DIFFERENCES],
                    "total": len(found),
                    "not_kept": len({*before.unknown, *after.unknown}),
                }

        return answer

    return [
        ApiRoute(
            "/history",
            "The revisions that were published: cause, objects, proxies, bytes, time to the last ACK, NACKs.",
            listed,
            parameters=(LIMIT, BEFORE, SINCE, PROXY, OBJECT),
            schema=object_of(items=list_of(SCHEMA), latest=NUMBER),
        ),
        ApiRoute(
            "/history/{revision}",
            "A revision: the objects that it changed, and the NACKs of what followed.",
            one,
            parameters=(REVISION,),
            schema=SCHEMA,
        ),
        ApiRoute(
            "/history/{revision}/diff",
            "The objects in which two revisions differ, as unified diffs of YAML.",
            differences,
            parameters=(REVISION, TO),
            schema=object_of(**{"from": NUMBER}, to=NUMBER, items=list_of(object_of()), total=NUMBER, not_kept=NUMBER),
        ),
    ]


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


def _shown(record: RevisionRecord) -> dict[str, Json]:
    return {
        "revision": record.number,
        "at": record.at.isoformat(),
        "causes": list(record.causes),
        "more_causes": record.more_causes,
        "objects": record.objects,
        "proxies": record.proxies,
        "waiting": record.waiting,
        "bytes": record.bytes,
        "acked_seconds": record.acked_seconds,
        "nacks": record.nacked,
        "is_over": record.is_over,
    }
