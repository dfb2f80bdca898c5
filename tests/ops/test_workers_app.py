"""Pages of several workers: the page that is answered is the one that the gate has let through, and errors show."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import pytest
import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from mesh_pilot.ops.api.route import ApiRoute, listed
from mesh_pilot.ops.page.files import POLICY
from mesh_pilot.ops.workers import WorkersApp, page_of
from mesh_pilot.replicas.workers.questions import PageQuestion


async def _answer(request: Request) -> Response:
    return PlainTextResponse(f"{request.method} {request.scope['path']} {request.url.query}")


async def _proxies(_: Request) -> Response:
    return JSONResponse([{"proxy": "web-1.shop"}])


async def _page(_: Request) -> Response:
    return HTMLResponse("<h1>here</h1>")


async def _broken(_: Request) -> Response:
    raise ValueError("a page is broken")


ALONE = Starlette(
    routes=[
        Route("/api/v1/proxies", _proxies),
        Route("/broken", _broken),
        Route("/page", _page),
        Route("/{rest:path}", _answer),
    ]
)
PROXIES = ApiRoute("/proxies", "The proxies.", _proxies, merge=listed)


async def _own(question: object) -> object:
    raise AssertionError(question)


class Second:
    """The other worker."""

    numbers: Sequence[int] = (2,)

    async def ask(self, question: object) -> Mapping[int, object]:
        assert isinstance(question, PageQuestion)
        return {2: await page_of(ALONE, question)}

    def states(self) -> Mapping[int, Any]:
        return {}

    missing = restarts = states


APP: Any = WorkersApp(ALONE, ALONE, _own, Second(), object(), [PROXIES]).web()  # type: ignore[arg-type]  # no metrics


async def asked(method: str, path: str, query: str) -> tuple[int, str]:
    """The app's answer at a path as it stands, which a client of HTTP would put in order first."""
    answer: dict[str, Any] = {"body": b""}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        answer["status"] = message.get("status", answer.get("status"))
        answer["body"] += message.get("body", b"")

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", b"[127.0.0.1")],
        "scheme": "http",
        "server": ("plane", 80),
    }
    await APP(scope, receive, send)
    return answer["status"], answer["body"].decode()


@pytest.mark.parametrize("worker", ["1", "2"])
@pytest.mark.parametrize(
    "path", ["//x/api/v1/process", "/x/../api/v1/process", "/./api/v1/process", "/api/v1/process#x", "/a//b"]
)
async def test_a_worker_is_asked_for_the_very_path_that_the_gate_has_seen(path: str, worker: str) -> None:
    assert await asked("GET", path, f"worker={worker}&q=a%26b") == (200, f"GET {path} q=a%26b")


async def test_a_page_of_one_worker_has_the_policy_for_browsers() -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=APP), base_url="http://plane", timeout=60) as client:
        for worker in (1, 2):
            page = await client.get(f"/page?worker={worker}")
            assert (page.text, page.headers["content-security-policy"]) == ("<h1>here</h1>", POLICY)


async def test_head_of_a_page_of_all_workers_is_answered(structlog_events: list[Any]) -> None:
    status, body = await asked("HEAD", "/api/v1/proxies", "")
    assert (status, json.loads(body)) == (200, [{"proxy": "web-1.shop"}] * 2)  # the server leaves the body out
    assert structlog_events == []


async def test_an_error_of_a_page_is_logged_with_its_path(structlog_events: list[Any]) -> None:
    assert (await asked("GET", "/broken", "worker=2"))[0] == 500
    (line,) = structlog_events
    assert (line["event"], line["log_level"], line["page"]) == (
        "internal error in a page of a worker",
        "error",
        "/broken",
    )


@pytest.fixture
def structlog_events() -> Any:
    with structlog.testing.capture_logs() as found:
        yield found
