"""The clusters whose services are read."""

from __future__ import annotations

from starlette.requests import Request

from mesh_pilot.ops.api.route import ApiTopic, Found
from mesh_pilot.ops.api.visitors import Scope
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.clusters import ClusterState, clusters

routes = ApiTopic()


@routes.declare(
    "/clusters",
    "The clusters whose services are read: the own one, and those by kubeconfigs, with their state.",
    answers=list[ClusterState],
    scope=Scope.ANY,
)
async def listed(state: PlaneState, _: Request) -> Found:
    return clusters(state)
