"""Logins of people at an issuer of OpenID Connect: by a browser, and by tokens that clients bring.

The browser's way is the authorization code flow with PKCE, a state and a nonce. What a login needs to go on (state,
nonce, verifier, the page to come back to) is in a signed cookie of that browser alone, so that ten thousand logins that
somebody begins take no place of others, and a login that somebody else began is not taken for one's own (login CSRF).
"""

from __future__ import annotations

import base64
import hmac
import json
import secrets
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

import attrs
import structlog
import trio
from joserfc.errors import JoseError

from mesh_pilot.base.later import load
from mesh_pilot.identity.authenticators.compact_token import LEEWAY_SECONDS, read_token
from mesh_pilot.identity.authenticators.issuer_keys import IssuerKeys
from mesh_pilot.identity.authenticators.jwt import check_token
from mesh_pilot.identity.openid.provider import Provider, ProviderError, ProviderRefusal, Tokens
from mesh_pilot.identity.trust.callers import AuthenticationError, AuthenticatorUnavailable
from mesh_pilot.ops.access.people import PeopleFile, PeopleRules, Person
from mesh_pilot.ops.access.read_again import AccessError

log = structlog.get_logger(scope="admin")

LOGIN_SECONDS = 600.0
"""The time from the beginning of a login until the issuer sends the browser back."""

GRACE_SECONDS = 3600.0
"""The time that a session lasts after its token's end, while the issuer does not answer."""

AGAIN_SECONDS = 30.0
"""The interval of tries to renew such a session."""

AT_ONCE = 8
"""Requests to the issuer at the same time; more are refused."""

LONGEST_CODE = 4096

CALLBACK = "/login/callback"


class LoginError(Exception):
    """A login that does not succeed: the status and the reason that the one who tries is told."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@attrs.frozen
class Begun:
    """A login that a browser has begun: what its cookie has."""

    state: str
    nonce: str
    verifier: str
    following: str
    at: float


@attrs.define(eq=False)
class PersonSession:
    """The login behind a session. State: the person by the latest token, the token to renew it, the latest try."""

    issuer: str
    person: Person
    refresh_token: str = attrs.field(repr=False)
    id_token: str = attrs.field(repr=False)
    tried_at: float = float("-inf")
    lock: trio.Lock = attrs.field(factory=trio.Lock, repr=False)


class Logins:
    """State: the issuer and its keys as the file now names them, and a key for the cookies of this process."""

    def __init__(self, file: PeopleFile, *, now: Callable[[], float] = time.time) -> None:
        self._file = file
        self._now = now
        self._known: tuple[object, Provider, IssuerKeys] | None = None
        self._key = secrets.token_bytes(32)
        self._limit = trio.CapacityLimiter(AT_ONCE)
        self._troubles: dict[str, str] = {}
        """The reasons why the issuer could not be asked last, by what for."""

    def __repr__(self) -> str:
        return f"<Logins at {self.rules.client.issuer}>"

    @property
    def rules(self) -> PeopleRules:
        return self._file.rules()

    @property
    def trouble(self) -> str:
        """The reason why the issuer cannot be asked, as of the last time; empty if all is well."""
        return next(iter(self._troubles.values()), "")

    # -- tokens

    def is_meant(self, text: str) -> bool:
        """True for a token of the issuer, good or bad."""
        if text.count(".") != 2:
            return False
        try:
            return read_token(text).issuer == self.rules.client.issuer
        except AuthenticationError:
            return False

    async def person_of_token(self, text: str) -> Person:
        """The person whom a token proves. Raises LoginError."""
        return (await self._proven(text))[0]

    async def _proven(self, text: str) -> tuple[Person, Mapping[str, Any]]:
        rules, (_, keys) = self.rules, self._parts()
        try:
            token = read_token(text)
            if token.issuer != rules.client.issuer:
                raise LoginError(401, f"the token is not of the issuer {rules.client.issuer}")
            await check_token(token, rules.issuer, keys, self._now())
            self._troubles.pop("keys", None)
            return rules.person(token.claims), token.claims
        except AuthenticationError as error:
            raise LoginError(401, f"the token is refused: {error}") from None
        except AuthenticatorUnavailable as error:
            self._troubles["keys"] = str(error)
            raise LoginError(503, str(error)) from None
        except AccessError as error:
            raise LoginError(401, str(error)) from None

    # -- browsers

    async def begin(self, following: str) -> tuple[str, str, str]:
        """The issuer's address to go to, and the name and the value of the cookie to come back with.

        Raises LoginError.
        """
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        begun = Begun(state, nonce, verifier, following, self._now())
        provider, _ = self._parts()
        url = await self._asked(
            lambda: provider.authorization_url(
                redirect_uri=self.rules.url + CALLBACK, state=begun.state, nonce=begun.nonce, verifier=begun.verifier
            )
        )
        return url, cookie_of(begun.state), self._signed(json.dumps(attrs.astuple(begun)))

    async def finish(self, query: Mapping[str, str], cookies: Mapping[str, str]) -> tuple[PersonSession, str]:
        """The login that the issuer has sent a browser back with, and the page to go on with. Raises LoginError."""
        begun = self._begun(query.get("state", ""), cookies)
        if "error" in query:
            raise LoginError(
                403, f"the issuer refuses the login: {_shown(query.get('error_description') or query['error'])}"
            )
        if query.get("iss", self.rules.client.issuer) != self.rules.client.issuer:  # RFC 9207
            raise LoginError(400, "this is the answer of another issuer")
        code = query.get("code", "")
        if not 0 < len(code) <= LONGEST_CODE:
            raise LoginError(400, "the issuer has sent no code")
        provider, _ = self._parts()
        tokens = await self._asked(
            lambda: provider.tokens_of_code(code, redirect_uri=self.rules.url + CALLBACK, verifier=begun.verifier)
        )
        person = await self._person_of(tokens, nonce=begun.nonce)
        return PersonSession(self.rules.client.issuer, person, tokens.refresh_token, tokens.id_token), begun.following

    async def person_now(self, session: PersonSession) -> Person | None:
        """The person of a session, by a new token where the latest is over; None if the issuer ends the login.

        While the issuer does not answer, the person is the same for another `GRACE_SECONDS`; then raises LoginError.
        """
        if session.issuer != self.rules.client.issuer:
            return None
        if self._now() < session.person.until:
            return session.person
        async with session.lock:
            now = self._now()
            if now < session.person.until:
                return session.person
            if not session.refresh_token:
                return None
            if now >= session.tried_at + AGAIN_SECONDS:
                session.tried_at = now
                try:
                    return await self._renewed(session)
                except LoginError as error:
                    if error.status != 503:
                        log.info("login is over", user=session.person.name, reason=str(error))
                        return None
                    log.warning("login cannot be renewed now", user=session.person.name, reason=str(error))
            if now < session.person.until + GRACE_SECONDS:
                return session.person
        raise LoginError(503, "your login has to be renewed, and the issuer does not answer; try again")

    async def farewell(self, session: PersonSession) -> str:
        """The issuer's address that ends the login there, too; empty if it has none, or does not answer."""
        provider, _ = self._parts()
        try:
            url = await provider.endpoint("end_session_endpoint")
        except ProviderError:
            return ""
        more = {"client_id": self.rules.client.client_id, "id_token_hint": session.id_token}
        return f"{url}{'&' if '?' in url else '?'}{urlencode(more)}"

    async def _renewed(self, session: PersonSession) -> Person:
        """Raises LoginError."""
        provider, _ = self._parts()
        tokens = await self._asked(lambda: provider.tokens_again(session.refresh_token))
        person = await self._person_of(tokens)
        if person.subject != session.person.subject:
            raise LoginError(401, "the issuer renewed the login for somebody else")
        session.person, session.refresh_token, session.id_token = person, tokens.refresh_token, tokens.id_token
        return person

    async def _person_of(self, tokens: Tokens, nonce: str = "") -> Person:
        """Raises LoginError."""
        from authlib.oidc.core import CodeIDToken

        if not tokens.id_token:
            raise LoginError(401, "the issuer gives no ID token: the scope openid has to be permitted to this client")
        person, claims = await self._proven(tokens.id_token)
        client = self.rules.client.client_id
        # Signature, times and audience are proven; what is left is that this token answers this login.
        header = {"alg": read_token(tokens.id_token).algorithm}
        params = {"nonce": nonce or None, "client_id": client, "access_token": tokens.access_token or None}
        try:
            CodeIDToken(dict(claims), header, {"aud": {"value": client}}, params).validate(
                now=int(self._now()), leeway=int(LEEWAY_SECONDS)
            )
        except (JoseError, ValueError, TypeError) as error:
            raise LoginError(401, f"the issuer's ID token does not answer this login: {_shown(str(error))}") from None
        return person

    # -- parts

    def _parts(self) -> tuple[Provider, IssuerKeys]:
        """The issuer and its keys; other ones if the file names another issuer or client."""
        rules = self.rules
        stamp = (rules.client, rules.issuer)
        if self._known is None or self._known[0] != stamp:
            self._known = (stamp, Provider(rules.client), IssuerKeys(rules.issuer))
            self._troubles.clear()
        return self._known[1], self._known[2]

    async def _asked(self, ask: Callable[[], Any]) -> Any:
        """The issuer's answer. Raises LoginError."""
        await load("authlib.oidc.core")
        try:
            self._limit.acquire_nowait()
        except trio.WouldBlock:
            raise LoginError(503, "too many logins at the same time; try again") from None
        trouble = ""
        try:
            return await ask()
        except ProviderRefusal as refusal:
            raise LoginError(403, f"the issuer refuses the login: {refusal}") from None
        except ProviderError as error:
            trouble = str(error)
            log.warning("the issuer of logins cannot be asked", issuer=self.rules.client.issuer, reason=str(error))
            raise LoginError(
                503, f"logins at {self.rules.client.issuer} fail now; the control plane's log says why"
            ) from None
        finally:
            self._limit.release()
            self._troubles.pop("logins", None)
            self._troubles |= {"logins": trouble} if trouble else {}

    def _begun(self, state: str, cookies: Mapping[str, str]) -> Begun:
        """The login that a browser has begun, by its cookie. Raises LoginError."""
        again = LoginError(400, "this browser has begun no such login, or too long ago; log in again")
        value = cookies.get(cookie_of(state), "") if 0 < len(state) <= 100 and state.isascii() else ""
        text, _, signature = value.partition(".")
        if not value or not hmac.compare_digest(signature.encode(), self._signature(text)):
            raise again
        begun = Begun(*json.loads(base64.urlsafe_b64decode(text)))
        if not hmac.compare_digest(begun.state, state) or not 0 <= self._now() - begun.at <= LOGIN_SECONDS:
            raise again
        return begun

    def _signed(self, text: str) -> str:
        packed = base64.urlsafe_b64encode(text.encode()).decode()
        return f"{packed}.{self._signature(packed).decode()}"

    def _signature(self, packed: str) -> bytes:
        return base64.urlsafe_b64encode(hmac.digest(self._key, packed.encode("utf-8", "surrogateescape"), sha256))


def cookie_of(state: str) -> str:
    """The name of the cookie of a login: one for each, as a browser may have begun several in its tabs."""
    return f"mesh_pilot_login_{sha256(state.encode()).hexdigest()[:12]}"


def _shown(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text[:300])
