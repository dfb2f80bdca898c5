"""The paths of the HTTP servers, and what each answers."""

from __future__ import annotations

from collections.abc import Callable

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from mesh_pilot import __version__
from mesh_pilot.ops import conflicts, overview, patches, proxy_pages, refusals, world_pages
from mesh_pilot.ops.config_dump import config_dump
from mesh_pilot.ops.metrics import CONTENT_TYPE, Metrics
from mesh_pilot.ops.state import State

Answer = Callable[[Request], Response]

Work = Callable[[], Response]
"""What is left to do for a large answer; it uses only values that no longer change, so that a thread may do it."""


def debug_app(state: State) -> Starlette:
    """Everything: the web page, readiness, metrics, debug pages."""
    metrics = Metrics(state)
    return Starlette(
        routes=[
            _route("/", lambda _: HTMLResponse(overview.overview(state))),
            *_common(state, metrics),
            _route("/debug/syncz", lambda _: _json(proxy_pages.sync_status(state))),
            _route("/debug/adsz", lambda _: _json(proxy_pages.streams(state))),
            _large("/debug/config_dump", lambda request: _config_dump(state, request)),
            _route("/debug/rejections", lambda _: _json(_rejections(state))),
            _route("/debug/statistics", lambda _: _json(overview.statistics(state))),
            _large("/debug/configz", lambda request: _configs(state, request)),
            _route("/debug/registryz", lambda _: _json(world_pages.services(state.world))),
            _large("/debug/endpointz", lambda _: _endpoints(state)),
        ]
    )


def monitoring_app(state: State) -> Starlette:
    """What machines ask: metrics, readiness, version. Nothing that tells of the mesh's content."""
    return Starlette(routes=_common(state, Metrics(state)))


def _common(state: State, metrics: Metrics) -> list[Route]:
    return [
        _route("/ready", lambda _: _ready(state)),
        _route("/healthz", lambda _: PlainTextResponse("ok\n")),
        _route("/metrics", lambda _: Response(metrics.text(), media_type=CONTENT_TYPE)),
        _route("/version", lambda _: _json({"version": __version__})),
    ]


def _route(path: str, answer: Answer) -> Route:
    async def endpoint(request: Request) -> Response:
        return answer(request)

    return Route(path, endpoint)


def _large(path: str, prepare: Callable[[Request], Work]) -> Route:
    """A page that may take seconds in a large mesh: made in a thread, so that proxies do not wait for it."""

    async def endpoint(request: Request) -> Response:
        return await trio.to_thread.run_sync(prepare(request))

    return Route(path, endpoint)


def _json(value: world_pages.Json) -> JSONResponse:
    return JSONResponse(value)


def _ready(state: State) -> Response:
    reasons = state.not_ready()
    if not reasons:
        stale = "".join(f"{who}: {why}\n" for who, why in state.stale().items())
        return PlainTextResponse(f"ready\n{stale}")
    return PlainTextResponse("".join(f"{who}: {why}\n" for who, why in reasons.items()), status_code=503)


def _rejections(state: State) -> world_pages.Json:
    return {
        "configs": world_pages.rejections(state.world),
        "warnings": world_pages.warnings(state.world),
        "proxies": proxy_pages.rejections(state),
        "patches": patches.failed(state.catalog),
        "listeners": conflicts.listed(state.catalog),
        "authorization": refusals.listed(state.catalog),
    }


def _configs(state: State, request: Request) -> Work:
    query = request.query_params
    found = world_pages.configs(state.world, query.get("kind", ""), query.get("namespace", ""))
    return lambda: _json([world_pages.show_config(config) for config in found])


def _endpoints(state: State) -> Work:
    found = sorted(state.world.endpoints.items())
    return lambda: _json([world_pages.show_endpoints(key, held) for key, held in found])


def _config_dump(state: State, request: Request) -> Work:
    proxy_id = request.query_params.get("proxyID", "")
    dumps = state.xds.status.config_dump(proxy_id)
    if dumps is not None:
        return lambda: _json(config_dump(dumps))
    known = "".join(f"  {name}\n" for name in proxy_pages.names(state))
    asked = f"no connected proxy {proxy_id!r}" if proxy_id else "say which proxy: ?proxyID=NAME.NAMESPACE"
    answer = f"{asked}; connected are:\n{known or '  none'}\n"
    return lambda: PlainTextResponse(answer, status_code=404)
