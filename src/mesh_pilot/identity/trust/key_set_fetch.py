"""Fetching the keys of an issuer: one HTTP request, or two if its configuration has to name their URL."""

from __future__ import annotations

import json
from functools import partial
from http import HTTPStatus

import attrs
import trio

from mesh_pilot.base.offload import LARGE_BYTES, offload
from mesh_pilot.istio.rules.authentication import http_url_reason
from mesh_pilot.istio.rules.key_sets import key_set_reason
from mesh_pilot.net.fetching import Fetcher, FetchError, shown_url
from mesh_pilot.net.fetching.fetcher import MAX_REDIRECTS

DISCOVERY = "/.well-known/openid-configuration"
"""Behind an issuer's name: where its configuration is, as OpenID Connect Discovery says."""
MAX_BYTES = 1_000_000
"""The longest answer that is read."""


@attrs.frozen
class KeySetRef:
    """A key set, by the issuer's name or the URL of its keys; the other is empty."""

    issuer: str
    url: str

    def __str__(self) -> str:
        """As people are shown it."""
        return shown_url(self.url or self.issuer)


async def fetch_keys(fetcher: Fetcher, wanted: KeySetRef, seconds: float, *, https_only: bool = False) -> str:
    """The key set, as compact JSON in a fixed order, so that the same keys are the same text.

    ``seconds`` are for all of it. Raises FetchError.
    """
    with trio.move_on_after(seconds):
        url = wanted.url
        if not url:
            where = wanted.issuer.rstrip("/") + DISCOVERY
            if http_url_reason(where):
                raise FetchError("the issuer is not a URL that can serve its configuration: give jwksUri, or jwks")
            said = await fetch_json(fetcher, where, seconds, https_only=https_only)
            url = str(said.get("jwks_uri") or "")
            if http_url_reason(url):
                raise FetchError(f"{shown_url(where)} names no jwks_uri")
        body = await _json_text(fetcher, url, seconds, https_only=https_only)
        return await offload(len(body) > LARGE_BYTES, partial(_key_set, body, shown_url(url)))
    raise FetchError(f"{wanted} has not answered in full within {seconds:g} s")


async def fetch_json(
    fetcher: Fetcher, url: str, seconds: float, *, redirects: int = MAX_REDIRECTS, https_only: bool = False
) -> dict[str, object]:
    """The JSON object at a URL, of at most ``MAX_BYTES``. Raises FetchError."""
    body = await _json_text(fetcher, url, seconds, redirects=redirects, https_only=https_only)
    return await offload(len(body) > LARGE_BYTES, partial(_json_object, body, shown_url(url)))


async def _json_text(
    fetcher: Fetcher, url: str, seconds: float, *, redirects: int = MAX_REDIRECTS, https_only: bool
) -> bytes:
    answer = await fetcher.ask(url, limit=MAX_BYTES, seconds=seconds, redirects=redirects, https_only=https_only)
    if answer.status != HTTPStatus.OK:
        raise FetchError(f"{shown_url(url)} answers {answer.status}")
    return answer.body


def _json_object(body: bytes, shown: str) -> dict[str, object]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FetchError(f"{shown} answers with what is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise FetchError(f"{shown} answers with what is not a JSON object")
    return found


def _key_set(body: bytes, shown: str) -> str:
    found = _json_object(body, shown)
    key_set = json.dumps({"keys": found.get("keys")}, separators=(",", ":"), sort_keys=True)
    if reason := key_set_reason(key_set):
        raise FetchError(f"{shown} {reason}")
    return key_set
