"""The one way to ask a server of others for something.

What speaks to the network is imported by the first request: most control planes make none.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

from mesh_pilot.base.later import load
from mesh_pilot.net.fetching.bodies import TooLarge, read_body, whole_body
from mesh_pilot.net.fetching.errors import FetchError, reason_of, shown_url

if TYPE_CHECKING:
    import httpx

    from mesh_pilot.net.fetching.addresses import Resolve

MAX_REDIRECTS = 5
SILENCE_SECONDS = 15.0
"""The time that a server may say nothing."""

Take = Callable[[bytes], Iterable[object]]
"""Takes a piece of a body, in steps between which other tasks run. Raises FetchError."""


@attrs.frozen
class FetchedAnswer:
    """An answer to a request."""

    status: int
    headers: httpx.Headers
    body: bytes = attrs.field(repr=False)
    """Read for the status 200, and for others where they are asked for; empty where it was taken piece by piece."""


class Fetcher:
    """Asks servers, over a separate connection for each request, through the environment's proxy if it has one.

    What it raises is a FetchError, whatever the server or its URL is like. State: the HTTP client, and the file of
    roots as it was when the client was made.
    """

    def __init__(
        self,
        *,
        roots: Path | None = None,
        verify: bool = True,
        environment: Mapping[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        """``roots``: a PEM file in place of the system's roots; ``verify`` False: no certificate is verified.

        ``environment``: where proxies are named, that of the process unless told otherwise. ``transport`` stands in for
        the network in tests, addresses and proxies with it.
        """
        self._roots = roots
        self._verify = verify
        self._environment = os.environ if environment is None else environment
        self._transport = transport
        self._resolve = resolve
        self._client: httpx.AsyncClient | None = None
        self._stamp: object = None

    def __repr__(self) -> str:
        return f"<Fetcher {self._roots or ''}>"

    async def ask(
        self,
        url: str,
        *,
        limit: int,
        seconds: float,
        headers: Mapping[str, str] | None = None,
        form: Mapping[str, str] | None = None,
        content: bytes | None = None,
        method: str = "",
        redirects: int = MAX_REDIRECTS,
        https_only: bool = False,
        take: Take | None = None,
        others: bool = False,
    ) -> FetchedAnswer:
        """The answer to a GET, or to a POST of a form or of bytes. Raises FetchError, whose text begins with the URL as
        shown.

        ``method``: another one. ``limit``: bytes of the body, as sent and as decoded; ``seconds``: for all of it,
        lookups and redirects too. A redirect is an answer where there may be no more ``redirects`` than 0. ``others``:
        bodies of other statuses than 200 are read, but for redirects. Cancelled, the connection is closed.
        """
        await load("mesh_pilot.net.fetching.outward")
        import httpx

        shown = shown_url(url)
        sent = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "mesh-pilot", **(headers or {})}
        client = self._current()
        text = f"{shown} has not answered in full within {seconds:g} s"
        with trio.move_on_after(seconds):
            try:
                usual = "GET" if form is None and content is None else "POST"
                request = client.build_request(method or usual, url, headers=sent, data=form, content=content)
                return await self._follow(client, request, limit, redirects, https_only, take, others)
            except TooLarge as error:
                raise TooLarge(f"{shown} {error}") from None
            except FetchError as error:
                text = f"{shown} {error}"
            except (httpx.InvalidURL, ValueError):  # their texts may have a part of a password
                text = f"{shown} is not a URL that can be asked"
            except Exception as error:  # of any library, on what a stranger wrote or sent
                text = f"{shown}: {reason_of(error)}"
        raise FetchError(text)

    async def _follow(
        self,
        client: httpx.AsyncClient,
        request: httpx.Request,
        limit: int,
        redirects: int,
        https_only: bool,
        take: Take | None,
        others: bool,
    ) -> FetchedAnswer:
        import httpx

        timeout = httpx.Timeout(SILENCE_SECONDS).as_dict()
        for left in range(redirects, -1, -1):
            schemes = ("https",) if https_only else ("https", "http")
            if request.url.scheme not in schemes:
                raise FetchError(f"is not asked: {shown_url(str(request.url))} is not {' or '.join(schemes)}")
            request.extensions = {**request.extensions, "timeout": timeout}
            async with _sent(client, request) as answer:
                following = answer.next_request
                if following is None or not redirects:
                    return await _read(answer, limit, take, others)
                if not left:
                    break
                request = following
        raise FetchError(f"redirects more than {redirects} times")

    def _current(self) -> httpx.AsyncClient:
        """The client, another one if the file of roots has changed. Raises FetchError."""
        stamp = None
        if self._roots is not None:
            try:
                status = self._roots.stat()
            except OSError as error:
                raise FetchError(f"the roots in {self._roots} cannot be read: {error.strerror}") from None
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        if self._client is None or stamp != self._stamp:
            from http.cookiejar import CookieJar, DefaultCookiePolicy

            import httpx

            from mesh_pilot.net.fetching.outward import network

            # One that is replaced needs no closing: it keeps no connections.
            self._client = httpx.AsyncClient(
                transport=self._transport or network(self._roots, self._verify, self._environment, self._resolve),
                timeout=None,
                trust_env=False,
                # Nobody's cookies are kept, or told to others.
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            )
            self._stamp = stamp
        return self._client


@asynccontextmanager
async def _sent(client: httpx.AsyncClient, request: httpx.Request) -> AsyncGenerator[httpx.Response, None]:
    answer = await client.send(request, stream=True, follow_redirects=False)
    try:
        yield answer
    finally:
        await answer.aclose()


async def _read(answer: httpx.Response, limit: int, take: Take | None, others: bool) -> FetchedAnswer:
    if answer.status_code != HTTPStatus.OK and (not others or answer.is_redirect):
        return FetchedAnswer(answer.status_code, answer.headers, b"")
    if take is None:
        return FetchedAnswer(answer.status_code, answer.headers, await whole_body(answer, limit))

    async def in_steps(piece: bytes) -> None:
        for _ in take(piece):
            await trio.lowlevel.checkpoint()

    await read_body(answer, in_steps, limit)
    return FetchedAnswer(answer.status_code, answer.headers, b"")
