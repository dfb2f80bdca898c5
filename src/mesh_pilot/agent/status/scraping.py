"""Metrics of Envoy, of the application and of the agent, on one page.

What is away, slow or no metrics hides nothing of the others: it is counted. Pages are passed on as they arrive, so that
their size costs no memory. Order and formats are those of Istio's agent: the page is OpenMetrics if the application
answers so and the client takes it, else the text format.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote

import attrs
import structlog
import trio

from mesh_pilot.agent.settings import Ports
from mesh_pilot.agent.status.agent_metrics import Parts, agent_metrics
from mesh_pilot.agent.status.exposition import Exposition, ExpositionError
from mesh_pilot.net.rpc.rate_limits import LogLimiter

if TYPE_CHECKING:
    import httpx

log = structlog.get_logger(scope="agent")

DEFAULT_SECONDS = 10.0
"""Prometheus' usual timeout of a scrape, where it does not say another."""
_LEAST_SECONDS, _MOST_SECONDS = 0.5, 60.0
_AT_ONCE = 4
"""Scrapes at a time; others wait."""

TEXT = "text/plain; version=0.0.4; charset=utf-8"
_OPENMETRICS = "application/openmetrics-text"
_ACCEPT_TEXT = "text/plain;version=0.0.4"
_ACCEPT_OPEN = f"{_OPENMETRICS};version=1.0.0;q=0.9,{_OPENMETRICS};version=0.0.1;q=0.8,{_ACCEPT_TEXT};q=0.5"

ENVOY, APPLICATION = "envoy", "application"


class ScrapeError(ValueError):
    """Settings by which the application's metrics cannot be asked for. The message is for users."""


@attrs.frozen
class ScrapeTarget:
    """A page of metrics."""

    source: str
    """``envoy`` or ``application``."""
    url: str


@attrs.frozen
class ScrapeStatistics:
    """Counters of the merged page."""

    scrapes_total: int
    scrape_failures_total: Mapping[str, int]
    """Pages that were away, too late, or no metrics, by source."""
    scrape_lines_left_out_total: int
    """Lines of those pages that were no metrics."""


def application_targets(settings: Mapping[str, Any], ports: Ports) -> tuple[ScrapeTarget, ...]:
    """The application's pages; none where ``scrape`` is not ``true`` and nothing else is said. Raises ScrapeError."""
    if not settings or str(settings.get("scrape", "true")).lower() != "true":
        return ()
    targets = settings.get("targets") or [settings]
    if not isinstance(targets, Sequence) or not all(isinstance(target, Mapping) for target in targets):
        raise ScrapeError("targets is not a list of objects with port and path")
    return tuple(_target(target, ports) for target in targets)


def _target(settings: Mapping[str, Any], ports: Ports) -> ScrapeTarget:
    text, path = str(settings.get("port") or "80"), str(settings.get("path") or "/metrics")
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise ScrapeError(f"port {text!r} is not a port of TCP")
    ours = {15001: "Envoy's", 15006: "Envoy's", 15008: "Envoy's", ports.admin: "Envoy's admin port"}
    ours |= {ports.status: "the agent's own", ports.prometheus: "Envoy's metrics, which are on the page already"}
    if int(text) in ours:
        raise ScrapeError(f"port {int(text)} is {ours[int(text)]}, not the application's")
    return ScrapeTarget(APPLICATION, f"http://localhost:{int(text)}/{path.removeprefix('/')}")


def accepts_openmetrics(accept: str) -> bool:
    """True if a client's Accept header has OpenMetrics."""
    kinds = {each.partition(";")[0].strip().lower() for each in accept.split(",")}
    return bool(kinds & {_OPENMETRICS, "application/*"})


def scrape_seconds(header: str) -> float:
    """The time for a scrape, by the header ``X-Prometheus-Scrape-Timeout-Seconds``, less a little for the way."""
    try:
        seconds = float(header or DEFAULT_SECONDS)
    except ValueError:
        seconds = DEFAULT_SECONDS
    if not math.isfinite(seconds):
        seconds = DEFAULT_SECONDS
    return max(_LEAST_SECONDS, min(_MOST_SECONDS, 0.9 * seconds))


@attrs.define
class _Page:
    """A target's answer; None while it has not come."""

    target: ScrapeTarget
    response: httpx.Response | None = None
    failure: str = "no answer in time"
    """Why there is none."""
    openmetrics: str = ""
    """The version of OpenMetrics that it is in; empty for the text format."""


class MergedMetrics:
    """Makes the page. ``parts`` are those of the agent."""

    def __init__(
        self,
        envoy_admin: str,
        application: Sequence[ScrapeTarget],
        parts: Parts,
        metrics_filter: Callable[[], str] = lambda: "",
    ) -> None:
        """``envoy_admin``: ``host:port``; empty for an agent without Envoy. ``metrics_filter``: the regular expression
        of its statistics that are metrics, for scrapes without a filter; empty where all are."""
        self._admin = envoy_admin
        self._filter = metrics_filter
        self._application = tuple(application)
        self._parts = parts
        self._client: httpx.AsyncClient | None = None
        self._places = trio.CapacityLimiter(_AT_ONCE)
        self._limiter = LogLimiter(seconds=600)
        self._scrapes = self._left_out = 0
        self._failures: Counter[str] = Counter({ENVOY: 0, APPLICATION: 0} if application else {ENVOY: 0})

    def statistics(self) -> ScrapeStatistics:
        return ScrapeStatistics(self._scrapes, dict(self._failures), self._left_out)

    async def write(
        self,
        headers: Mapping[str, str],
        query: str,
        start: Callable[[str], Awaitable[None]],
        send: Callable[[bytes], Awaitable[None]],
    ) -> bool:
        """One page: ``start`` with its content type, then ``send`` for each piece; true if it is complete.

        It breaks off after a minute, whoever is slow: others wait.
        """
        async with self._places:
            with trio.move_on_after(_MOST_SECONDS):
                seconds = scrape_seconds(headers.get("x-prometheus-scrape-timeout-seconds", ""))
                deadline = trio.current_time() + seconds
                takes_open = accepts_openmetrics(headers.get("accept", ""))
                async with self._opened(query, deadline, takes_open, headers.get("user-agent", "")) as pages:
                    await self._merge(pages, takes_open, deadline, start, send)
                return True
        return False

    async def collect(self, take: Callable[[ScrapeTarget | None, bytes], Awaitable[None]]) -> None:
        """Each page on its own, in Prometheus' text format: ``take`` gets whole lines. None stands for the agent."""
        async with self._places:
            deadline = trio.current_time() + DEFAULT_SECONDS
            async with self._opened("", deadline, False, "") as pages:
                for page in pages:
                    whole = Exposition(openmetrics=False)

                    async def send(data: bytes, page: _Page = page) -> None:
                        await take(page.target, data)

                    await self._copy(page, whole, deadline, send)
                    self._left_out += whole.left_out
            await take(None, agent_metrics(self._parts))

    @asynccontextmanager
    async def _opened(
        self, query: str, deadline: float, takes_open: bool, user_agent: str
    ) -> AsyncIterator[Sequence[_Page]]:
        """The pages of Envoy and the application, as far as they begin to answer."""
        self._scrapes += 1
        pages = [_Page(target) for target in (*self._envoy(query), *self._application)]
        try:
            async with trio.open_nursery() as nursery:
                # What does not even begin to answer leaves half of the time to the others.
                nursery.cancel_scope.deadline = (trio.current_time() + deadline) / 2
                for page in pages:
                    nursery.start_soon(self._open, page, takes_open, user_agent)
            yield pages
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                for page in pages:
                    if page.response is not None:
                        await page.response.aclose()

    async def _merge(
        self,
        pages: Sequence[_Page],
        takes_open: bool,
        deadline: float,
        start: Callable[[str], Awaitable[None]],
        send: Callable[[bytes], Awaitable[None]],
    ) -> None:
        applications = [page for page in pages if page.target.source == APPLICATION and page.response is not None]
        versions = {page.openmetrics for page in applications}
        version = versions.pop() if takes_open and len(versions) == 1 else ""
        whole = Exposition(openmetrics=bool(version))
        await start(f"{_OPENMETRICS}; version={version}; charset=utf-8" if version else TEXT)
        for page in pages:
            await self._copy(page, whole, deadline, send)
        self._left_out += whole.left_out
        own = whole.part(openmetrics=False)
        await send(own.feed(agent_metrics(self._parts)) + whole.end())

    async def _copy(
        self, page: _Page, whole: Exposition, deadline: float, send: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Pass on a page, piece by piece."""
        if page.response is None:
            self._failed(page.target, page.failure)
            return
        part = whole.part(openmetrics=bool(page.openmetrics), of_envoy=page.target.source == ENVOY)
        pieces = page.response.aiter_bytes()
        try:
            while (piece := await _next(pieces, deadline)) is not None:
                if data := part.feed(piece):
                    await send(data)
            if data := part.end():
                await send(data)
        except (_SourceError, ExpositionError) as error:
            self._failed(page.target, str(error))

    def _envoy(self, query: str) -> tuple[ScrapeTarget, ...]:
        if not self._admin:
            return ()
        if (regex := self._filter()) and "filter" not in parse_qs(query, keep_blank_values=True):
            query = "&".join(filter(None, (query, f"filter={quote(regex, safe='')}")))
        return (ScrapeTarget(ENVOY, f"http://{self._admin}/stats/prometheus" + (f"?{query}" if query else "")),)

    async def _open(self, page: _Page, takes_open: bool, user_agent: str) -> None:
        import httpx

        if self._client is None:
            limits = httpx.Limits(max_keepalive_connections=0)
            self._client = httpx.AsyncClient(trust_env=False, timeout=None, limits=limits, verify=False)
        is_open = takes_open and page.target.source == APPLICATION
        headers = {"accept": _ACCEPT_OPEN if is_open else _ACCEPT_TEXT, "accept-encoding": "identity"}
        if user_agent:
            headers["user-agent"] = user_agent
        response = None
        try:
            request = self._client.build_request("GET", page.target.url, headers=headers)
            response = await self._client.send(request, stream=True)
            kind, _, parameters = response.headers.get("content-type", "").partition(";")
            kind = kind.strip().lower()
            if response.status_code != 200:
                page.failure = f"status {response.status_code}"
            elif kind not in ("", "text/plain", "application/octet-stream", _OPENMETRICS):
                page.failure = f"an answer of type {kind}, not metrics"
            else:
                if kind == _OPENMETRICS:
                    page.openmetrics = "1.0.0" if "1.0.0" in parameters else "0.0.1"
                page.response, response = response, None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            page.failure = f"{type(error).__name__} {error}".strip()
        finally:
            if response is not None:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                    await response.aclose()

    def _failed(self, target: ScrapeTarget, why: str) -> None:
        self._failures[target.source] += 1
        if self._limiter.admit(target.url, trio.current_time()) is not None:
            log.warning("metrics missing", of=target.source, url=target.url, reason=why, effect="the others are served")


class _SourceError(Exception):
    """A page that broke off. The message is for users."""


async def _next(pieces: AsyncIterator[bytes], deadline: float) -> bytes | None:
    """The next piece of a body, None at its end. Raises _SourceError."""
    import httpx

    try:
        with trio.fail_at(deadline):
            return await anext(pieces, None)
    except trio.TooSlowError:
        raise _SourceError("the page did not end in time") from None
    except httpx.HTTPError as error:
        raise _SourceError(f"{type(error).__name__} {error}".strip()) from None
