"""The order to release what is held of a source."""

from __future__ import annotations

import attrs
import structlog
import trio
from starlette.requests import Request

from mesh_pilot.model.events import Confirmed
from mesh_pilot.net.http.connection import PEER_UID
from mesh_pilot.ops.api.route import ApiError
from mesh_pilot.ops.api.visitors import visitor_of
from mesh_pilot.ops.plane.state import PlaneState

log = structlog.get_logger(scope="admin")

PATIENCE_SECONDS = 30.0
"""The time within which an order takes effect: more than the longest debounce, by default."""


@attrs.frozen
class AcceptedLoss:
    """Objects of a source that are gone for good."""

    source: str
    gone: int
    first: str
    """The names of the first."""


async def accept_held(state: PlaneState, source: str, request: Request) -> AcceptedLoss:
    """Release what is held of a source, and wait until it has taken effect; the log names who asks. Raises ApiError."""
    caller = _caller(request)
    refusal = _refusal(state, source)
    if refusal is not None:
        log.info("order refused", order="accept", source=source, **caller, reason=str(refusal))
        raise refusal
    if state.events is None:
        raise ApiError(409, "this worker has no sources")
    held = state.reducer.intake.held()[source]
    log.warning("order", order="accept", source=source, **caller, objects=held.objects, first=held.first_names)
    await state.events.send(Confirmed(source))
    with trio.move_on_after(PATIENCE_SECONDS):
        while source in state.reducer.intake.held():
            await state.reducer.wait_published()
        return AcceptedLoss(source, held.objects, held.first_names)
    raise ApiError(504, f"{source}: the order is taken, but is not in effect yet")


def _caller(request: Request) -> dict[str, object]:
    """The field of the log that names who gives an order: a user of this machine at the socket, else a visitor."""
    uid = (request.scope.get("extensions") or {}).get(PEER_UID)
    if uid is not None:
        return {"uid": uid}
    visitor = visitor_of(request)
    return {"user": visitor.name, **visitor.shown_subject} if visitor is not None else {"user": "unknown"}


def _refusal(state: PlaneState, source: str) -> ApiError | None:
    """The reason for refusing to release what is held of a source."""
    known = [supervisor.source.name for supervisor in state.supervisors]
    intake = state.reducer.intake
    if source not in known:
        return ApiError(404, f"there is no source {source!r}; there are {', '.join(known)}")
    if source in intake.held():
        return None
    if source in intake.stale():
        return ApiError(
            409, f"nothing of {source} is held: it is stale, and its picture stays until it has given a full one"
        )
    held = ", ".join(intake.held())
    return ApiError(409, f"nothing of {source} is held" + (f"; held: {held}" if held else ""))
