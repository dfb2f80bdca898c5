"""An order at an issuer (RFC 8555), by certbot's library ``acme``.

The library makes one request a call, and waits for it. Each call runs in a thread; what comes between them (showing
answers, waiting for the issuer) is ours, so that a cancelled order stops there. The requests themselves are our
fetcher's, so that a hostile or broken issuer costs a bounded amount of memory and time: an abandoned thread ends with
the request that it makes.

Source of the rules: RFC 8555, "Automatic Certificate Management Environment", 7.1.6, 7.4, 7.5, 8.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import attrs
import josepy.errors
import requests
import trio
from acme import challenges, client, crypto_util, errors, messages
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from josepy.jwa import ES256
from josepy.jwk import JWKEC

from mesh_pilot import __version__
from mesh_pilot.model.events import ChallengeAnswer
from mesh_pilot.net.fetching import Fetcher, FetchError, shown_url
from mesh_pilot.sources.acme.issued import IssuedCertificate, IssuerError, Keep, Show
from mesh_pilot.sources.acme.stored import Account
from mesh_pilot.sources.acme.wanted import AcmeServer

REQUEST_SECONDS = 30
"""The time for a request."""

PROOF_SECONDS, FINISH_SECONDS = 180.0, 120.0
"""The time that an issuer may take to ask our gateways, and to sign."""

POLL_SECONDS = 1.0
"""The wait between questions whether it is done, if the issuer names none; and the longest, as it counts a request."""
LONGEST_POLL_SECONDS = 15.0

MOST_BYTES = 1_000_000
"""The longest answer that is read."""

LONGEST_WAIT = timedelta(days=7)
"""The longest wait that an issuer may ask for: the longest of Let's Encrypt's limits."""

NONCES = 5
"""Tries of a request whose nonce is refused."""

T = TypeVar("T")

_Pending = tuple[messages.AuthorizationResource, messages.ChallengeBody]


async def obtain(
    issuer: AcmeServer, account: Account | None, hosts: Sequence[str], keep: Keep, show: Show
) -> IssuedCertificate:
    """Order a certificate for these hosts. Raises IssuerError, and what ``keep`` and ``show`` raise.

    ``keep`` takes the account before anything is ordered; ``show`` returns once our gateways answer the issuer.
    """
    account = account if account is not None else Account(new_key(), issuer.directory)
    session = _Session(issuer, account.key)
    await session.open()
    for attempt in range(2):
        registered = await session.log_in(account, issuer.contacts)
        if registered != account:
            account = registered
            await keep(account)
        try:
            return await _order(session, hosts, show)
        except IssuerError as error:
            if error.code != "accountDoesNotExist" or attempt:
                raise
            account = attrs.evolve(account, uri="")  # the issuer has forgotten it
    raise AssertionError


async def _order(session: _Session, hosts: Sequence[str], show: Show) -> IssuedCertificate:
    key = new_key()
    order = await session.ask(session.client.new_order, crypto_util.make_csr(key, list(hosts)))
    pending = [(each, _http_01(each)) for each in order.authorizations if each.body.status != messages.STATUS_VALID]
    answers, responses = [], []
    for authorization, challenge in pending:
        response, text = challenge.chall.response_and_validation(session.key)
        answers.append(ChallengeAnswer(authorization.body.identifier.value, challenge.chall.encode("token"), text))
        responses.append((challenge, response))
    await show(tuple(sorted(answers, key=lambda each: (each.host, each.token))))
    for challenge, response in responses:
        await session.ask(session.client.answer_challenge, challenge, response)
    await _proven(session, pending)
    try:
        order = await session.ask(session.client.begin_finalization, order)
    except IssuerError as error:
        if error.code != "orderNotReady":
            raise
    ends = datetime.now() + timedelta(seconds=FINISH_SECONDS)
    order = await session.ask(session.client.poll_finalization, order, ends)
    return IssuedCertificate(order.fullchain_pem.encode(), key)


def _http_01(authorization: messages.AuthorizationResource) -> messages.ChallengeBody:
    for each in authorization.body.challenges:
        if isinstance(each.chall, challenges.HTTP01):
            return each
    host = authorization.body.identifier.value
    raise IssuerError(f"it takes no proof by http-01 for {host}, and mesh-pilot gives no other")


async def _proven(session: _Session, pending: list[_Pending]) -> None:
    """Wait until the issuer has proven all hosts. Raises IssuerError."""
    waiting = [authorization for authorization, _ in pending]
    with trio.move_on_after(PROOF_SECONDS):
        while waiting:
            still = []
            for authorization in waiting:
                found, _ = await session.ask(session.client.poll, authorization)
                if found.body.status == messages.STATUS_PENDING:
                    still.append(found)
                elif found.body.status != messages.STATUS_VALID:
                    raise IssuerError(_why_invalid(found), "unauthorized")
            waiting = still
            if waiting:
                told = session.told.total_seconds() if session.told is not None else POLL_SECONDS
                await trio.sleep(max(POLL_SECONDS, min(told, LONGEST_POLL_SECONDS)))
        return
    names = ", ".join(each.body.identifier.value for each in waiting)
    raise IssuerError(f"it has not looked at {names} within {PROOF_SECONDS:g} s")


def _why_invalid(authorization: messages.AuthorizationResource) -> str:
    host = _shown(str(authorization.body.identifier.value))
    said = [each.error.detail or each.error.code for each in authorization.body.challenges if each.error is not None]
    return f"{host} is not proven: {_shown(str(said[0])) if said else authorization.body.status.name}"


_NOT_ACME = (
    errors.Error,
    josepy.errors.Error,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
)
"""The library's errors for an answer that makes no sense."""


class _Requests:
    """The library's session of ``requests``: a fetcher makes its requests, for its thread."""

    def __init__(self, fetcher: Fetcher, heard: Callable[[requests.Response], None]) -> None:
        """``heard`` is given each answer first."""
        self._fetcher = fetcher
        self._heard = heard

    def request(
        self, method: str, url: str, *, headers: Mapping[str, str], data: str | bytes | None = None, **_: Any
    ) -> requests.Response:
        """The answer. Raises RequestException, also for a redirect."""
        content = data.encode() if isinstance(data, str) else data
        ask = partial(self._fetcher.ask, url, method=method, headers=headers, content=content)
        try:
            found = trio.from_thread.run(
                partial(ask, limit=MOST_BYTES, seconds=REQUEST_SECONDS, redirects=0, https_only=True, others=True)
            )
        except FetchError as error:
            raise requests.RequestException(str(error)) from None
        if 300 <= found.status < 400:
            raise requests.RequestException(f"{shown_url(url)} redirects elsewhere, which is not followed")
        answer = requests.Response()
        answer.status_code, answer.url, answer._content = found.status, url, found.body
        answer.headers.update(found.headers)
        self._heard(answer)
        return answer

    def close(self) -> None:
        """Nothing is kept open."""


class _Session:
    """Requests to an issuer, with the key of an account. State: nonces, and what the last answer asks us to wait."""

    client: client.ClientV2

    def __init__(self, issuer: AcmeServer, key: bytes) -> None:
        self._issuer = issuer
        self.key = JWKEC(key=serialization.load_pem_private_key(key, None))
        self._net = client.ClientNetwork(self.key, alg=ES256, user_agent=f"mesh-pilot/{__version__}")
        roots = Path(issuer.ca_certificates) if issuer.ca_certificates else None
        self._net.session = cast("requests.Session", _Requests(Fetcher(roots=roots), self._heard))
        self.told: timedelta | None = None

    async def open(self) -> None:
        directory = await self.ask(client.ClientV2.get_directory, self._issuer.directory, self._net)
        self.client = client.ClientV2(directory, self._net)

    async def log_in(self, account: Account, contacts: tuple[str, ...]) -> Account:
        """Use an account, registered if need be. Raises IssuerError."""
        if account.uri and account.contacts == contacts:
            self._net.account = _account(account.uri, contacts)
            return account
        if account.uri:
            self._net.account = _account(account.uri, account.contacts)
            changed = messages.Registration(contact=contacts)
            await self.ask(self.client.update_registration, self._net.account, changed)
            return attrs.evolve(account, contacts=contacts)
        self._net.account = None
        new = messages.NewRegistration(contact=contacts, terms_of_service_agreed=True)
        try:
            uri = (await self.ask(self.client.new_account, new)).uri
        except IssuerError as error:
            if not isinstance(error.__cause__, errors.ConflictError):
                raise
            uri = error.__cause__.location  # the key has one: it was registered, and the answer was lost
        self._net.account = _account(uri, contacts)
        return attrs.evolve(account, uri=uri, contacts=contacts)

    async def ask(self, request: Callable[..., T], *arguments: Any) -> T:
        """The answer to a request. Raises IssuerError."""
        for attempt in range(NONCES):
            self.told = None
            try:
                with trio.fail_after(REQUEST_SECONDS + FINISH_SECONDS):
                    return await trio.to_thread.run_sync(request, *arguments, abandon_on_cancel=True)
            except messages.Error as error:
                if error.code == "badNonce" and attempt + 1 < NONCES:
                    continue
                detail = str(error.detail or error.description or error.typ)
                raise IssuerError(f"it says {error.code}: {_shown(detail)}", error.code or "", self.told) from error
            except errors.IssuanceError as error:
                said = error.error
                raise IssuerError(
                    f"it does not sign: {_shown(str(said.detail))}", said.code or "", self.told
                ) from error
            except (requests.RequestException, trio.TooSlowError, errors.TimeoutError) as error:
                raise IssuerError(f"it does not answer: {_brief(error)}", "", self.told) from error
            except errors.ConflictError as error:
                raise IssuerError("the key has an account there") from error
            except _NOT_ACME as error:
                raise IssuerError(f"the answer is not ACME: {_brief(error)}", "", self.told) from error
        raise AssertionError

    def _heard(self, response: requests.Response) -> None:
        self.told = wait_of(response.headers.pop("Retry-After", ""), datetime.now(UTC))
        if self.told is not None:  # the library's own waits have no limit
            response.headers["Retry-After"] = f"{min(self.told.total_seconds(), LONGEST_POLL_SECONDS):.0f}"


def wait_of(text: str, now: datetime) -> timedelta | None:
    """The wait that a Retry-After asks for, up to `LONGEST_WAIT`: seconds, or a date; None if it is neither."""
    try:
        if text.isdecimal():
            return timedelta(seconds=min(int(text), LONGEST_WAIT.total_seconds()))
        return min(max(parsedate_to_datetime(text) - now, timedelta(0)), LONGEST_WAIT)
    except (ValueError, TypeError, OverflowError):
        return None


def new_key() -> bytes:
    """A private key, as PEM."""
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _account(uri: str, contacts: tuple[str, ...]) -> messages.RegistrationResource:
    return messages.RegistrationResource(uri=uri, body=messages.Registration(contact=contacts))


def _brief(error: BaseException) -> str:
    """The text of an error, in a line."""
    return _shown(str(error) or type(error).__name__, 200)


def _shown(text: str, most: int = 500) -> str:
    """The words of an issuer as people are shown them: of any length, they come to a file and to the log."""
    plain = "".join(each if each.isprintable() else " " for each in text[: most + 1])
    return plain if len(plain) <= most else f"{plain[:most]}..."
