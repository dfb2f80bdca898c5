"""The app of the API."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route

from mesh_pilot.model.json import Json, form_of
from mesh_pilot.ops.api import (
    analysis,
    clusters,
    config,
    describe,
    diagnostics,
    events,
    gateways,
    graph,
    history,
    host_routes,
    now,
    object_services,
    objects,
    orders,
    plan,
    proxies,
    proxy,
    resources,
    rollout,
    search,
    services,
    sources,
    status,
    traffic,
    whoami,
    why,
)
from mesh_pilot.ops.api.openapi import document
from mesh_pilot.ops.api.paging import Paging, piece_of
from mesh_pilot.ops.api.route import ApiError, ApiRoute, Found
from mesh_pilot.ops.api.visitors import Forbidden, Scope, needed, sees_all
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.proxies import find_proxy
from mesh_pilot.ops.web.responses import accepts_gzip, json_response
from mesh_pilot.replicas.workers.questions import WORKER_HOST
from mesh_pilot.xds.ads.proxy_names import SeveralProxies, is_pattern

BASE = "/api/v1"

AT_ONCE = 2
"""Answers encoded at the same time; further requests wait, which bounds memory."""

ALWAYS = ("pretty", "worker")
"""Parameters that every route has: ``pretty`` for people, and ``worker`` for the answer of that worker alone."""


TOPICS = (
    status,
    now,
    whoami,
    objects,
    object_services,
    config,
    services,
    proxies,
    sources,
    clusters,
    history,
    traffic,
    orders,
    host_routes,
    gateways,
    graph,
    resources,
    rollout,
    search,
    analysis,
    events,
    plan,
    why,
    describe,
    diagnostics,
    proxy,
)
"""The modules with routes, in the order of the documentation."""


def api_routes(state: PlaneState) -> list[ApiRoute]:
    """Every route of the API."""

    async def described(_: Request) -> Found:
        return document(BASE, found)

    found = [route for topic in TOPICS for route in topic.routes(state)]
    found.append(ApiRoute("/openapi.json", "This API in OpenAPI 3.1.", described))
    return found


def starlette_routes(state: PlaneState) -> list[BaseRoute]:
    """The routes of the web port that are the API's."""
    limiter = trio.CapacityLimiter(AT_ONCE)
    routes = [_starlette_route(state, route, limiter) for route in api_routes(state)]
    return [*routes, Route(BASE + "/{rest:path}", _Unknown(routes))]


def _starlette_route(state: PlaneState, route: ApiRoute, limiter: trio.CapacityLimiter) -> Route:
    async def endpoint(request: Request) -> Response:
        try:
            _check_query(route, request)
            _check_proxy(state, route, request)
            found = await route.answer(request)
            if isinstance(found, Response):
                return found
            cut, write = piece_for(route, request), form_of(route.answers).write
            pretty = {"true": True, "false": False}.get(request.query_params.get("pretty", ""))
            is_gzip = accepts_gzip(request.headers)
            async with limiter:
                return await trio.to_thread.run_sync(
                    lambda: json_response(
                        cut(write(found() if callable(found) else found)), pretty=pretty, is_gzip=is_gzip
                    )
                )
        except ApiError as error:
            return error_response(error.status, str(error), error.more)
        except Forbidden as error:
            return error_response(403, str(error))
        except SeveralProxies as error:
            return several_proxies(error)

    return Route(BASE + route.path, endpoint, methods=[route.method])


def piece_for(route: ApiRoute, request: Request) -> Callable[[Json], Json]:
    """The piece of a list that a request wants. Raises ApiError."""
    query = dict(request.query_params)
    is_part = request.headers.get("host") == WORKER_HOST and "limit" not in query
    if not route.sorted_by or is_part:  # a worker's part is cut with those of the others
        return lambda found: found
    paging = Paging.of(request) if "limit" in query else None
    return lambda found: piece_of(found, route.sorted_by, query, paging)


def error_response(status: int, reason: str, more: Mapping[str, Json] | None = None) -> Response:
    """An error of the API."""
    response = json_response({"error": reason, **(more or {})})
    response.status_code = status
    return response


def several_proxies(error: SeveralProxies) -> Response:
    """The answer to a name that several proxies have: each with what it can be asked for by."""
    shown: Json = [
        {"proxy": each.name, "proxy_id": each.id, "addresses": [*each.ip_addresses], "peer": each.peer}
        for each in error.proxies
    ]
    return error_response(409, str(error), {"proxies": shown})


def _check_query(route: ApiRoute, request: Request) -> None:
    query = request.query_params
    known = [each.name for each in route.parameters if f"{{{each.name}" not in route.path and not each.is_header]
    for name in query:
        if name not in known and name not in ALWAYS:
            there_are = f"there are {', '.join(known)}" if known else "it takes none"
            raise ApiError(400, f"{route.method} {BASE}{route.path} has no parameter {name[:40]!r}; {there_are}")
    for each in route.parameters:
        if each.is_required and each.name in known and not query.get(each.name):
            raise ApiError(
                400, f"{route.method} {BASE}{route.path} needs the parameter {each.name}: {each.description}"
            )


def _check_proxy(state: PlaneState, route: ApiRoute, request: Request) -> None:
    """Raises Forbidden where a route is about a proxy of a namespace in which the caller lacks the role."""
    if route.scope is not Scope.PROXY:
        return
    name = proxy_named(route, request)
    proxy = find_proxy(state, name) if name and not is_pattern(name) else None
    if proxy is not None:
        needed(request, route.role, proxy.namespace)
    elif not name or is_pattern(name):
        needed(request, route.role)
    elif not sees_all(request):
        raise ApiError(404, f"no connected proxy {name[:200]!r}")


def proxy_named(route: ApiRoute, request: Request) -> str:
    """The name of a proxy in a request; empty without one."""
    parameter = next((each.name for each in route.parameters if each.is_proxy), "")
    return str(request.path_params.get(parameter) or request.query_params.get(parameter, ""))


class _Unknown:
    """The answer to a path or a method that the API does not have."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = routes

    async def __call__(self, scope: dict[str, object], receive: Callable[..., object], send: object) -> None:
        request = Request(scope)
        methods = sorted(_methods_at(self._routes, request))
        if methods:
            response = error_response(405, f"{request.scope['path']} takes {', '.join(methods)}, not {request.method}")
            response.headers["allow"] = ", ".join(methods)
        else:
            response = error_response(404, f"no {request.scope['path'][:200]} in this API; see {BASE}/openapi.json")
        await response(scope, receive, send)  # type: ignore[arg-type]  # the types of ASGI, which are not exported


def _methods_at(routes: Iterable[Route], request: Request) -> set[str]:
    return {
        method
        for route in routes
        if route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
