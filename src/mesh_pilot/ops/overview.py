"""The whole at a glance: the web page, and the statistics of every part."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from enum import Enum

import attrs

from mesh_pilot import __version__
from mesh_pilot.ops import conflicts, patches, proxy_pages
from mesh_pilot.ops.changes import describe
from mesh_pilot.ops.page import line, links, page, table
from mesh_pilot.ops.state import State
from mesh_pilot.ops.world_pages import Json

PAGES = (
    "/ready",
    "/metrics",
    "/debug/syncz",
    "/debug/adsz",
    "/debug/rejections",
    "/debug/configz",
    "/debug/registryz",
    "/debug/endpointz",
    "/debug/statistics",
    "/version",
)


def overview(state: State) -> str:
    """The page at ``/``."""
    reasons = state.not_ready()
    ready = line("ready", "good") if not reasons else line("not ready: " + _pairs(reasons), "bad")
    held = state.world.statistics()
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(held.configs.items()))
    up = timedelta(seconds=round(time.time() - state.started))
    facts = f"up {up}, revision {held.revision}: "
    facts += f"{held.services} services, {held.endpoints} endpoints, {kinds or 'no objects'}"
    refused = [
        (text.get("where", ""), text.get("object", ""), text.get("field", ""), "!" + text["reason"])
        for rejected in state.world.rejections()
        for text in describe(rejected)
    ]
    return page(
        f"mesh-pilot {__version__}",
        [
            ready,
            line(facts),
            table("Sources", ("name", "state", "objects", "refused", "restarts"), _sources(state), "none"),
            table(
                "Refused objects", ("where", "object", "field", "reason"), refused, "Everything is in force as written."
            ),
            *proxy_pages.tables(state),
            patches.failed_table(state.catalog),
            conflicts.conflict_table(state.catalog),
            links(PAGES),
        ],
    )


def statistics(state: State) -> Json:
    """What every long-lived part says of itself."""
    return {
        "world": jsonable(state.world.statistics()),
        "reducer": jsonable(state.reducer.statistics()),
        "memo": jsonable(state.world.memo.statistics()),
        "catalog": jsonable(state.catalog.statistics()),
        "xds": jsonable(state.xds.statistics()),
        "changes": jsonable(state.changes.statistics()),
        "sources": [jsonable(supervisor.statistics()) for supervisor in state.supervisors],
        "mcp": jsonable(state.mcp.statistics()),
        "grpc": [jsonable(server.statistics()) for server in state.rpc_servers],
        "http": [jsonable(server.statistics()) for server in state.http_servers],
    }


def jsonable(value: object) -> Json:
    """A frozen statistics object as JSON."""
    kind: type = type(value)
    if attrs.has(kind):
        return {field.name: jsonable(getattr(value, field.name)) for field in attrs.fields(kind)}
    match value:
        case Enum():
            return jsonable(value.value)
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            return {" ".join(key) if isinstance(key, tuple) else str(key): jsonable(v) for key, v in value.items()}
        case list() | tuple() | set() | frozenset():
            return [jsonable(item) for item in value]
        case _:
            return str(value)


def _sources(state: State) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for supervisor in state.supervisors:
        own = supervisor.statistics()
        trouble = own.last_error or own.source.waiting_for
        condition = f"{own.state}: {trouble}" if trouble else str(own.state)
        rows.append((own.name, condition, str(own.source.items), str(own.source.rejected), str(own.restarts)))
    return rows


def _pairs(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{who}: {why}" for who, why in reasons.items())
