"""The picture of the plane, for plans: whoever asks computes the plan, by the same code, on a machine of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from mesh_pilot import __version__
from mesh_pilot.base.in_turns import in_turns
from mesh_pilot.explain.plan.picture import proxy_rows, take_picture
from mesh_pilot.model.json import Json
from mesh_pilot.ops.api.route import ApiTopic, Found
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.truth import truth_now
from mesh_pilot.safety.quarantine.verdicts import name_of


def _listed(answers: Mapping[int, Any]) -> Json:
    """All workers' proxies, each once."""
    return [*{row["id"]: row for answer in answers.values() for row in answer}.values()]


routes = ApiTopic()


@routes.declare(
    "/picture",
    "The objects of all sources as they are in force, encoded, without secrets: what mesh-pilot plan computes with.",
)
async def picture(state: PlaneState, _: Request) -> Found:
    known = (await truth_now(state)).known
    kept_back = {name_of(key): truth.text for key, truth in known.items() if not truth.is_in_force}
    return take_picture(state.world, state.catalog, __version__, kept_back)


@routes.declare("/picture/proxies", "The connected proxies as they present themselves.", merge=_listed)
async def nodes(state: PlaneState, _: Request) -> Found:
    return await in_turns(proxy_rows(tuple(state.xds.status.proxies())))
