"""Requests to a CA over HTTP: one bounded request at a time, and secrets that are read from files at each use.

Errors name the request and give the CA's reason, never a header or a body of ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import attrs
import httpx
import trio

from mesh_pilot.identity.signers.remote import CaError
from mesh_pilot.net.fetching import FetchError, whole_body
from mesh_pilot.net.fetching.errors import reason_of
from mesh_pilot.net.rpc import CertificateFiles, TlsError, http_client_tls

REQUEST_SECONDS = 15.0
"""The time for one request, its answer included."""

MAX_BYTES = 4_000_000
"""The longest answer that is taken."""

MAX_SECRET_BYTES = 64 * 1024
"""The longest secret in a file."""

BUSY = frozenset({429, 502, 503, 504})
"""The statuses of a CA, or of a proxy in front of it, that may answer otherwise a second later."""


@attrs.frozen
class CaAnswer:
    """An answer, whatever its status."""

    status: int
    headers: httpx.Headers
    body: bytes

    @property
    def is_redirect(self) -> bool:
        return 300 <= self.status < 400

    @property
    def retry_after(self) -> float | None:
        """The seconds of ``Retry-After``, as a number or a date; None without one that can be read."""
        text = self.headers.get("retry-after", "").strip()
        if text.isdecimal():
            return float(text)
        try:
            seconds = (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return None
        return max(0.0, seconds) if math.isfinite(seconds) else None


class CaConnection:
    """A CA's server. Mutable state: the connections, made for the first request."""

    def __init__(self, place: str, files: CertificateFiles, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """``place`` begins errors; ``transport`` stands in for the network in tests."""
        self._place = place
        self._files = files
        self._transport = transport
        self._client: httpx.AsyncClient | None = None

    def __repr__(self) -> str:
        return f"<CaConnection {self._place}>"

    async def ask(
        self, method: str, url: str, *, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> CaAnswer:
        """The answer to one request; redirects are not followed. Raises CaError without an answer."""
        what = f"{self._place}, {method} {url}"
        client = self._connected()
        reason = f"no answer in full within {REQUEST_SECONDS:g} s"
        with trio.move_on_after(REQUEST_SECONDS):
            try:
                request = client.build_request(
                    method, url, content=body, headers={"accept-encoding": "identity", **(headers or {})}
                )
                reply = await client.send(request, stream=True, follow_redirects=False)
                try:
                    found = await whole_body(reply, MAX_BYTES)
                finally:
                    await reply.aclose()
            except FetchError as error:
                raise CaError("answer", f"{what}: it {error}") from None
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                reason = reason_of(error)
            else:
                return CaAnswer(reply.status_code, reply.headers, found)
        raise CaError("unreachable", f"{what}: {reason}", passes=True)

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    def _connected(self) -> httpx.AsyncClient:
        if self._client is None:
            try:
                context = http_client_tls(self._files)
            except TlsError as error:
                raise CaError("tls_files", f"{self._place}: {error}") from None
            self._client = httpx.AsyncClient(
                verify=context, transport=self._transport, timeout=REQUEST_SECONDS, trust_env=False
            )
        return self._client


def status_error(what: str, answer: CaAnswer, said: str = "", *, advice: Mapping[int, str] | None = None) -> CaError:
    """The error that an answer with a status of failure is. ``said``: the CA's reason; ``advice``: what to do, by
    status."""
    if answer.is_redirect:
        said = "it sends us elsewhere; name the server itself in address"
    hint = (advice or {}).get(answer.status, "")
    text = f"{what}: {answer.status} {one_line(said)}".rstrip() + (f"; {hint}" if hint else "")
    if answer.status in BUSY:
        return CaError("busy", text, answer.status, passes=True, wait_seconds=answer.retry_after)
    reason = {400: "refused", 401: "forbidden", 403: "forbidden", 404: "not_found"}.get(answer.status, "status")
    return CaError(reason, text, answer.status)


def one_line(text: str) -> str:
    """A CA's words, fit for a log: one line, of 500 characters at most."""
    return "".join(c if c.isprintable() else " " for c in text).strip()[:500]


def read_secret(path: Path, what: str) -> str:
    """One secret line. ``what`` says in errors what it is. Raises CaError."""
    text = read_private(path, what)
    found = text.strip()
    if not found or not found.isascii() or not found.isprintable():
        raise CaError("credential_file", f"{what} is not in {path}: the file holds no single line of ASCII text")
    return found


def read_private(path: Path, what: str) -> str:
    """The content of a secret file. Raises CaError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise CaError("credential_file", f"{what} cannot be read from {path}: {error.strerror}") from None
    if len(data) > MAX_SECRET_BYTES:
        raise CaError("credential_file", f"{what} is not in {path}: the file has over {MAX_SECRET_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise CaError("credential_file", f"{what} cannot be read from {path}: it is not text") from None
