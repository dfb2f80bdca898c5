"""Pages that monitoring asks for, at both ports: readiness, metrics, version, own roots.

They are apart from all other pages because every control plane is asked for these at once, and for others by people.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh_pilot import __version__
from mesh_pilot.base.later import load
from mesh_pilot.model.redaction import redacted
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values import authority, problems, quarantine, rollout, sources
from mesh_pilot.ops.web.responses import json_response, text
from mesh_pilot.ops.web.trust_bundle import BundleEndpoint

if TYPE_CHECKING:
    from mesh_pilot.ops.metrics import Metrics


def monitoring_app(state: PlaneState) -> Starlette:
    """The app of the metrics port: metrics, readiness, version, own roots; nothing about the mesh's content."""
    return Starlette(routes=common_routes(state, verbose=False))


def common_routes(state: PlaneState, *, verbose: bool) -> list[Route]:
    """The routes of both ports. ``verbose``: ``/ready?verbose`` names resources."""

    async def metrics(_: Request) -> Response:
        from mesh_pilot.ops.metrics import CONTENT_TYPE

        return Response(redacted((await metrics_of(state)).text()), media_type=CONTENT_TYPE)

    bundle = BundleEndpoint(state.trust)
    return [
        route("/ready", lambda request: _ready(state, verbose=verbose and "verbose" in request.query_params)),
        route("/healthz", lambda _: text("ok\n")),
        Route("/metrics", metrics),
        route("/spiffe/bundle", lambda _: bundle.answer()),
        route("/version", lambda _: json_response({"version": __version__})),
    ]


async def metrics_of(state: PlaneState) -> Metrics:
    """The metrics of a plane, of which there is one; loaded with the first scrape."""
    await load("mesh_pilot.ops.metrics")
    from mesh_pilot.ops.metrics import Metrics

    found = state.kept.get(Metrics)
    if not isinstance(found, Metrics):
        found = state.kept[Metrics] = Metrics(state)
    return found


def route(path: str, answer: Callable[[Request], Response]) -> Route:
    """A route whose answer is there at once."""

    async def endpoint(request: Request) -> Response:
        return answer(request)

    return Route(path, endpoint)


def _ready(state: PlaneState, *, verbose: bool) -> Response:
    reasons = state.not_ready()
    if reasons:
        return text("".join(f"{who}: {why}\n" for who, why in reasons.items()), status=503)
    stale = [f"{who}: {why}" for who, why in state.stale().items()]
    lines = (
        *sources.ready_lines(state, verbose=verbose),
        *problems.ready_lines(state.failures(), verbose=verbose),
        *quarantine.ready_lines(state),
        *rollout.ready_lines(state),
        *authority.ready_lines(state),
    )
    return text("\n".join(["ready", *stale, *lines, ""]))
