"""The clusters whose services are read."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request

from mesh_pilot.model.json import Json
from mesh_pilot.ops.api.route import NUMBER, TEXT, ApiRoute, Found, list_of, object_of
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.clusters import clusters

_FLAG: Mapping[str, Json] = {"type": "boolean"}
CLUSTER = object_of(id=TEXT, own=_FLAG, status=TEXT, origin=TEXT, server=TEXT, items=NUMBER, trouble=TEXT)


def routes(state: PlaneState) -> list[ApiRoute]:
    async def listed(_: Request) -> Found:
        return [
            {
                "id": each.status.id,
                "own": each.is_own,
                "status": each.status.status.value,
                "origin": each.status.origin,
                "server": each.status.server,
                "items": each.items,
                "trouble": each.status.trouble,
            }
            for each in clusters(state)
        ]

    return [
        ApiRoute(
            "/clusters",
            "The clusters whose services are read: the own one, and those by kubeconfigs, with their state.",
            listed,
            schema=list_of(CLUSTER),
        )
    ]
