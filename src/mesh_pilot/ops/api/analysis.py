"""Analysis: what is wrong with the objects that are in force, when they are seen together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from starlette.requests import Request

from mesh_pilot.explain.analysis.analyze import analyze_picture
from mesh_pilot.explain.analysis.findings import AnalysisMessage, Level
from mesh_pilot.explain.analysis.places import Places
from mesh_pilot.explain.analysis.suppressions import SuppressionError, Suppressions
from mesh_pilot.model.json import IF_GIVEN
from mesh_pilot.ops.api.paging import number_of
from mesh_pilot.ops.api.route import NUMBER, ApiError, ApiTopic, Found, Parameter
from mesh_pilot.ops.api.visitors import Scope, sees_name
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.analysis import picture_now, seen_traffic
from mesh_pilot.ops.values.observed_traffic import MOST_DAYS

MOST_MESSAGES = 5_000
"""Messages of an answer; the heaviest come first, and it says how many there are of each level."""

OF_ABSENCE = frozenset(("IST0101", "IST0127", "MP0013", "MP0014"))
"""Codes of messages that report the absence of proxies. All workers say those IST0101 that are not about workloads."""

OF_ALL = frozenset(("MP0040", "MP0041", "MP0042", "MP0043", "MP0044", "MP0045", "MP0046"))
"""Codes of messages for which the first worker has asked the others."""

_LISTS = {Level.ERROR: "errors", Level.WARNING: "warnings", Level.INFO: "infos"}
SUPPRESS = Parameter(
    "suppress", "A message not to report: CODE, or CODE=KIND/NAMESPACE/NAME, with * and ?.", is_repeated=True
)

TRAFFIC = Parameter(
    "traffic",
    f"Also what no traffic has used in the last days, 1 to {MOST_DAYS}: services, subsets, rules of policies.",
    schema=NUMBER,
)


@attrs.frozen(kw_only=True)
class AnalysisRow:
    """A message of the analyzers; members without a value are left out."""

    where: str | None = attrs.field(metadata=IF_GIVEN)
    object: str | None = attrs.field(metadata=IF_GIVEN)
    field: str | None = attrs.field(metadata=IF_GIVEN)
    reason: str | None = attrs.field(metadata=IF_GIVEN)
    code: str
    level: str
    fix: str | None = attrs.field(metadata=IF_GIVEN)
    """The change that would end it, in words."""
    doc: str | None = attrs.field(metadata=IF_GIVEN)
    """The address of its documentation."""


@attrs.frozen(kw_only=True)
class AnalysisResult:
    """All messages about objects that are seen together."""

    objects: int
    errors: Sequence[AnalysisRow]
    warnings: Sequence[AnalysisRow]
    infos: Sequence[AnalysisRow]
    counts: Mapping[str, int]
    """The number of all messages, also those that are not told, by list."""
    suppressed: int


def workers_together(answers: Mapping[int, Any]) -> dict[str, Any]:
    """All workers' messages. Each worker knows its own proxies only: that no proxy is selected must be said by all."""
    merged = dict(next(iter(answers.values())))
    left = MOST_MESSAGES
    for name in _LISTS.values():
        seen = [{_identity(row) for row in answer[name]} for answer in answers.values()]
        rows = {_identity(row): row for answer in answers.values() for row in answer[name]}
        merged[name] = [
            row
            for identity, row in rows.items()
            if all(identity in of_worker for of_worker in seen)
            or (row["code"] in OF_ALL and identity in seen[0])
            or row["code"] not in OF_ABSENCE | OF_ALL
        ]
        more = max(answer["counts"][name] - len(answer[name]) for answer in answers.values())
        merged["counts"] = {**merged["counts"], name: len(merged[name]) + more}
        merged[name] = merged[name][:left]
        left -= len(merged[name])
    return merged


routes = ApiTopic()


@routes.declare(
    "/analysis",
    "The findings of mesh-pilot analyze about the objects in force.",
    parameters=(SUPPRESS, TRAFFIC),
    merge=workers_together,
    answers=AnalysisResult,
    failures={409: "Traffic is asked about, and none was counted."},
    scope=Scope.ANY,
)
async def analysis(state: PlaneState, request: Request) -> Found:
    try:
        suppressions = Suppressions.parse(request.query_params.getlist("suppress"))
    except SuppressionError as error:
        raise ApiError(400, str(error)) from None
    days = number_of(request, "traffic", 0, most=MOST_DAYS)
    seen = await seen_traffic(state, days) if days else None
    if days and seen is None:
        raise ApiError(409, "no traffic has been counted yet; docs/traffic.md says what counts")
    picture = await picture_now(state, seen)
    objects, is_seen = sum(state.world.statistics().configs.values()), sees_name(request)
    return lambda: _answer(objects, [each for each in analyze_picture(picture) if is_seen(each.object)], suppressions)


def _answer(objects: int, messages: list[AnalysisMessage], suppressions: Suppressions) -> AnalysisResult:
    heard = [message for message in messages if not suppressions.cover(message)]
    places = Places()
    rows: dict[str, list[AnalysisRow]] = {name: [] for name in _LISTS.values()}
    for message in heard[:MOST_MESSAGES]:
        rows[_LISTS[message.type.level]].append(message_row(message, places))
    counts = {name: sum(message.type.level is level for message in heard) for level, name in _LISTS.items()}
    return AnalysisResult(objects=objects, **rows, counts=counts, suppressed=len(messages) - len(heard))


def _identity(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(row.get(name, "")) for name in ("code", "object", "field", "where", "reason"))


def message_row(message: AnalysisMessage, places: Places) -> AnalysisRow:
    return AnalysisRow(
        where=str(places.of(message)) or None,
        object=message.object or None,
        field=message.path or None,
        reason=message.text or None,
        code=message.type.code,
        level=message.type.level.value,
        fix=message.fix or None,
        doc=message.type.doc or None,
    )
