"""The app of the API."""

from __future__ import annotations

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mesh_pilot.ops.api import proxies
from mesh_pilot.ops.api.route import ApiError, ApiRoute
from mesh_pilot.ops.responses import json_response
from mesh_pilot.ops.state import PlaneState

BASE = "/api/v1"

AT_ONCE = 2
"""Answers encoded at the same time; further requests wait, which bounds memory."""


def api_routes(state: PlaneState) -> list[ApiRoute]:
    """Every route of the API."""
    return [*proxies.routes(state)]


def starlette_routes(state: PlaneState) -> list[BaseRoute]:
    """The routes of the web port that are the API's."""
    limiter = trio.CapacityLimiter(AT_ONCE)
    return [_starlette_route(route, limiter) for route in api_routes(state)]


def _starlette_route(route: ApiRoute, limiter: trio.CapacityLimiter) -> Route:
    async def endpoint(request: Request) -> Response:
        try:
            found = await route.answer(request)
        except ApiError as error:
            response = json_response({"error": str(error)})
            response.status_code = error.status
            return response
        if isinstance(found, Response):
            return found
        async with limiter:
            return await trio.to_thread.run_sync(lambda: json_response(found() if callable(found) else found))

    return Route(BASE + route.path, endpoint, methods=[route.method])
