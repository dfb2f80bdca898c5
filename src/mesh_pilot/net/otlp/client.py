"""A request to a receiver of OTLP over HTTP, and what its answer says."""

from __future__ import annotations

import contextlib
import gzip
import json
import ssl
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import attrs
import trio

from mesh_pilot.net.fetching.bodies import read_body
from mesh_pilot.net.fetching.errors import FetchError, reason_of

if TYPE_CHECKING:
    import httpx

TIMEOUT_SECONDS = 10.0
_MOST_ANSWER_BYTES = 64 * 1024
_MOST_TEXT = 300
_LONGEST_WAIT = 3600.0

_HEADERS = {"content-type": "application/json"}


@attrs.frozen
class OtlpAnswer:
    """The outcome of a request."""

    reason: str = ""
    """Why the receiver has not taken it; empty if it has."""
    rejected: int = 0
    """The spans or data points among it that the receiver has left out."""
    why_rejected: str = ""
    wait_seconds: float = 0.0
    """The time for which it asks to be left alone."""


def signal_url(endpoint: str, path: str) -> str:
    """The address that a signal is posted to: the endpoint itself if it ends with the path, such as ``/v1/traces``."""
    return endpoint if endpoint.endswith(path) else endpoint.rstrip("/") + path


def shown_receiver(url: str) -> str:
    """Host and port of a receiver, without a password."""
    return urlsplit(url).netloc.rpartition("@")[2]


class OtlpClient:
    """Posts to one URL. To be used as an asynchronous context manager."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        """``tls``: for ``https``."""
        import httpx  # an agent that sends nothing does without

        self._url = url
        verify: ssl.SSLContext | bool = tls if tls is not None else False
        self._client = httpx.AsyncClient(timeout=None, trust_env=False, verify=verify)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def post(self, body: bytes, *, is_gzip: bool = False) -> OtlpAnswer:
        """Send a request in JSON; one that is not answered in time, or not understood, is not taken."""
        with trio.move_on_after(TIMEOUT_SECONDS):
            return await self._post(body, is_gzip)
        return OtlpAnswer("no answer in time")

    async def _post(self, body: bytes, is_gzip: bool) -> OtlpAnswer:
        import httpx

        headers = {**_HEADERS, "content-encoding": "gzip"} if is_gzip else _HEADERS
        try:
            request = self._client.build_request("POST", self._url, content=body, headers=headers)
            request.stream = _stream_of(body)
            reply = await self._client.send(request, stream=True)
            try:
                return await _understood(reply)
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                    await reply.aclose()
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # UnicodeError: a name that DNS cannot have
            return OtlpAnswer(reason_of(error))


def _stream_of(body: bytes) -> httpx.AsyncByteStream:
    """The body of a request. httpx's own leaves a generator behind where a receiver hangs up."""
    import httpx

    class Stream(httpx.AsyncByteStream):
        def __init__(self) -> None:
            self._rest = [body]

        def __aiter__(self) -> AsyncIterator[bytes]:
            return self

        async def __anext__(self) -> bytes:
            if not self._rest:
                raise StopAsyncIteration
            return self._rest.pop()

    return Stream()


def compressed(body: bytes) -> bytes:
    """A body for ``is_gzip``. Series repeat their labels: a twentieth is left."""
    return gzip.compress(body, 1, mtime=0)


async def _understood(reply: httpx.Response) -> OtlpAnswer:
    said = await _beginning(reply)
    if reply.is_success:
        return _partly(said)
    detail = _message(said)
    reason = f"status {reply.status_code}" + (f": {detail}" if detail else "")
    if reply.is_redirect:
        reason += ", a redirect, which is not followed"
    return OtlpAnswer(reason, wait_seconds=_seconds(reply.headers.get("retry-after", "")))


async def _beginning(reply: httpx.Response) -> bytes:
    """The answer's body, as far as it is of a reasonable length: it was said before whether the request was taken."""
    body = bytearray()

    async def take(piece: bytes) -> None:
        body.extend(piece)

    with contextlib.suppress(FetchError):
        await read_body(reply, take, _MOST_ANSWER_BYTES)
    return bytes(body)


def _partly(said: bytes) -> OtlpAnswer:
    success = _object(said).get("partialSuccess")
    if not isinstance(success, dict):
        return OtlpAnswer()
    rejected: Any = success.get("rejectedDataPoints", success.get("rejectedSpans", 0))
    try:
        count = max(0, int(rejected))
    except (TypeError, ValueError, OverflowError):
        count = 0
    return OtlpAnswer(rejected=count, why_rejected=str(success.get("errorMessage", ""))[:_MOST_TEXT])


def _message(said: bytes) -> str:
    """The words of a refusal: ``google.rpc.Status`` in JSON, or plain."""
    found = _object(said)
    shown = str(found.get("message", "")) if found else said.decode("utf-8", "replace")
    return " ".join(shown.split())[:_MOST_TEXT] if shown.isprintable() or "\n" in shown else ""


def _object(said: bytes) -> dict[str, Any]:
    try:
        found = json.loads(said)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _seconds(header: str) -> float:
    return min(float(header), _LONGEST_WAIT) if header.isascii() and header.isdigit() else 0.0
