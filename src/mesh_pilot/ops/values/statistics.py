"""The ``statistics()`` of every long-lived part."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import attrs

from mesh_pilot.model.json import Json
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.traffic.memory import MeshTraffic

EXPLAINED = 20
"""Derived values that ``/debug/derived?name=F`` explains, unless ``?limit=N`` asks for another number."""

MOST_EXPLAINED = 1000


def statistics(state: PlaneState) -> Json:
    """``/debug/statistics``."""
    return {
        "world": jsonable(state.world.statistics()),
        "reducer": jsonable(state.reducer.statistics()),
        "memo": jsonable(state.world.memo.statistics()),
        "catalog": jsonable(state.catalog.statistics()),
        "xds": jsonable(state.xds.statistics()),
        **({"quarantine": jsonable(state.quarantine.statistics())} if state.quarantine is not None else {}),
        **({"traffic": jsonable(_traffic(state.traffic))} if state.traffic is not None else {}),
        "changes": jsonable(state.changes.statistics()),
        "election": jsonable(state.election.statistics()),
        "sources": [jsonable(supervisor.statistics()) for supervisor in state.supervisors],
        "mcp": jsonable(state.mcp.statistics()),
        "grpc": [jsonable(server.statistics()) for server in state.rpc_servers],
        "http": [jsonable(server.statistics()) for server in state.http_servers],
    }


def _traffic(traffic: MeshTraffic) -> dict[str, object]:
    return {"table": traffic.table.statistics(), "memory": traffic.memory.statistics()}


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


def derived(state: PlaneState, query: Mapping[str, str], limit: int) -> Json:
    """``/debug/derived``: explanations of a function's values; without a name, the number of values and calls by
    function. ``limit``: how many are explained; 0 for the usual number."""
    memo = state.world.memo
    if not query.get("name"):
        found = memo.statistics()
        return {name: {"held": found.held.get(name, 0), "calls": calls} for name, calls in sorted(found.calls.items())}
    explained = memo.explain(query["name"], query.get("containing", ""), min(limit or EXPLAINED, MOST_EXPLAINED))
    return [jsonable(each) for each in explained]
