"""Orders of an operator on this machine, over a Unix socket that is its owner's alone (``mesh-pilot admin``).

    GET  /status           sources that are stale, or of which something is held
    POST /accept/SOURCE    release what is held of a source
    any other path         as at the web port, with the role operate

Every order is logged, with the user who gave it.
"""

from __future__ import annotations

import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from mesh_pilot.model.json import as_json
from mesh_pilot.net.http.connection import App
from mesh_pilot.ops.api.accept import accept_held
from mesh_pilot.ops.api.app import error_response
from mesh_pilot.ops.api.route import ApiError
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.sources import source_conditions
from mesh_pilot.ops.web.responses import json_response

log = structlog.get_logger(scope="admin")


def admin_app(state: PlaneState, web: App) -> Starlette:
    """The app of the admin socket; ``web``: the app of the web port."""

    async def status(_: Request) -> Response:
        return json_response({"sources": [as_json(each) for each in source_conditions(state)]})

    async def accept(request: Request) -> Response:
        try:
            return json_response(as_json(await accept_held(state, request.path_params["source"], request)))
        except ApiError as error:
            return error_response(error.status, str(error))

    return Starlette(
        routes=[
            Route("/status", status),
            Route("/accept/{source:path}", accept, methods=["POST"]),
            Mount("/", web),
        ]
    )
