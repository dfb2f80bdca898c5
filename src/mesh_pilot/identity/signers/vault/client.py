"""Requests to Vault, with a token that is read, made by a login and kept alive.

Errors name the request and give the server's reason, never a token.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import httpx
import trio

from mesh_pilot.base.reading import as_list, as_object, as_string
from mesh_pilot.identity.signers.remote import CaError
from mesh_pilot.identity.signers.vault.settings import VaultSettings
from mesh_pilot.identity.signers.wire import CaConnection, read_secret, status_error

RENEW_AFTER = 2 / 3
"""The part of its lifetime after which a token of a login is renewed."""

FRESH_SECONDS = 60.0
"""The time after a login in which a request that is refused makes no other login."""

FORBIDDEN, NOT_FOUND = 403, 404

ADVICE = {
    FORBIDDEN: "the token must be valid, and its policy must have the capability update on the engine's sign/ROLE",
    503: "a sealed server has to be unsealed",
}
"""The advice by status."""


class VaultClient:
    """One server. State: the connections, and the token with its times.

    Times are those of Trio's clock.
    """

    def __init__(self, settings: VaultSettings, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """``transport`` stands in for the network in tests."""
        self._settings = settings
        self._connection = CaConnection("Vault", settings.certificate_files(), transport)
        self._token = ""
        self._logged_in_at = -math.inf
        self._renew_at = 0.0
        self._ends_at = 0.0
        self._logging_in = trio.Lock()

    def __repr__(self) -> str:
        return f"<VaultClient {self._settings.address} {'logged in' if self._token else 'not logged in'}>"

    async def get(self, path: str, *, method: str = "GET") -> Mapping[str, Any]:
        """The ``data`` of something that everybody may read. Raises CaError."""
        return as_object(await self._ask(method, path, None, {}), "data")

    async def post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The ``data`` of the answer to a request with our token. Raises CaError."""
        token = await self._usable_token()
        try:
            return as_object(await self._ask("POST", path, body, _with(token)), "data")
        except CaError as error:
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
        await self._connection.aclose()

    # -- the token

    async def _usable_token(self) -> str:
        if self._settings.token_file is not None:
            return read_secret(self._settings.token_file, "the token for Vault")
        async with self._logging_in:
            now = trio.current_time()
            if self._token and now >= self._renew_at:
                await self._renew(now)
            if not self._token or now >= self._ends_at:
                await self._log_in(now)
            return self._token

    async def _renew(self, now: float) -> None:
        """Ask for more time; if Vault gives none, the next step is a login."""
        try:
            self._take(await self._ask("POST", "auth/token/renew-self", {}, _with(self._token)), now)
        except CaError as error:
            if error.status:
                self._token = ""
            elif now >= self._ends_at:
                raise

    async def _log_in(self, now: float) -> None:
        role = self._settings.app_role
        assert role is not None
        body = {"role_id": role.role_id, "secret_id": read_secret(role.secret_id_file, "the secret id for Vault")}
        path = f"auth/{role.mount.strip('/')}/login"
        self._take(await self._ask("POST", path, body, {}), now)
        self._logged_in_at = now

    def _take(self, answer: Mapping[str, Any], now: float) -> None:
        auth = as_object(answer, "auth")
        token = as_string(auth, "client_token")
        if not token:
            raise CaError("answer", "Vault's answer to a login has no token")
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
        always = {"x-vault-request": "true", "content-type": "application/json"}
        if self._settings.namespace:
            always["x-vault-namespace"] = self._settings.namespace
        content = b"" if body is None else json.dumps(body).encode()
        answer = await self._connection.ask(method, url, body=content, headers={**always, **headers})
        found: object = None
        with suppress(ValueError, RecursionError):
            found = json.loads(answer.body)
        if answer.status >= 300:
            raise status_error(what, answer, _errors(found), advice=ADVICE)
        if not isinstance(found, dict):
            raise CaError("answer", f"{what}: the answer is not JSON object; is that the address of a Vault?")
        return found


def _with(token: str) -> dict[str, str]:
    return {"x-vault-token": token}


def _errors(answer: object) -> str:
    """The server's reasons."""
    return "; ".join(map(str, as_list(answer, "errors")[:10]))
