"""The sources of configuration and services."""

from __future__ import annotations

import trio
from starlette.requests import Request

from mesh_pilot.model.json import Json
from mesh_pilot.ops.api.route import NUMBER, TEXT, ApiRoute, Found, list_of, object_of
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values import sources as source_pages
from mesh_pilot.sources.base.supervisor import SupervisorStatistics

SOURCE = object_of(
    name=TEXT,
    state=TEXT,
    items=NUMBER,
    rejected=NUMBER,
    restarts=NUMBER,
    last_error=TEXT,
    conditions=list_of(object_of()),
)


def routes(state: PlaneState) -> list[ApiRoute]:
    async def listed(_: Request) -> Found:
        conditions = list(source_pages.entries(state))
        now = trio.current_time()
        return [_shown(each.statistics(), conditions, now) for each in state.supervisors]

    return [
        ApiRoute(
            "/sources",
            "The sources: whether each has synced, what it gave, its last error; and whether it is stale or held.",
            listed,
            schema=list_of(SOURCE),
        )
    ]


def _shown(own: SupervisorStatistics, conditions: list[dict[str, Json]], now: float) -> Json:
    return {
        "name": own.name,
        "state": own.state.value,
        "ever_synced": own.ever_synced,
        "items": own.source.items,
        "rejected": own.source.rejected,
        "restarts": own.restarts,
        "last_error": own.last_error,
        "waiting_for": own.source.waiting_for,
        "events": own.events,
        "last_event_seconds_ago": None if own.last_event is None else round(now - own.last_event, 1),
        "conditions": [each for each in conditions if each["source"] == own.name],
    }
