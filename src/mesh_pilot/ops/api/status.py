"""The control plane as a whole: what runs, what it has, what is wrong with it."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from starlette.requests import Request

from mesh_pilot import __version__
from mesh_pilot.model.json import Json
from mesh_pilot.ops.api.paging import number_of
from mesh_pilot.ops.api.route import NUMBER, TEXT, ApiRoute, Found, Parameter, object_of
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values import problems as reports
from mesh_pilot.ops.values.rejections import ENTRIES, Rejections, merged

COUNTS = object_of(services=NUMBER, endpoints=NUMBER, proxies=NUMBER, rejected=NUMBER)

LIMIT = Parameter("limit", f"Entries of each list, {ENTRIES} by default.", schema=NUMBER)


def routes(state: PlaneState) -> list[ApiRoute]:
    rejections = Rejections(state)

    async def status(_: Request) -> Found:
        return facts(state)

    async def rejected(request: Request) -> Found:
        return await rejections.listed_in_turns(number_of(request, "limit", ENTRIES, most=100_000))

    return [
        ApiRoute(
            "/status",
            "The control plane: version, readiness, what it has, what is stale.",
            status,
            schema=object_of(version=TEXT, started=TEXT, revision=NUMBER, counts=COUNTS, ready=TEXT),
            merge=_status_of_all,
        ),
        ApiRoute(
            "/rejections",
            "All that is refused, withheld, in conflict or failed, by list; `more` counts what is left out.",
            rejected,
            parameters=(LIMIT,),
            merge=merged,
            schema={"type": "object"},
        ),
    ]


def facts(state: PlaneState) -> Json:
    """The answer of ``/status``. It walks no list that grows with the mesh."""
    world = state.world.statistics()
    xds = state.xds.status.statistics()
    failures = state.failures()
    return {
        "version": __version__,
        "started": datetime.fromtimestamp(state.started, UTC).isoformat(),
        "uptime_seconds": round(time.time() - state.started),
        "revision": world.revision,
        "ready": not state.not_ready(),
        "not_ready": dict(state.not_ready()),
        "stale": dict(state.stale()),
        "problems": list(reports.ready_lines(failures, verbose=False)),
        "counts": {
            "services": world.services,
            "endpoints": world.endpoints,
            "objects": dict(world.configs),
            "rejected": world.rejected,
            "proxies": xds.connected,
            "internal_errors": len(failures),
        },
        "mesh": {"domain": state.world.settings["domain"], "root_namespace": root_namespace(state)},
        "workers": 1 + len(state.others.numbers if state.others is not None else ()),
    }


def root_namespace(state: PlaneState) -> str:
    return state.world.mesh.peek(()).root_namespace


def _status_of_all(answers: object) -> Json:
    assert isinstance(answers, dict)
    first, *others = answers.values()
    counts = dict(first["counts"])
    counts["proxies"] += sum(each["counts"]["proxies"] for each in others)
    return {**first, "counts": counts}
