"""The sources of configuration and services."""

from __future__ import annotations

from starlette.requests import Request

from mesh_pilot.ops.api.route import ApiTopic, Found
from mesh_pilot.ops.api.visitors import Scope, sees_name
from mesh_pilot.ops.causes.sources import assess_sources
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.sources import SourceStatus, source_states

routes = ApiTopic()


@routes.declare(
    "/sources",
    "The sources: whether each has synced, what it gave, its last error; and whether it is stale or held.",
    answers=list[SourceStatus],
    scope=Scope.ANY,
)
async def listed(state: PlaneState, request: Request) -> Found:
    return list(source_states(state, assess_sources(state), sees_name(request)))
