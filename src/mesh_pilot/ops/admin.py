"""Orders of an operator on this machine, over a Unix socket that is its owner's alone (``mesh-pilot admin``).

    GET  /status           sources that are stale, or of which something is held
    POST /accept/SOURCE    let go what is held of a source

Every order is logged, with the user who gave it.
"""

from __future__ import annotations

import os
from pathlib import Path

import structlog
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh_pilot.http.connection import PEER_UID
from mesh_pilot.model.events import Confirmed
from mesh_pilot.model.json import Json
from mesh_pilot.ops import source_pages
from mesh_pilot.ops.responses import json_response
from mesh_pilot.ops.state import PlaneState
from mesh_pilot.rpc.net import open_listeners
from mesh_pilot.sources.base import EventSender

log = structlog.get_logger(scope="admin")

LONGEST_PATH = 100
"""The bytes that the path of a Unix socket may have on every system."""

PATIENCE_SECONDS = 30.0
"""The time within which an order takes effect: more than the longest debounce, by default."""


def admin_app(state: PlaneState, events: EventSender) -> Starlette:
    """The app of the admin socket; ``events``: the reducer's."""

    async def status(_: Request) -> Response:
        return json_response({"sources": list(source_pages.entries(state))})

    async def accept(request: Request) -> Response:
        source = request.path_params["source"]
        refusal = _refusal(state, source)
        user = (request.scope.get("extensions") or {}).get(PEER_UID)
        if refusal is not None:
            code, reason = refusal
            log.info("order refused", order="accept", source=source, uid=user, reason=reason)
            return _answer(code, {"error": reason})
        held = state.reducer.intake.held()[source]
        log.warning("order", order="accept", source=source, uid=user, objects=held.objects, first=held.first_names)
        await events.send(Confirmed(source))
        with trio.move_on_after(PATIENCE_SECONDS):
            while source in state.reducer.intake.held():
                await state.reducer.wait_published()
            return _answer(200, {"source": source, "gone": held.objects, "first": held.first_names})
        return _answer(504, {"error": f"{source}: the order is taken, but is not in effect yet"})

    return Starlette(
        routes=[
            Route("/status", status),
            Route("/accept/{source:path}", accept, methods=["POST"]),
        ]
    )


async def open_admin_socket(path: Path) -> list[trio.SocketListener]:
    """Listen at a path, for the owner of the process alone. Raises AddressError or OSError."""
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise OSError(f"its path has more than {LONGEST_PATH} bytes; choose a shorter one with --admin-socket")
    return await open_listeners(f"unix://{path}")


def _refusal(state: PlaneState, source: str) -> tuple[int, str] | None:
    """The status and the reason for refusing to let go what is held of a source."""
    known = [supervisor.source.name for supervisor in state.supervisors]
    intake = state.reducer.intake
    if source not in known:
        return 404, f"there is no source {source!r}; there are {', '.join(known)}"
    if source in intake.held():
        return None
    if source in intake.stale():
        return 409, f"nothing of {source} is held: it is stale, and its picture stays until it has given a full one"
    held = ", ".join(intake.held())
    return 409, f"nothing of {source} is held" + (f"; held: {held}" if held else "")


def _answer(status: int, value: Json) -> Response:
    response = json_response(value)
    response.status_code = status
    return response
