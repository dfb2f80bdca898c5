"""The apps of the web and metrics ports: their paths and handlers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import structlog
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from mesh_pilot import __version__
from mesh_pilot.model.config import Config
from mesh_pilot.model.json import Json
from mesh_pilot.model.redaction import redacted
from mesh_pilot.ops import (
    ca_pages,
    caller_pages,
    election_pages,
    istiod_pages,
    overview,
    proxy_pages,
    quarantine_pages,
    reports,
    rollout_pages,
    source_pages,
    world_pages,
)
from mesh_pilot.ops.api.app import starlette_routes
from mesh_pilot.ops.api.orders import change_levels, json_body
from mesh_pilot.ops.api.route import ApiError
from mesh_pilot.ops.metrics import CONTENT_TYPE, Metrics
from mesh_pilot.ops.page.files import HEADERS, file_route
from mesh_pilot.ops.rejections import ENTRIES, Rejections
from mesh_pilot.ops.responses import NotFound, html, json_response, text
from mesh_pilot.ops.state import PlaneState
from mesh_pilot.ops.trust_bundle import BundleEndpoint

log = structlog.get_logger(scope="ops")

AT_ONCE = 2
"""Large pages generated at the same time; further requests wait, which bounds memory."""

EXPLAINED = 20
"""Derived values that ``/debug/derived?name=F`` explains, unless ``?limit=N`` asks for another number."""

Answer = Callable[[Request], Response]

Work = Callable[[], Json]
"""The rest of the work for a page. It uses only immutable values, so it can run in a thread."""


def debug_app(state: PlaneState) -> Starlette:
    """The app of the web port: web page, readiness, metrics, debug pages."""
    front = overview.Overview(state)
    rejections = Rejections(state)
    limiter = trio.CapacityLimiter(AT_ONCE)

    def page(path: str, values: Callable[[Request], Work]) -> Route:
        return _json_route(path, values, limiter)

    return Starlette(
        routes=[
            _route("/", lambda _: html(front.html(), HEADERS)),
            file_route(),
            *_common(state, verbose=True),
            _route("/debug", lambda _: html(overview.index(), HEADERS)),
            page("/debug/syncz", lambda _: _done(proxy_pages.sync_status(state))),
            page("/debug/history", lambda _: _done(proxy_pages.revisions(state))),
            page("/debug/adsz", lambda _: _done(proxy_pages.streams(state))),
            page("/debug/config_dump", lambda request: _config_dump(state, request)),
            page("/debug/rejections", lambda request: _done(rejections.listed(_limit(request)))),
            page("/debug/statistics", lambda _: _done(overview.statistics(state))),
            page("/debug/configz", lambda request: _configs(state, request)),
            page("/debug/registryz", lambda _: _done(world_pages.services(state.world))),
            page("/debug/endpointz", lambda _: _endpoints(state)),
            page("/debug/authenticationz", lambda _: _done(caller_pages.page(state))),
            page("/debug/ca", lambda _: _done(ca_pages.page(state))),
            page("/debug/leaderz", lambda _: _done(election_pages.page(state))),
            page("/debug/workloadz", lambda _: _done(workloads(state))),
            page("/debug/derived", lambda request: _done(_derived(state, request))),
            Route("/scopez", _scopes, methods=["GET"]),
            Route("/scopez", _set_scope, methods=["PUT"]),
            *starlette_routes(state),
            Mount("/debug", routes=_istiod_routes(state, limiter)),
        ]
    )


def _istiod_routes(state: PlaneState, limiter: trio.CapacityLimiter) -> list[BaseRoute]:
    """The pages below ``/debug`` that have istiod's names; those that are not there say why."""

    async def unknown(request: Request) -> Response:
        name = request.path_params["name"]
        if not name:
            return html(overview.index(), HEADERS)
        reason = istiod_pages.absent(name, request.query_params)
        return text(f"{reason or 'there is no such page; see /debug'}\n", status=404)

    def page(name: str, values: istiod_pages.Page) -> Route:
        return _json_route(f"/{name}", lambda request: values(state, request), limiter)

    return [*(page(*each) for each in istiod_pages.PAGES.items()), Route("/{name:path}", unknown)]


async def _scopes(_: Request) -> Response:
    return json_response(istiod_pages.scopes())


async def _set_scope(request: Request) -> Response:
    try:
        change_levels(istiod_pages.change_scope(await json_body(request)))
    except (ApiError, ValueError) as error:
        return text(f"{error}\n", status=400)
    return json_response(istiod_pages.scopes())


def monitoring_app(state: PlaneState) -> Starlette:
    """The app of the metrics port: metrics, readiness, version, own roots; nothing about the mesh's content."""
    return Starlette(routes=_common(state, verbose=False))


def _common(state: PlaneState, *, verbose: bool) -> list[Route]:
    metrics = Metrics(state)
    bundle = BundleEndpoint(state.trust)
    return [
        _route("/ready", lambda request: _ready(state, verbose=verbose and "verbose" in request.query_params)),
        _route("/healthz", lambda _: text("ok\n")),
        _route("/metrics", lambda _: Response(redacted(metrics.text()), media_type=CONTENT_TYPE)),
        _route("/spiffe/bundle", lambda _: bundle.answer()),
        _route("/version", lambda _: json_response({"version": __version__})),
    ]


def _route(path: str, answer: Answer) -> Route:
    async def endpoint(request: Request) -> Response:
        return answer(request)

    return Route(path, endpoint)


def _json_route(path: str, values: Callable[[Request], Work], limiter: trio.CapacityLimiter) -> Route:
    """A page that may take seconds in a large mesh: it is encoded in a thread, so that proxies do not wait."""

    async def endpoint(request: Request) -> Response:
        pretty = {"true": True, "false": False}.get(request.query_params.get("pretty", ""))
        async with limiter:
            try:
                work = values(request)
            except NotFound as error:
                return text(str(error), status=404)
            return await trio.to_thread.run_sync(lambda: json_response(work(), pretty=pretty))

    return Route(path, endpoint)


def _done(value: Json) -> Work:
    return lambda: value


def _limit(request: Request) -> int:
    asked = request.query_params.get("limit", "")
    return int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 10 else ENTRIES


def _ready(state: PlaneState, *, verbose: bool) -> Response:
    reasons = state.not_ready()
    if reasons:
        return text("".join(f"{who}: {why}\n" for who, why in reasons.items()), status=503)
    stale = [f"{who}: {why}" for who, why in state.stale().items()]
    problems = (
        *source_pages.ready_lines(state, verbose=verbose),
        *reports.ready_lines(state.failures(), verbose=verbose),
        *quarantine_pages.ready_lines(state),
        *rollout_pages.ready_lines(state),
        *ca_pages.ready_lines(state),
    )
    return text("\n".join(["ready", *stale, *problems, ""]))


def workloads(state: PlaneState) -> list[Json]:
    """``/debug/workloadz``: the workloads that registered themselves, or whose health was reported."""
    return [dict(row) for row in state.registrations.shown()] if state.registrations is not None else []


def _configs(state: PlaneState, request: Request) -> Work:
    query = request.query_params
    found = world_pages.configs(state.world, query.get("kind", ""), query.get("namespace", ""))
    return lambda: [_shown(config) for config in found]


def _shown(config: Config) -> Json:
    """A config, or an error in its place if it cannot be shown."""
    try:
        return world_pages.show_config(config)
    except Exception as error:
        return {"object": str(config.key), "error": f"cannot be shown: {type(error).__name__}: {error}"}


def _derived(state: PlaneState, request: Request) -> Json:
    """``/debug/derived``: explanations of a function's values; without a name, the number of values and calls by
    function."""
    query = request.query_params
    memo = state.world.memo
    if not query.get("name"):
        found = memo.statistics()
        return {name: {"held": found.held.get(name, 0), "calls": calls} for name, calls in sorted(found.calls.items())}
    limit = min(_limit(request), ENTRIES) if query.get("limit") else EXPLAINED
    return [overview.jsonable(e) for e in memo.explain(query["name"], query.get("containing", ""), limit)]


def _endpoints(state: PlaneState) -> Work:
    found = sorted(state.world.endpoints.items())
    return lambda: [world_pages.show_endpoints(key, endpoints) for key, endpoints in found]


def _config_dump(state: PlaneState, request: Request) -> Work:
    proxy_id = request.query_params.get("proxyID", "")
    dumps = state.xds.status.config_dump(proxy_id)
    if dumps is not None:
        return partial(world_pages.explained_dump, state.world, dumps)
    raise NotFound(proxy_pages.not_connected(state, proxy_id))
