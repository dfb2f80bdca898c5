"""Requests to Vault, with a token that is read, made by a login and kept alive.

Errors name the request and give the server's reason, never a token.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import trio

from mesh_pilot.base.reading import as_list, as_object, as_string
from mesh_pilot.identity.signers.signing import SigningError
from mesh_pilot.identity.signers.vault.settings import VaultSettings
from mesh_pilot.net.fetching import FetchError, whole_body
from mesh_pilot.net.fetching.errors import reason_of
from mesh_pilot.net.rpc import CertificateFiles, TlsError, http_client_tls

REQUEST_SECONDS = 15.0
"""The time for one request, its answer included."""

MAX_BYTES = 4_000_000
"""The longest answer that is taken."""

RENEW_AFTER = 2 / 3
"""The part of its lifetime after which a token of a login is renewed."""

FRESH_SECONDS = 60.0
"""The time after a login in which a request that is refused makes no other login."""

FORBIDDEN, NOT_FOUND = 403, 404


class VaultError(SigningError):
    """A request that failed. ``reason`` is a stable code for metrics, ``status`` that of HTTP, 0 without an answer."""

    def __init__(self, reason: str, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status


class VaultClient:
    """One server. State: the connections, and the token with its times.

    Times are those of Trio's clock.
    """

    def __init__(self, settings: VaultSettings, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """``transport`` stands in for the network in tests."""
        self._settings = settings
        self._transport = transport
        self._files = CertificateFiles(
            certificate=settings.client_certificate, key=settings.client_key, trusted=settings.ca_file
        )
        self._client: httpx.AsyncClient | None = None
        self._token = ""
        self._logged_in_at = -math.inf
        self._renew_at = 0.0
        self._ends_at = 0.0
        self._logging_in = trio.Lock()

    def __repr__(self) -> str:
        return f"<VaultClient {self._settings.address} {'logged in' if self._token else 'not logged in'}>"

    async def get(self, path: str, *, method: str = "GET") -> Mapping[str, Any]:
        """The ``data`` of something that everybody may read. Raises VaultError."""
        return as_object(await self._ask(method, path, None, {}), "data")

    async def post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The ``data`` of the answer to a request with our token. Raises VaultError."""
        token = await self._usable_token()
        try:
            return as_object(await self._ask("POST", path, body, _with(token)), "data")
        except VaultError as error:
            # The token may have been revoked: a new login, or the file, may have another. One of a moment ago was not:
            # its policy lacks the right, and each login would leave a token and use up the secret id.
            if error.status != FORBIDDEN or trio.current_time() < self._logged_in_at + FRESH_SECONDS:
                raise
            self._forget(token)
            other = await self._usable_token()
            if other == token:
                raise
            return as_object(await self._ask("POST", path, body, _with(other)), "data")

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    # -- the token

    async def _usable_token(self) -> str:
        settings = self._settings
        if settings.token_file is not None:
            return _read(settings.token_file, "the token")
        if not settings.role_id:
            return settings.token
        async with self._logging_in:
            now = trio.current_time()
            if self._token and now >= self._renew_at:
                await self._renew(now)
            if not self._token or now >= self._ends_at:
                await self._log_in(now)
            return self._token

    async def _renew(self, now: float) -> None:
        """Ask for more time; if there is none to be had, the next step is a login."""
        try:
            self._take(await self._ask("POST", "auth/token/renew-self", {}, _with(self._token)), now)
        except VaultError as error:
            if error.status:
                self._token = ""
            elif now >= self._ends_at:
                raise

    async def _log_in(self, now: float) -> None:
        settings = self._settings
        assert settings.secret_id_file is not None
        body = {"role_id": settings.role_id, "secret_id": _read(settings.secret_id_file, "the secret id")}
        path = f"auth/{settings.approle_mount.strip('/')}/login"
        self._take(await self._ask("POST", path, body, {}), now)
        self._logged_in_at = now

    def _take(self, answer: Mapping[str, Any], now: float) -> None:
        auth = as_object(answer, "auth")
        token = as_string(auth, "client_token")
        if not token:
            raise VaultError("answer", "Vault's answer to a login has no token")
        seconds = auth.get("lease_duration")
        lease = float(seconds) if isinstance(seconds, int) and seconds > 0 else float("inf")
        is_renewed = token == self._token
        # Close to its greatest lifetime a token gets less and less: a new one then.
        if is_renewed and lease < (self._ends_at - now) * 1.1 and lease != float("inf"):
            self._token = ""
            return
        self._token, self._renew_at, self._ends_at = token, now + lease * RENEW_AFTER, now + lease

    def _forget(self, token: str) -> None:
        if self._token == token:
            self._token = ""

    # -- one request

    async def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]
    ) -> Mapping[str, Any]:
        url = f"{self._settings.address.rstrip('/')}/v1/{path}"
        what = f"Vault, {method} {url}"
        always = {"x-vault-request": "true", "accept-encoding": "identity"}
        if self._settings.namespace:
            always["x-vault-namespace"] = self._settings.namespace
        client = self._connected()
        request = client.build_request(method, url, json=body, headers={**always, **headers})
        found: object = None
        reason = f"no answer in full within {REQUEST_SECONDS:g} s"
        with trio.move_on_after(REQUEST_SECONDS):
            try:
                reply = await client.send(request, stream=True, follow_redirects=False)
                try:
                    text = await whole_body(reply, MAX_BYTES)
                finally:
                    await reply.aclose()
            except FetchError as error:
                raise VaultError("answer", f"{what}: it {error}") from None
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                reason = reason_of(error)
            else:
                reason = ""
        if reason:
            raise VaultError("unreachable", f"{what}: {reason}")
        with suppress(ValueError, RecursionError):
            found = json.loads(text)
        if reply.status_code >= 300:
            reason = {FORBIDDEN: "forbidden", NOT_FOUND: "not_found", 400: "refused"}.get(reply.status_code, "status")
            said = "it sends us elsewhere; name the active server" if reply.is_redirect else _errors(found)
            raise VaultError(reason, f"{what}: {reply.status_code} {said}".rstrip(), reply.status_code)
        if not isinstance(found, dict):
            raise VaultError("answer", f"{what}: the answer is no JSON object; is that the address of a Vault?")
        return found

    def _connected(self) -> httpx.AsyncClient:
        """The client, made for the first request."""
        if self._client is None:
            try:
                context = http_client_tls(self._files)
            except TlsError as error:
                raise VaultError("tls_files", f"{error}; these are for Vault") from None
            self._client = httpx.AsyncClient(
                verify=context, transport=self._transport, timeout=REQUEST_SECONDS, trust_env=False
            )
        return self._client


def _with(token: str) -> dict[str, str]:
    return {"x-vault-token": token}


def _errors(answer: object) -> str:
    """The server's reasons, in one line."""
    text = "; ".join(map(str, as_list(answer, "errors")[:10]))
    return "".join(c if c.isprintable() else " " for c in text)[:500]


def _read(path: Path, what: str) -> str:
    try:
        found = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no ASCII text"
        raise VaultError("token_file", f"{what} for Vault cannot be read from {path}: {reason}") from None
    if not found or not found.isprintable():
        raise VaultError("token_file", f"{what} for Vault is not in {path}: the file holds no single line of text")
    return found
