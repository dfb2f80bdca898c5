"""Fetching the keys of an issuer: one HTTP request, or two if its configuration has to name their URL."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

import attrs
import httpx

from mesh_pilot.config.validation.authentication import http_url_reason
from mesh_pilot.config.validation.key_sets import key_set_reason

DISCOVERY = "/.well-known/openid-configuration"
"""Behind an issuer's name: where its configuration is, as OpenID Connect Discovery says."""
MAX_BYTES = 1_000_000
"""The longest answer that is read."""


class FetchError(Exception):
    """Keys that could not be fetched, with the reason for people."""


@attrs.frozen
class KeySetRef:
    """A key set, by the issuer's name or the URL of its keys; the other is empty."""

    issuer: str
    url: str

    def __str__(self) -> str:
        return self.url or self.issuer


async def fetch_keys(client: httpx.AsyncClient, wanted: KeySetRef, timeout_seconds: float) -> str:
    """The key set, as compact JSON in a fixed order, so that the same keys are the same text.

    ``timeout_seconds`` is for each request. Raises FetchError.
    """
    url = wanted.url
    if not url:
        where = wanted.issuer.rstrip("/") + DISCOVERY
        if http_url_reason(where):
            raise FetchError("the issuer is no URL at which its configuration could be: give jwksUri, or jwks")
        said = await fetch_json(client, where, timeout_seconds)
        url = str(said.get("jwks_uri") or "")
        if http_url_reason(url):
            raise FetchError(f"{where} names no jwks_uri")
    found = await fetch_json(client, url, timeout_seconds)
    key_set = json.dumps({"keys": found.get("keys")}, separators=(",", ":"), sort_keys=True)
    if reason := key_set_reason(key_set):
        raise FetchError(f"{url} {reason}")
    return key_set


def reason_of(error: BaseException) -> str:
    """The text of an error, or of the first of its causes that has one: a failed TLS handshake has none itself."""
    cause: BaseException | None = error
    while cause is not None:
        if str(cause):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__


async def fetch_json(client: httpx.AsyncClient, url: str, timeout_seconds: float) -> dict[str, object]:
    """The JSON object at a URL, of at most ``MAX_BYTES``. Raises FetchError."""
    body = bytearray()
    try:
        async with client.stream("GET", url, timeout=timeout_seconds) as answer:
            if answer.status_code != httpx.codes.OK:
                raise FetchError(f"{url} answers {answer.status_code}")
            async with aclosing(cast("AsyncGenerator[bytes, None]", answer.aiter_bytes())) as parts:
                async for part in parts:
                    body += part
                    if len(body) > MAX_BYTES:
                        raise FetchError(f"{url} answers with more than {MAX_BYTES} bytes")
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:  # ValueError: a host that has no form for DNS
        raise FetchError(f"{url}: {reason_of(error)}") from None
    try:
        found = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise FetchError(f"{url} answers with what is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise FetchError(f"{url} answers with what is not a JSON object")
    return found
