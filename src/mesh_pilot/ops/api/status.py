"""The control plane as a whole: what runs, what it has, what is wrong with it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import attrs
from starlette.requests import Request

from mesh_pilot import __version__
from mesh_pilot.model.json import Json
from mesh_pilot.ops.api.paging import number_of
from mesh_pilot.ops.api.route import NUMBER, ApiRoute, Found, Parameter
from mesh_pilot.ops.api.visitors import Scope, sees, sees_all, sees_name
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values import problems
from mesh_pilot.ops.values.rejections import ENTRIES, Rejections, Seen, merged

LIMIT = Parameter("limit", f"Entries of each list, {ENTRIES} by default.", schema=NUMBER)


@attrs.frozen
class PlaneTotals:
    """Numbers of a control plane."""

    services: int
    endpoints: int
    objects: Mapping[str, int]
    """The number of objects in force, by kind."""
    rejected: int
    proxies: int
    internal_errors: int


@attrs.frozen(kw_only=True)
class PlaneStatus:
    """A control plane as a whole."""

    version: str
    started: datetime
    uptime_seconds: int
    revision: int
    ready: bool
    not_ready: Mapping[str, str]
    """The reasons, by source."""
    stale: Mapping[str, str]
    """The sources whose feed does not answer, with the reason."""
    problems: Sequence[str]
    counts: PlaneTotals
    mesh: Mapping[str, str]
    """``domain`` and ``root_namespace``."""
    workers: int


def routes(state: PlaneState) -> list[ApiRoute]:
    rejections = Rejections(state)

    async def status(_: Request) -> Found:
        return plane_status(state)

    async def rejected(request: Request) -> Found:
        limit = number_of(request, "limit", ENTRIES, most=100_000)
        return await rejections.listed_in_turns(limit, _seen_by(request))

    return [
        ApiRoute(
            "/status",
            "The control plane: version, readiness, what it has, what is stale.",
            status,
            answers=PlaneStatus,
            merge=_status_of_all,
            scope=Scope.ANY,
        ),
        ApiRoute(
            "/rejections",
            "All that is refused, withheld, in conflict or failed, by list; `more` counts what is left out.",
            rejected,
            parameters=(LIMIT,),
            merge=merged,
            answers=Mapping[str, Any],
            scope=Scope.ANY,
        ),
    ]


def _seen_by(request: Request) -> Seen | None:
    """Gives what the caller may view of an entry: None if it is about objects and proxies of other namespaces alone,
    else the entry without the names of proxies there. None: the caller may view all."""
    if sees_all(request):
        return None
    is_seen, is_seen_name = sees(request), sees_name(request)

    def answer(entry: dict[str, Any]) -> dict[str, Any] | None:
        objects = [each for name in ("object", "objects", "configs") for each in _several(entry.get(name))]
        proxies = [each for name in ("proxy", "proxies") for each in _several(entry.get(name))]
        own = [each for each in proxies if is_seen(each.rpartition(".")[2])]
        if not own and (objects or proxies) and not any(map(is_seen_name, objects)):
            return None
        held = ("names", "security") if "to_let_them_go" in entry else ()  # of a source's objects
        told = {name: [*filter(is_seen_name, entry[name])] for name in held if entry.get(name)}
        return {**entry, **told, **({"proxies": own} if "proxies" in entry else {})}

    return answer


def _several(value: Any) -> list[str]:
    """The names that a member of an entry has; some have a number there."""
    return value if isinstance(value, list) else [value] if value and isinstance(value, str) else []


def plane_status(state: PlaneState) -> PlaneStatus:
    """The answer of ``/status``. It walks no list that grows with the mesh."""
    world = state.world.statistics()
    failures = state.failures()
    connected = state.xds.status.statistics().connected
    return PlaneStatus(
        version=__version__,
        started=datetime.fromtimestamp(state.started, UTC),
        uptime_seconds=round(time.time() - state.started),
        revision=world.revision,
        ready=not state.not_ready(),
        not_ready=state.not_ready(),
        stale=state.stale(),
        problems=list(problems.ready_lines(failures, verbose=False)),
        counts=PlaneTotals(world.services, world.endpoints, world.configs, world.rejected, connected, len(failures)),
        mesh={"domain": state.world.settings["domain"], "root_namespace": state.world.mesh.peek(()).root_namespace},
        workers=1 + len(state.others.numbers if state.others is not None else ()),
    )


def _status_of_all(answers: object) -> Json:
    assert isinstance(answers, dict)
    first, *others = answers.values()
    counts = dict(first["counts"])
    counts["proxies"] += sum(each["counts"]["proxies"] for each in others)
    return {**first, "counts": counts}
