"""Fetching the keys of an issuer: one HTTP request, or two if its configuration has to name their URL."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast
from urllib.parse import urlsplit

import attrs
import httpx

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
        if urlsplit(where).scheme not in ("http", "https"):
            raise FetchError("the issuer is no URL at which its configuration could be: give jwksUri, or jwks")
        said = await _json(client, where, timeout_seconds)
        url = str(said.get("jwks_uri") or "")
        if urlsplit(url).scheme not in ("http", "https"):
            raise FetchError(f"{where} names no jwks_uri")
    found = await _json(client, url, timeout_seconds)
    keys = found.get("keys")
    if not isinstance(keys, list) or not all(isinstance(key, dict) and key.get("kty") for key in keys):
        raise FetchError(f'{url} is not a JSON Web Key Set: an object with a list of "keys", each with a "kty"')
    if not keys:
        raise FetchError(f"{url} has no keys")
    return json.dumps({"keys": keys}, separators=(",", ":"), sort_keys=True)


async def _json(client: httpx.AsyncClient, url: str, timeout_seconds: float) -> dict[str, object]:
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
        found = json.loads(bytes(body))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise FetchError(f"{url}: {str(error) or type(error).__name__}") from None
    except ValueError as error:
        raise FetchError(f"{url} answers with what is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise FetchError(f"{url} answers with what is not a JSON object")
    return found
