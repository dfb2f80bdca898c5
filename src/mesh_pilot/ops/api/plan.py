"""The picture of the plane, for plans and suggestions: whoever asks computes them, by the same code, on a machine of
their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from mesh_pilot import __version__
from mesh_pilot.base.in_turns import in_turns
from mesh_pilot.explain.plan.picture import proxy_rows, take_picture
from mesh_pilot.model.json import Json
from mesh_pilot.ops.api.paging import number_of
from mesh_pilot.ops.api.route import NUMBER, ApiError, ApiTopic, Found, Parameter
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.observed_traffic import MOST_DAYS, ObservedTraffic, observed_traffic, traffic_of_days
from mesh_pilot.ops.values.truth import truth_now
from mesh_pilot.safety.quarantine.verdicts import name_of

DAYS = Parameter("days", f"Days to look back: 1 to {MOST_DAYS}, 7 by default.", schema=NUMBER)


def _listed(answers: Mapping[int, Any]) -> Json:
    """All workers' proxies, each once."""
    return [*{row["id"]: row for answer in answers.values() for row in answer}.values()]


def _all_reporting(answers: Mapping[int, Any]) -> Json:
    """The first worker's answer, which sums all workers' traffic, with the proxies that report to any."""
    first = next(iter(answers.values()))
    reporting = {row["node"]: row for answer in answers.values() for row in answer["reporting"]}
    return {**first, "reporting": [*reporting.values()]}


routes = ApiTopic()


@routes.declare(
    "/picture",
    "The objects in force, encoded, without secrets: what mesh-pilot plan computes with.",
)
async def picture(state: PlaneState, _: Request) -> Found:
    known = (await truth_now(state)).known
    kept_back = {name_of(key): truth.text for key, truth in known.items() if not truth.is_in_force}
    return take_picture(state.world, __version__, kept_back)


@routes.declare("/picture/proxies", "The connected proxies as they present themselves.", merge=_listed)
async def nodes(state: PlaneState, _: Request) -> Found:
    return await in_turns(proxy_rows(tuple(state.xds.status.proxies())))


@routes.declare(
    "/picture/traffic",
    "What each workload called in the last days; also which proxies report. mesh-pilot suggest computes with it.",
    parameters=(DAYS,),
    merge=_all_reporting,
    answers=ObservedTraffic,
    failures={409: "Traffic is not counted."},
)
async def traffic(state: PlaneState, request: Request) -> Found:
    days = number_of(request, "days", 7, most=MOST_DAYS, least=1)
    found = await traffic_of_days(state, days)
    if found is None:
        raise ApiError(409, "traffic is not counted here")
    return lambda: observed_traffic(found, days)
