"""Several workers seen as one control plane: what each answers about itself, and pages made of all answers.

The first worker asks the others for the same page and merges the JSON (``ApiRoute.merge``, ``MERGED``), so a page is
written once, for one process, and does not know of the others. Lists that are cut are cut after they are merged. A
worker that does not answer in a second is named in a header instead of holding up the page: half an answer that says
so is worth more during an outage than none. Shared memory, or one process that knows all streams, would make the
workers wait for each other. Any page takes ``?worker=2``: it is then that worker's own.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes, urlencode

import attrs
import structlog
import trio
from prometheus_client.core import Metric
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from mesh_pilot.base.containment import Contained
from mesh_pilot.model.json import Json
from mesh_pilot.model.redaction import redacted
from mesh_pilot.net.rpc.rate_limits import LogLimiter
from mesh_pilot.ops.api.app import AT_ONCE, BASE, error_response, piece_for, proxy_named, several_proxies
from mesh_pilot.ops.api.delivery import own_delivery
from mesh_pilot.ops.api.orders import at_all
from mesh_pilot.ops.api.route import ApiError, ApiRoute, Merge, listed
from mesh_pilot.ops.api.visitors import VISITOR
from mesh_pilot.ops.metrics import CONTENT_TYPE, Metrics
from mesh_pilot.ops.metrics.workers import WorkerMetrics, WorkerTotals
from mesh_pilot.ops.page.files import HEADERS
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.authority import rollout
from mesh_pilot.ops.values.rejections import merged
from mesh_pilot.ops.values.traffic_parts import own_part
from mesh_pilot.ops.values.traffic_rows import own_edges
from mesh_pilot.ops.values.truth import own_fleet
from mesh_pilot.ops.web.responses import accepts_gzip, json_response, printable, text
from mesh_pilot.replicas.workers.questions import (
    WORKER_HOST,
    Answer,
    ConnectionsQuestion,
    DeliveryQuestion,
    DumpQuestion,
    MeantQuestion,
    MetricsQuestion,
    MinutesQuestion,
    PageQuestion,
    TrafficPartQuestion,
    TrafficQuestion,
    TruthQuestion,
    WorkerPage,
    WorkerState,
    WorkerStateQuestion,
)
from mesh_pilot.replicas.workers.supervisor import WorkerSupervisor
from mesh_pilot.xds.ads.proxy_names import MeantProxies, SeveralProxies, is_pattern, together

log = structlog.get_logger(scope="ops")

MISSING = "X-Missing-Workers"
"""The header of a page with the numbers of workers that did not answer in time."""


async def page_of(app: Any, question: PageQuestion) -> WorkerPage:
    """A page of an ASGI app, at the very path that was asked: one that were put in order on the way (``//``, ``..``,
    ``#``) could be another than the gate has let through. An error of the app is logged, and answered 500."""
    raw_path, _, query = question.path.partition("?")
    path = unquote_to_bytes(raw_path).decode("utf-8", "replace")
    status, content_type, body = 500, "text/plain; charset=utf-8", b"internal error\n"
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": question.method,
        "scheme": "http",
        "path": path,
        "raw_path": raw_path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", WORKER_HOST.encode())],
        "client": None,
        "server": (WORKER_HOST, 80),
        VISITOR: question.visitor,
    }
    requested = [{"type": "http.request", "body": question.body, "more_body": False}]

    async def receive() -> MutableMapping[str, Any]:
        if requested:
            return requested.pop()
        await trio.sleep_forever()
        raise AssertionError("never ends")

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status, content_type, body
        if message["type"] == "http.response.start":
            headers = {name.lower(): value for name, value in message["headers"]}
            status, body = message["status"], b""
            content_type = headers.get(b"content-type", b"text/plain").decode("latin-1")
        elif message["type"] == "http.response.body":
            body += message.get("body", b"")

    with Contained(log, "internal error in a page of a worker", page=printable(path)[:500]):
        await app(scope, receive, send)
    return WorkerPage(status, content_type, body)


def about_this_worker(state: PlaneState, app: Any) -> Answer:
    """Answers questions about this process alone; ``app`` is its web port."""
    metrics = Metrics(state)

    async def answer(question: object) -> object:
        # One case for each question that there is, so that a question without an answer cannot be sent.
        match question:
            case PageQuestion():
                return await page_of(app, question)
            case ConnectionsQuestion():
                return state.xds.status.connections()
            case DumpQuestion(proxy=proxy):
                return state.xds.status.config_dump(proxy) or None
            case MeantQuestion(text=text):
                return state.xds.status.meant(text)
            case DeliveryQuestion():
                return own_delivery(state.xds.status, question)
            case TrafficQuestion():
                return await own_edges(state, question)
            case TrafficPartQuestion():
                return await own_part(state)
            case MinutesQuestion(had=had):
                memory = state.traffic.memory if state.traffic is not None else None
                return memory.offered(had.get(memory.process, 0)) if memory is not None else None
            case TruthQuestion(asked=asked):
                return await own_fleet(state, state.facts(), asked)
            case MetricsQuestion():
                return metrics.of_this_worker()
            case WorkerStateQuestion():
                return WorkerState(state.xds.status.statistics().connected, rollout(state))
            case _:
                raise ValueError(f"a question that is not understood: {question!r}")

    return answer


def about_all(own: Answer, app: Any, others: WorkerSupervisor) -> Answer:
    """Answers questions about all workers; ``own`` answers those about the first, ``app`` is the web port of all."""

    async def answer(question: object) -> object:
        match question:
            case PageQuestion():
                return await page_of(app, question)
            case ConnectionsQuestion():
                answers = [await own(question), *(await others.ask(question)).values()]
                return tuple(connection for each in answers if isinstance(each, tuple) for connection in each)
            case DumpQuestion():
                if (dump := await own(question)) is not None:
                    return dump
                return next((dump for dump in (await others.ask(question)).values() if dump is not None), None)
            case MeantQuestion():
                answers = [await own(question), *(await others.ask(question)).values()]
                return together(each for each in answers if isinstance(each, MeantProxies))
            case _:
                return await own(question)

    return answer


Endpoint = Callable[[Request], Awaitable[Response]]


def _first_and_others(pages: Mapping[int, Any]) -> Json:
    own, *_ = pages.values()
    return {**own, "workers": {str(number): page for number, page in pages.items() if number != 1}}


def _clients(pages: Mapping[int, Any]) -> Json:
    clients = [client for page in pages.values() for client in page["clients"]]
    return {"totalClients": len(clients), "clients": clients}


def _by_proxy(pages: Mapping[int, Any]) -> Json:
    return {proxy: found for page in pages.values() for proxy, found in page.items()}


MERGED: Mapping[str, Merge] = {
    "/debug/syncz": listed,
    "/debug/adsz": listed,
    "/debug/rejections": merged,
    "/debug/statistics": _first_and_others,
    "/debug/authenticationz": _first_and_others,
    "/debug/connections": _clients,
    "/debug/instancesz": _by_proxy,
}
"""The pages that are made of those of all workers."""


class WorkersApp:
    """The web and metrics ports of several workers. State: counters, and the workers whose silence was logged."""

    def __init__(
        self,
        app: Any,
        monitoring: Any,
        own: Answer,
        others: WorkerSupervisor,
        metrics: Metrics,
        api: Sequence[ApiRoute] = (),
    ) -> None:
        """``app`` and ``monitoring`` are the ports of the first worker alone, ``own`` its answers; ``api``: its routes
        of the API."""
        self._app = app
        self._own = own
        self._api = api
        self._monitoring = monitoring
        self._others = others
        self._metrics = metrics
        self._totals = WorkerTotals()
        self._limiter = LogLimiter()
        self._turns = trio.CapacityLimiter(AT_ONCE)

    def web(self) -> Starlette:
        """The app of the web port."""
        return Starlette(
            routes=[
                *(Route(path, self._merged(merge)) for path, merge in MERGED.items()),
                *(
                    Route(BASE + route.path, self._merged(route.merge, route), methods=[route.method])
                    for route in self._api
                    if route.merge is not None
                ),
                *(Route(path, self._dump) for path in ("/debug/config_dump", "/debug/edsz", "/debug/ecdsz")),
                Route("/scopez", self._merged(at_all), methods=["PUT"]),
                Route("/metrics", self._all_metrics),
                Mount("/", _Picked(self._app, self._others)),
            ]
        )

    def monitoring(self) -> Starlette:
        """The app of the metrics port."""
        return Starlette(routes=[Route("/metrics", self._all_metrics), Mount("/", self._monitoring)])

    async def metrics(self) -> list[Metric]:
        """The metrics of all workers."""
        return self._metrics.metrics_of_all(await self._found(), self._others.restarts(), self._totals)

    async def _all_metrics(self, request: Request) -> Response:
        body = self._metrics.of_all(await self._found(), self._others.restarts(), self._totals)
        return Response(redacted(body), media_type=CONTENT_TYPE)

    async def _found(self) -> dict[int, WorkerMetrics]:
        """The metrics of the workers that answer."""
        answers = await self._others.ask(MetricsQuestion())
        return {number: answer for number, answer in answers.items() if isinstance(answer, WorkerMetrics)}

    def _merged(self, merge: Merge, route: ApiRoute | None = None) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            if "worker" in request.query_params:
                return await one_worker(self._app, self._others, request)
            try:
                cut = piece_for(route, request) if route is not None else None
            except ApiError as error:
                return error_response(error.status, str(error))
            name = proxy_named(route, request) if route is not None else ""
            if name and not is_pattern(name):
                return await self._at_worker_of(name, request)
            is_piece = route is not None and bool(route.sorted_by)
            question = await _question(request, but=_OF_PIECES if is_piece else ("worker",))
            own = await page_of(self._app, question)
            if own.status not in (200, 404):
                return _response(own)
            answers = await self._others.ask(question)
            pages = {1: own} | {number: page for number, page in answers.items() if isinstance(page, WorkerPage)}
            found = {number: page.body for number, page in pages.items() if page.status == 200}
            if not found:
                return self._with_missing(_response(own), request.scope["path"], pages)
            pretty = {"true": True, "false": False}.get(request.query_params.get("pretty", ""))

            is_gzip = accepts_gzip(request.headers)

            def together() -> Response:
                whole = merge({number: json.loads(body) for number, body in found.items()})
                return json_response(whole if cut is None else cut(whole), pretty=pretty, is_gzip=is_gzip)

            async with self._turns:
                response = await trio.to_thread.run_sync(together)
            return self._with_missing(response, request.scope["path"], found)

        return endpoint

    async def _at_worker_of(self, name: str, request: Request) -> Response:
        """The page of the worker that has the proxy of a name; a refusal without one."""
        meant = {1: await self._own(MeantQuestion(name)), **await self._others.ask(MeantQuestion(name))}
        found = {number: each for number, each in meant.items() if isinstance(each, MeantProxies)}
        all_of_them = together(found.values())
        try:
            all_of_them.only(name)
        except SeveralProxies as error:
            if request.scope["path"].startswith(BASE):
                return self._with_missing(several_proxies(error), request.scope["path"], found)
            return self._with_missing(text(f"{error}\n", status=409), request.scope["path"], found)
        if not all_of_them.proxies:
            known = ", ".join(all_of_them.connected) or "none"
            asked = f"no connected proxy {name[:200]!r}" if name else "say which proxy: ?proxyID=NAME.NAMESPACE"
            refusal = _refusal(request, 404, f"{asked}; connected: {known}")
            return self._with_missing(refusal, request.scope["path"], found)
        number = next(n for n, each in found.items() if each.proxies and each.closeness == all_of_them.closeness)
        question = await _question(request)
        page = await page_of(self._app, question) if number == 1 else (await self._others.ask(question)).get(number)
        if not isinstance(page, WorkerPage):
            return _refusal(request, 504, f"worker {number} does not answer; see /ready")
        return _response(page)

    async def _dump(self, request: Request) -> Response:
        """A page of istiod's about the proxy ``?proxyID=``."""
        if "worker" in request.query_params:
            return await one_worker(self._app, self._others, request)
        return await self._at_worker_of(request.query_params.get("proxyID", ""), request)

    def _with_missing(self, response: Response, path: str, answered: Mapping[int, object]) -> Response:
        missing = [number for number in self._others.numbers if number not in answered]
        if missing:
            response.headers[MISSING] = ", ".join(map(str, missing))
            left_out = self._limiter.admit("missing", trio.current_time())
            if left_out is not None:
                log.warning("workers have not answered in time; a page is without them", page=path, missing=missing)
        return response


@attrs.frozen
class _Picked:
    """An ASGI app: a page of the first worker, or of the one that the query names."""

    own: Any
    others: WorkerSupervisor

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope)
        if scope["type"] == "http" and "worker" in request.query_params:
            response = await one_worker(self.own, self.others, request)
            await response(scope, receive, send)
        else:
            await self.own(scope, receive, send)


async def one_worker(app: Any, others: WorkerSupervisor, request: Request) -> Response:
    """The page of one worker: that of ``?worker=N``."""
    asked = request.query_params["worker"]
    if asked == "1":
        return _response(await page_of(app, await _question(request)))
    known = [1, *others.numbers]
    if asked not in map(str, known):
        return _refusal(request, 404, f"no worker {asked[:20]!r}; there are {', '.join(map(str, known))}")
    page = (await others.ask(await _question(request))).get(int(asked))
    if not isinstance(page, WorkerPage):
        return _refusal(request, 504, f"worker {asked} does not answer; see /ready")
    return _response(page)


def _refusal(request: Request, status: int, reason: str) -> Response:
    if request.scope["path"].startswith(BASE):
        return error_response(status, reason)
    return text(f"{reason}\n", status=status)


_OF_PIECES = ("worker", "limit", "offset", "continue")
"""Parameters of which the other workers are not told, where the lists of all are cut once they are together."""


async def _question(request: Request, but: Sequence[str] = ("worker",)) -> PageQuestion:
    """A request as a question to a worker, without some parameters."""
    query = urlencode([(name, value) for name, value in request.query_params.multi_items() if name not in but])
    path = request.scope["raw_path"].decode("ascii", "replace")
    body = await request.body() if request.method != "GET" else b""
    asked = f"{path}?{query}" if query else path
    return PageQuestion(asked, request.method, body, request.scope.get(VISITOR))


def _response(page: WorkerPage) -> Response:
    policy = HEADERS if page.content_type.startswith("text/html") else {}
    return Response(page.body, status_code=page.status, headers={**policy, "content-type": page.content_type})
