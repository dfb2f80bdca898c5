"""The sources of configuration and services."""

from __future__ import annotations

from starlette.requests import Request

from mesh_pilot.ops.api.route import ApiRoute, Found
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.sources import SourceStatus, source_states


def routes(state: PlaneState) -> list[ApiRoute]:
    async def listed(_: Request) -> Found:
        return list(source_states(state))

    return [
        ApiRoute(
            "/sources",
            "The sources: whether each has synced, what it gave, its last error; and whether it is stale or held.",
            listed,
            answers=list[SourceStatus],
        )
    ]
