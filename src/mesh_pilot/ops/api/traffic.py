"""Traffic: who calls whom and how well, the services that are called, and the proxies that count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import attrs
import trio
from starlette.requests import Request

from mesh_pilot.base.in_turns import in_turns
from mesh_pilot.model.json import SPREAD
from mesh_pilot.ops.api.paging import (
    LIMIT,
    OFFSET,
    SEARCH,
    SORT,
    STATE,
    AssessedEntry,
    AssessedPiece,
    Paging,
    Piece,
    number_of,
)
from mesh_pilot.ops.api.route import NUMBER, ApiError, ApiTopic, Found, Parameter
from mesh_pilot.ops.api.visitors import Scope, sees
from mesh_pilot.ops.explain.listener_traffic import ListenerTraffic, PolicyTraffic, listener_rows, policy_rows
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.proxies import find_proxy
from mesh_pilot.ops.values.service_traffic import (
    ConfiguredEdge,
    NamespaceTraffic,
    ServiceTraffic,
    configured_edges,
    edges_seen,
    services_seen,
)
from mesh_pilot.ops.values.traffic import (
    USUAL_SECONDS,
    GroupBy,
    SeenRow,
    TrafficChange,
    TrafficSeen,
    TrafficWindow,
    traffic_seen,
    traffic_window,
)
from mesh_pilot.ops.values.traffic_ends import INBOUND_KINDS
from mesh_pilot.ops.values.traffic_reporters import ReporterState
from mesh_pilot.traffic.table import SLOT_SECONDS, WINDOW_SECONDS

T = TypeVar("T")

SECONDS = Parameter(
    "seconds",
    f"The length of the time: {SLOT_SECONDS:.0f} to {WINDOW_SECONDS:.0f}, {USUAL_SECONDS} by default.",
    schema=NUMBER,
)
SERVICE = Parameter(
    "service", "Only what is about this host: a service's, or its name without the domain.", is_repeated=True
)
PROXY = Parameter("proxy", "Only what this proxy counted: NAME.NAMESPACE or a node id.")
NAMESPACE = Parameter("namespace", "Only what is of this namespace, on either side.")
BY = Parameter("by", "What callers are: `workload`, `proxy` (the default with `proxy`) or `namespace`.")
INBOUND = Parameter("inbound", "`true`: also what proxies counted of the applications behind them.")
ONLY = Parameter(
    "only",
    "`unrouted`: only calls to services that no VirtualService names; `denied`: to those where policies deny calls.",
)
PIECE = (LIMIT, OFFSET)


@attrs.frozen
class TrafficAnswer:
    """Edges, and the time that they are of."""

    window: TrafficWindow = attrs.field(metadata=SPREAD)
    piece: AssessedPiece[ConfiguredEdge] = attrs.field(metadata=SPREAD)


@attrs.frozen
class ServicesAnswer:
    """Services that were called, and the time that their numbers are of."""

    window: TrafficWindow = attrs.field(metadata=SPREAD)
    piece: AssessedPiece[ServiceTraffic] = attrs.field(metadata=SPREAD)
    namespaces: Sequence[NamespaceTraffic]
    """All namespaces with services that were called, that which got worse most first."""


@attrs.frozen
class ListenersAnswer:
    """Listeners and rules of policies that counted something."""

    listeners: Piece[ListenerTraffic]
    policies: Sequence[PolicyTraffic]
    """The rules at the same proxies, at most as many as ``limit``."""


routes = ApiTopic()


@routes.declare(
    "/traffic",
    "Who calls whom: requests, errors and more of each edge, next to ten minutes ago; what got worse comes first.",
    parameters=(SERVICE, PROXY, NAMESPACE, SECONDS, BY, INBOUND, ONLY, SEARCH, STATE, SORT, *PIECE),
    answers=TrafficAnswer,
    scope=Scope.ANY,
)
async def edges(state: PlaneState, request: Request) -> Found:
    query, paging = dict(request.query_params), Paging.of(request)
    seen = await _seen(state, request)
    namespace, proxy = query.pop("namespace", ""), query.get("proxy", "")
    is_meant, is_seen = _meant(request), sees(request)
    by = _by(query, GroupBy.PROXY if proxy else GroupBy.WORKLOAD)
    if proxy:
        rows = await configured_edges(state, seen, by, _rows_of(state, seen, proxy))
    else:
        rows = await edges_seen(state, seen, by)
    with_inbound, only = query.get("inbound") == "true", query.get("only", "")
    if only not in ("", *_ONLY):
        raise ApiError(400, f"only={only[:40]}: must be one of {', '.join(_ONLY)}")

    def is_wanted(row: ConfiguredEdge) -> bool:
        called = row.edge.called
        return (
            (not only or _ONLY[only](row))
            and (with_inbound or called.kind not in INBOUND_KINDS)
            and namespace in ("", row.edge.caller.namespace, called.namespace)
            and any(each and is_seen(each) for each in (row.edge.caller.namespace, called.namespace))
            and is_meant(called.name)
        )

    entries = await in_turns(
        _entry(number, row, row.edge.change, (row.edge.caller.name, row.edge.called.name))
        for number, row in enumerate(rows)
        if is_wanted(row)
    )
    piece = await trio.to_thread.run_sync(lambda: paging.assessed(entries, query, _itself))
    return TrafficAnswer(traffic_window(state, seen), piece)


_ONLY: dict[str, Callable[[ConfiguredEdge], bool]] = {
    "unrouted": lambda row: row.is_routed is False,
    "denied": lambda row: bool(row.denied),
}


@routes.declare(
    "/traffic/services",
    "The services that are called: the sum of each one's callers, next to what its own proxies counted.",
    parameters=(SERVICE, NAMESPACE, SECONDS, SEARCH, STATE, SORT, *PIECE),
    answers=ServicesAnswer,
    scope=Scope.ANY,
)
async def services(state: PlaneState, request: Request) -> Found:
    query, paging = dict(request.query_params), Paging.of(request)
    seen = await _seen(state, request)
    found = await services_seen(state, seen)
    namespace, is_meant, is_seen = query.pop("namespace", ""), _meant(request), sees(request)
    entries = [
        _entry(number, row, row.change, (row.service.name,))
        for number, row in enumerate(found.services)
        if namespace in ("", row.service.namespace) and is_meant(row.service.name) and is_seen(row.service.namespace)
    ]
    piece = await trio.to_thread.run_sync(lambda: paging.assessed(entries, query, _itself))
    namespaces = [each for each in found.namespaces if is_seen(each.namespace)]
    return ServicesAnswer(traffic_window(state, seen), piece, namespaces)


@routes.declare(
    "/traffic/listeners",
    "What no route matched, and what policies admitted and denied: by listener of a proxy, and by rule.",
    parameters=(PROXY, NAMESPACE, SECONDS, *PIECE),
    answers=ListenersAnswer,
    scope=Scope.ANY,
)
async def listeners(state: PlaneState, request: Request) -> Found:
    query, paging = request.query_params, Paging.of(request)
    seen = await _seen(state, request)
    proxy, namespace = query.get("proxy", ""), query.get("namespace", "")
    rows = _rows_of(state, seen, proxy) if proxy else seen.rows
    is_seen = sees(request)
    own = [row for row in rows if is_seen(row.proxy.workload.namespace)]
    chosen = attrs.evolve(seen, rows=[row for row in own if namespace in ("", row.proxy.workload.namespace)])
    found = await in_turns(listener_rows(state, chosen))
    piece = paging.piece(((f"{each.proxy}/{each.listener}/{n:07}", each) for n, each in enumerate(found)), _itself)
    return ListenersAnswer(piece, policy_rows(chosen)[: paging.limit])


@routes.declare(
    "/traffic/proxies",
    "The proxies that report traffic, and connected ones that do not, with the reason.",
    parameters=(NAMESPACE, SEARCH, STATE, SORT, *PIECE),
    answers=AssessedPiece[ReporterState],
    scope=Scope.ANY,
)
async def proxies(state: PlaneState, request: Request) -> Found:
    query, paging = dict(request.query_params), Paging.of(request)
    seen, is_seen = await traffic_seen(state, USUAL_SECONDS), sees(request)
    found = [
        AssessedEntry(
            f"{each.proxy}/{n:07}", each, (each.proxy,), each.namespace, each.reports, _SEVERITY[each.reports]
        )
        for n, each in enumerate(seen.part.reporters)
        if is_seen(each.namespace)
    ]
    return lambda: paging.assessed(found, query, _itself)


_SEVERITY = {"requests": "ok", "attempts": "ok", "nothing": "warning"}


def _itself(value: T) -> T:
    return value


async def _seen(state: PlaneState, request: Request) -> TrafficSeen:
    seconds = number_of(request, "seconds", USUAL_SECONDS, most=int(WINDOW_SECONDS), least=int(SLOT_SECONDS))
    return await traffic_seen(state, seconds)


def _rows_of(state: PlaneState, seen: TrafficSeen, proxy: str) -> list[SeenRow]:
    """The rows that a proxy counted, whether it is still connected or not."""
    own = find_proxy(state, proxy)
    if own is not None:
        return [row for row in seen.rows if row.proxy.node == own.id]
    return [row for row in seen.rows if proxy in (row.proxy.node, row.proxy.name)]


def _by(query: dict[str, str], usual: GroupBy) -> GroupBy:
    asked = query.get("by") or usual.value
    if asked not in set(GroupBy):
        raise ApiError(400, f"by={asked[:40]}: must be one of {', '.join(GroupBy)}")
    return GroupBy(asked)


def _meant(request: Request) -> Callable[[str], bool]:
    """True of the hosts that a request asks for."""
    asked = {each.lower() for each in request.query_params.getlist("service") if each}
    begins = tuple(f"{each}." for each in asked)
    return lambda host: not asked or host in asked or host.startswith(begins)


def _entry(number: int, row: T, change: TrafficChange, texts: Sequence[str]) -> AssessedEntry[T]:
    state = "worse" if change.is_worse else "failing" if change.now.failures else "well"
    severity = {"worse": "error", "failing": "warning", "well": "ok"}[state]
    return AssessedEntry(f"{number:07}", row, texts, "", state, severity)
