"""The clusters whose services are read."""

from __future__ import annotations

from starlette.requests import Request

from mesh_pilot.ops.api.route import ApiRoute, Found
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.clusters import ClusterState, clusters


def routes(state: PlaneState) -> list[ApiRoute]:
    async def listed(_: Request) -> Found:
        return clusters(state)

    return [
        ApiRoute(
            "/clusters",
            "The clusters whose services are read: the own one, and those by kubeconfigs, with their state.",
            listed,
            answers=list[ClusterState],
        )
    ]
