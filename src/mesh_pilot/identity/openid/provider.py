"""Requests to an issuer of OpenID Connect, as one client of it makes them.

Authlib writes the parameters of OAuth 2.0 (RFC 6749, RFC 7636) and authenticates the client; our fetcher sends them, so
that a hostile or broken issuer costs a bounded amount of memory and time. Its HTTP clients are not used: they read
answers of any size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import attrs
import trio

from mesh_pilot.identity.openid.settings import OFFLINE, SCOPES, ClientSettings
from mesh_pilot.identity.trust.key_set_fetch import DISCOVERY, fetch_json
from mesh_pilot.istio.rules.authentication import http_url_reason
from mesh_pilot.net.fetching import FetchedAnswer, Fetcher, FetchError, shown_url

SECONDS = 5.0
"""The longest time for one request."""
REFRESH_SECONDS = 1200.0
"""The age at which the issuer's configuration is fetched again."""
RETRY_SECONDS = 2.0
"""The shortest interval between fetches that fail."""
USUAL_INTERVAL = 5
"""Seconds between two questions for the tokens of a device, where the issuer names none (RFC 8628)."""
MAX_BYTES = 200_000
"""The longest answer of the token endpoint that is read."""


class ProviderError(Exception):
    """An issuer that cannot be asked now, or that answers what no issuer may: tried again later, it may work."""


class ProviderRefusal(ProviderError):
    """A request that the issuer refuses; ``code`` is OAuth's, such as ``invalid_grant``."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@attrs.frozen
class Tokens:
    """The answer of a token endpoint."""

    id_token: str = attrs.field(repr=False)
    """Empty if the issuer gives no such token."""
    refresh_token: str = attrs.field(default="", repr=False)
    access_token: str = attrs.field(default="", repr=False)


@attrs.frozen
class DeviceCode:
    """A login that somebody confirms in a browser, on this machine or another."""

    device_code: str = attrs.field(repr=False)
    user_code: str
    url: str
    """Where the code is typed in."""
    full_url: str
    """The same with the code in it; empty if the issuer gives none."""
    seconds: float
    """The time until it ends."""
    interval: float
    """The shortest time between two questions, in seconds."""


class Provider:
    """An issuer, asked as one client. State: its configuration, when it was fetched, and why that failed last."""

    def __init__(self, settings: ClientSettings, fetcher: Fetcher | None = None) -> None:
        self.settings = settings
        self._fetcher = fetcher or Fetcher(roots=settings.ca_file, environment={})
        self._found: Mapping[str, object] | None = None
        self._fetched_at = self._tried_at = float("-inf")
        self._trouble = ""
        self._lock = trio.Lock()

    def __repr__(self) -> str:
        return f"<Provider {self.settings.issuer} {self._trouble}>"

    async def authorization_url(self, *, redirect_uri: str, state: str, nonce: str, verifier: str) -> str:
        """The address at which somebody logs in with a browser. Raises ProviderError."""
        from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
        from authlib.oauth2.rfc7636 import create_s256_code_challenge

        found = prepare_grant_uri(
            await self.endpoint("authorization_endpoint"),
            client_id=self.settings.client_id,
            response_type="code",
            redirect_uri=redirect_uri,
            scope=" ".join(await self.scopes()),
            state=state,
            nonce=nonce,
            code_challenge=create_s256_code_challenge(verifier),
            code_challenge_method="S256",
            **await self._consent(),
        )
        return str(found)

    async def tokens_of_code(self, code: str, *, redirect_uri: str, verifier: str) -> Tokens:
        """Raises ProviderError."""
        return await self._tokens("authorization_code", code=code, redirect_uri=redirect_uri, code_verifier=verifier)

    async def tokens_again(self, refresh_token: str) -> Tokens:
        """New tokens for a refresh token, with the one to use next. Raises ProviderError."""
        found = await self._tokens("refresh_token", refresh_token=refresh_token)
        return found if found.refresh_token else attrs.evolve(found, refresh_token=refresh_token)

    async def tokens_of_device(self, code: DeviceCode) -> Tokens:
        """Raises ProviderRefusal with ``authorization_pending`` or ``slow_down`` until it is confirmed."""
        return await self._tokens("urn:ietf:params:oauth:grant-type:device_code", device_code=code.device_code)

    async def revoke(self, refresh_token: str) -> bool:
        """Have a refresh token revoked (RFC 7009). False if the issuer does not do that, or does not answer."""
        try:
            form = {"token": refresh_token, "token_type_hint": "refresh_token"}
            return (await self._answer(await self.endpoint("revocation_endpoint"), form)).status == 200
        except ProviderError:
            return False

    async def device_code(self) -> DeviceCode:
        """Begin a login by the device flow. Raises ProviderError."""
        url = await self.endpoint("device_authorization_endpoint")
        found = await self._post(url, {"scope": " ".join(await self.scopes()), **await self._consent()})
        seconds, interval = found.get("expires_in", 600), found.get("interval", USUAL_INTERVAL)
        texts = [found.get(name) for name in ("device_code", "user_code", "verification_uri")]
        if not all(isinstance(each, str) and each for each in texts) or not _are_seconds(seconds, interval):
            raise ProviderError(f"{shown_url(url)} answers without a device code, a user code and an address")
        device, user, where = (str(each) for each in texts)
        full = found.get("verification_uri_complete")
        return DeviceCode(
            device, user, where, full if isinstance(full, str) else "", min(seconds, 3600), max(interval, 0.1)
        )

    async def scopes(self) -> tuple[str, ...]:
        """The scopes that are requested. Raises ProviderError."""
        if self.settings.scopes:
            return tuple(self.settings.scopes)
        supported = (await self.configuration()).get("scopes_supported")
        known = supported if isinstance(supported, list) else ["profile", "email"]
        return tuple(each for each in SCOPES if each == "openid" or each in known)

    async def _consent(self) -> dict[str, str]:
        """The parameter that OpenID Connect Core wants with `OFFLINE`. Raises ProviderError."""
        return {"prompt": "consent"} if OFFLINE in await self.scopes() else {}

    async def endpoint(self, name: str) -> str:
        """The URL of an endpoint. Raises ProviderError."""
        found = (await self.configuration()).get(name)
        if not isinstance(found, str) or http_url_reason(found):
            raise ProviderError(f"the issuer {self.settings.issuer} has no {name}")
        if not self.settings.allow_http and not found.startswith("https:"):
            raise ProviderError(f"the {name} of {self.settings.issuer} is not https")
        return found

    async def configuration(self) -> Mapping[str, object]:
        """The issuer's configuration, as OpenID Connect Discovery says. While it does not answer, the last one stays in
        force. Raises ProviderError."""
        async with self._lock:
            now = trio.current_time()
            is_old = now >= self._fetched_at + REFRESH_SECONDS
            if is_old and now >= self._tried_at + RETRY_SECONDS:
                self._tried_at = now
                try:
                    self._found, self._trouble = await self._fetched(), ""
                    self._fetched_at = trio.current_time()
                except (FetchError, ProviderError) as error:
                    self._trouble = str(error)
        if self._found is None:
            raise ProviderError(self._trouble)
        return self._found

    async def _fetched(self) -> Mapping[str, object]:
        issuer = self.settings.issuer
        found = await fetch_json(
            self._fetcher, issuer.rstrip("/") + DISCOVERY, SECONDS, https_only=not self.settings.allow_http
        )
        if found.get("issuer") != issuer:
            said = str(found.get("issuer"))[:200]
            raise ProviderError(
                f"the issuer at {shown_url(issuer)} calls itself {said!r}: write exactly that as issuer"
            )
        return found

    async def _tokens(self, grant_type: str, **more: str) -> Tokens:
        from authlib.common.urls import url_decode
        from authlib.oauth2.rfc6749.parameters import prepare_token_request

        url = await self.endpoint("token_endpoint")
        found = await self._post(url, dict(url_decode(prepare_token_request(grant_type, **more))))
        texts = {name: found.get(name) or "" for name in ("id_token", "refresh_token", "access_token")}
        if not all(isinstance(each, str) for each in texts.values()) or not any(texts.values()):
            raise ProviderError(f"{shown_url(url)} answers without a token")
        return Tokens(**cast("dict[str, str]", texts))

    async def _post(self, url: str, form: Mapping[str, str]) -> Mapping[str, Any]:
        """The JSON object that a form is answered with. Raises ProviderError."""
        answer = await self._answer(url, form)
        found = _object(answer.body)
        if answer.status == 200 and found is not None:
            return found
        if found is not None and isinstance(code := found.get("error"), str):
            about = str(found.get("error_description") or "")
            text = _printable(f"{code}: {about}" if about else code)
            raise ProviderRefusal(code[:100], f"{shown_url(url)} answers {answer.status}, {text}")
        raise ProviderError(f"{shown_url(url)} answers {answer.status}, and not as a token endpoint does")

    async def _answer(self, url: str, form: Mapping[str, str]) -> FetchedAnswer:
        """The answer to a form that this client sends. Raises ProviderError."""
        from authlib.common.urls import url_decode, url_encode
        from authlib.oauth2.auth import ClientAuth

        secret = await self._secret()
        auth = ClientAuth(self.settings.client_id, secret, await self._auth_method() if secret else "none")
        _, headers, body = auth.prepare("POST", url, {"Accept": "application/json"}, url_encode(form.items()))
        try:
            return await self._fetcher.ask(
                url,
                limit=MAX_BYTES,
                seconds=SECONDS,
                headers=headers,
                form=dict(url_decode(body)),
                redirects=0,
                https_only=not self.settings.allow_http,
                others=True,
            )
        except FetchError as error:
            raise ProviderError(str(error)) from None

    async def _secret(self) -> str:
        path = self.settings.client_secret_file
        if path is None:
            return ""
        try:
            return (await trio.Path(path).read_text(encoding="utf-8")).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ProviderError(f"the client's secret cannot be read: {path}: {error}") from None

    async def _auth_method(self) -> str:
        supported = (await self.configuration()).get("token_endpoint_auth_methods_supported")
        is_basic = not isinstance(supported, list) or "client_secret_basic" in supported
        return "client_secret_basic" if is_basic else "client_secret_post"


def _object(body: bytes) -> Mapping[str, Any] | None:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _are_seconds(*values: object) -> bool:
    return all(isinstance(each, int | float) and not isinstance(each, bool) and 0 <= each < 1e9 for each in values)


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text[:300])
