"""The control plane now: causes of what is wrong, what is in progress, and totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any

import attrs
from starlette.requests import Request

from mesh_pilot.model.json import SPREAD, Json
from mesh_pilot.ops.api.history import row_for
from mesh_pilot.ops.api.rollout import RolloutStatus, rollout_for
from mesh_pilot.ops.api.route import ApiTopic, Found
from mesh_pilot.ops.api.visitors import Role, Scope, sees, sees_all, sees_name, visitor_of
from mesh_pilot.ops.causes.cause import NAMED
from mesh_pilot.ops.causes.now import MOST_CAUSES, NowOfPlane, PlaneNow, sentence
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.assessments import Gravity
from mesh_pilot.ops.values.history import RevisionRow, remembered_rows, workers_rows_together
from mesh_pilot.safety.rollout.progress import RolloutPhase

LAST = timedelta(hours=1)

SHOWN = 20
"""Revisions of an answer."""

COMMANDS: Mapping[RolloutPhase, Sequence[str]] = {
    RolloutPhase.ARMED: ("abort",),
    RolloutPhase.RUNNING: ("pause", "promote", "abort"),
    RolloutPhase.PAUSED: ("resume", "promote", "abort"),
    RolloutPhase.TAKEN_BACK: ("promote",),
}
"""The orders that make sense in a phase."""


@attrs.frozen
class RolloutNow:
    """A rollout, with the commands that an operator may give; none for a person who is not one."""

    rollout: RolloutStatus = attrs.field(metadata=SPREAD)
    commands: Sequence[str]


@attrs.frozen
class PlaneNowAnswer:
    """The control plane now. What was wrong and is over is not here."""

    now: NowOfPlane = attrs.field(metadata=SPREAD)
    in_progress: RolloutNow | None
    """The rollout; null without one."""
    last_hour: Sequence[RevisionRow]
    """The latest revisions of the last hour."""


def workers_together(answers: Mapping[int, Any]) -> Json:
    """The answer of all workers: causes that several have are one, and touch the proxies of all."""
    # A group of proxies is named by its first, which differs from worker to worker: its state and reason tell it apart.
    first = next(iter(answers.values()))
    causes: dict[object, dict[str, Any]] = {}
    for answer in answers.values():
        for cause in answer["causes"]:
            subject = "" if cause["touches"]["what"] == "proxies" and cause["kind"] == "proxies" else cause["subject"]
            key = (cause["kind"], str(subject), cause["state"], cause["why"])
            known = causes.get(key)
            causes[key] = cause if known is None else _joined(known, cause)
    found = sorted(causes.values(), key=lambda each: (-Gravity(each["severity"]).rank, -each["touches"]["count"]))
    totals = {**first["totals"]}
    for name in ("proxies", "in_sync", "touched", "gone"):
        totals[name] = sum(answer["totals"][name] for answer in answers.values())
    for cause in found:
        if cause["kind"] == "proxies" and cause["touches"]["of"] is not None:
            cause["touches"] = {**cause["touches"], "of": totals["proxies"]}  # also of workers where all is well
    ends = [each for answer in answers.values() if (each := answer["totals"]["next_certificate"]) is not None]
    totals["next_certificate"] = min(ends, key=lambda each: str(each["expires"]), default=None)
    more = max(answer["more_causes"] for answer in answers.values()) + max(0, len(found) - MOST_CAUSES)
    configured = totals["objects"] + totals["services"]
    return {
        **first,
        "sentence": sentence(len(found) + more, totals["touched"], totals["proxies"], configured),
        "severity": found[0]["severity"] if found else "ok",
        "causes": found[:MOST_CAUSES],
        "more_causes": more,
        "totals": totals,
        "last_hour": workers_rows_together([answer["last_hour"] for answer in answers.values()]),
    }


def _joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """A cause as two workers have it. If it does not touch proxies, it is the same at both."""
    if one["touches"]["what"] != "proxies":
        return one
    names = sorted({*one["touches"]["names"], *other["touches"]["names"]})[:NAMED]
    count = one["touches"]["count"] + other["touches"]["count"]
    of = one["touches"]["of"] + other["touches"]["of"] if one["touches"]["of"] is not None else None
    since = min((each for each in (one["since"], other["since"]) if each is not None), default=None)
    return {**one, "since": since, "touches": {**one["touches"], "count": count, "of": of, "names": names}}


routes = ApiTopic()


@routes.declare(
    "/now",
    "The control plane now: causes of what is wrong, the rollout, totals. Made for being asked often.",
    merge=workers_together,
    answers=PlaneNowAnswer,
    scope=Scope.ANY,
)
async def now(state: PlaneState, request: Request) -> Found:
    plane = PlaneNow.of(state)
    found = await plane.get()
    if not sees_all(request):
        found = plane.seen(found, sees(request), sees_name(request))
    begin = datetime.now(UTC) - LAST
    rows = takewhile(lambda row: row.record.at >= begin, remembered_rows(state))
    return PlaneNowAnswer(found, _rollout(state, request), [row_for(request, each) for each in islice(rows, SHOWN)])


def _rollout(state: PlaneState, request: Request) -> RolloutNow | None:
    found = rollout_for(request, state.rollouts)
    commands = COMMANDS.get(found.phase)
    if commands is None:
        return None
    visitor = visitor_of(request)
    is_refused = visitor is not None and bool(visitor.subject) and not visitor.may(Role.OPERATE)
    return RolloutNow(found, () if is_refused else [f"mesh-pilot rollout {each}" for each in commands])
