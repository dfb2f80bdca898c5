"""The apps of the web and metrics ports: their paths and handlers.

A path belongs to one of four: the API (`api`), the page, which is static files over the API (`page`), istiod's debug
pages in istiod's shapes (`istiod`), or what is left here: monitoring, and the few debug pages that show what none
of the others does. All of them show the values of `values`; a debug page that repeats a path of the API is not
added. What is wrong with a page costs that page only: errors become answers in the HTTP server.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh_pilot.model.json import Json
from mesh_pilot.ops.api.app import starlette_routes
from mesh_pilot.ops.api.orders import change_levels, json_body
from mesh_pilot.ops.api.route import ApiError
from mesh_pilot.ops.istiod import pages as istiod
from mesh_pilot.ops.monitoring import common_routes, route
from mesh_pilot.ops.page.files import file_routes
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values import authority, callers, replicas
from mesh_pilot.ops.values.rejections import ENTRIES, Rejections
from mesh_pilot.ops.values.statistics import derived, statistics
from mesh_pilot.ops.web.responses import NotFound, json_response, text
from mesh_pilot.xds.ads.proxy_names import SeveralProxies

AT_ONCE = 2
"""Large pages generated at the same time; further requests wait, which bounds memory."""

Work = Callable[[], Json]
"""The rest of the work for a page. It uses only immutable values, so it can run in a thread."""


@attrs.frozen
class DebugPage:
    """A page in JSON at the web port."""

    path: str
    about: str
    """A line of the list at ``/debug``."""
    values: Callable[[Request], Work]
    """Raises NotFound."""


OTHERS = {
    "/ready": "readiness: whether proxies are let in, and what is wrong though they are; ?verbose names resources",
    "/metrics": "metrics for Prometheus",
    "/debug/list": "the pages by istiod's names",
    "/scopez": "levels of the log; PUT changes one",
    "/version": "the version of mesh-pilot",
    "/spiffe/bundle": "the mesh's own roots, for other trust domains",
    "/api/v1/openapi.json": "the API",
}
"""The paths of the list at ``/debug`` that are no ``DebugPage``."""


def debug_pages(state: PlaneState) -> list[DebugPage]:
    """The debug pages of this program."""
    rejections = Rejections(state)

    def page(path: str, about: str, values: Callable[[Request], Json]) -> DebugPage:
        def work(request: Request) -> Work:
            found = values(request)
            return lambda: found

        return DebugPage(path, about, work)

    return [
        page(
            "/debug/rejections",
            "what is refused, withheld, doubtful, in conflict, or failed",
            lambda request: rejections.listed(_limit(request, ENTRIES)),
        ),
        page("/debug/authenticationz", "who was let in, who was refused, and why", lambda _: callers.page(state)),
        page(
            "/debug/ca", "the CA: who signs, trusted roots, the rotation of the root", lambda _: authority.page(state)
        ),
        page("/debug/leaderz", "which replica leads, and which there are", lambda _: replicas.page(state)),
        page(
            "/debug/workloadz",
            "workloads that registered themselves, and the health that was reported",
            lambda _: [dict(row) for row in state.registrations.shown()] if state.registrations is not None else [],
        ),
        page(
            "/debug/derived",
            "what is memoised: ?name=FUNCTION&containing=TEXT tells what a value read, and what changed last",
            lambda request: derived(state, request.query_params, _limit(request, 0)),
        ),
        page("/debug/statistics", "what each part says of itself", lambda _: statistics(state)),
    ]


def debug_app(state: PlaneState) -> Starlette:
    """The app of the web port: web page, readiness, metrics, debug pages."""
    state.looked_at.set()
    limiter = trio.CapacityLimiter(AT_ONCE)
    own = debug_pages(state)
    of_istiod = [
        DebugPage(f"/debug/{name}", "", lambda request, values=values: values(state, request))  # type: ignore[misc]
        for name, values in istiod.PAGES.items()
    ]
    listed = {page.path: page.about for page in own} | OTHERS
    index = "".join(f"{path:<24} {about}\n" for path, about in sorted(listed.items()))

    async def unknown(request: Request) -> Response:
        if not (name := request.path_params["name"]):
            return text(index)
        reason = istiod.absent(name, request.query_params)
        return text(f"{reason or 'there is no such page; see /debug'}\n", status=404)

    return Starlette(
        routes=[
            *file_routes(),
            *common_routes(state, verbose=True),
            route("/debug", lambda _: text(index)),
            *(_json_route(page, limiter) for page in (*own, *of_istiod)),
            Route("/scopez", _scopes, methods=["GET"]),
            Route("/scopez", _set_scope, methods=["PUT"]),
            *starlette_routes(state),
            Route("/debug/{name:path}", unknown),
        ]
    )


async def _scopes(_: Request) -> Response:
    return json_response(istiod.scopes())


async def _set_scope(request: Request) -> Response:
    try:
        change_levels(istiod.change_scope(await json_body(request)))
    except (ApiError, ValueError) as error:
        return text(f"{error}\n", status=400)
    return json_response(istiod.scopes())


def _json_route(page: DebugPage, limiter: trio.CapacityLimiter) -> Route:
    """A page that may take seconds in a large mesh: it is encoded in a thread, so that proxies do not wait."""

    async def endpoint(request: Request) -> Response:
        pretty = {"true": True, "false": False}.get(request.query_params.get("pretty", ""))
        async with limiter:
            try:
                work = page.values(request)
            except NotFound as error:
                return text(str(error), status=404)
            except SeveralProxies as error:
                return text(f"{error}\n", status=409)
            return await trio.to_thread.run_sync(lambda: json_response(work(), pretty=pretty))

    return Route(page.path, endpoint)


def _limit(request: Request, usual: int) -> int:
    asked = request.query_params.get("limit", "")
    return int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 10 else usual
