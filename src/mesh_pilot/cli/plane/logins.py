"""Logins of the user at control planes, by ``mesh-pilot login``: ``logins.json`` next to the contexts file.

Each is kept by the control plane's URL, so that no other is ever shown its token. The file is readable for its owner
alone. A token that is nearly over is renewed by the next command that needs it.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import click

from mesh_pilot.cli.plane.user_files import logins_file

if TYPE_CHECKING:
    from mesh_pilot.identity.openid.provider import Provider, Tokens

EARLY_SECONDS = 30.0
"""The time before its end at which a token is renewed."""


@attrs.frozen(kw_only=True)
class Login:
    """A login at a control plane."""

    issuer: str
    client_id: str
    scopes: tuple[str, ...] = ()
    id_token: str = attrs.field(repr=False)
    refresh_token: str = attrs.field(default="", repr=False)
    until: float
    """The end of the ID token, in seconds since 1970."""

    def again(self, tokens: Tokens) -> Login:
        """The same login with new tokens. Raises ClickException for an ID token that cannot be read."""
        return attrs.evolve(
            self,
            id_token=tokens.id_token,
            refresh_token=tokens.refresh_token or self.refresh_token,
            until=end_of(tokens.id_token),
        )

    def provider(self) -> Provider:
        """The issuer, as the command line asks it: through the proxy of the environment, if there is one."""
        from mesh_pilot.identity.openid.provider import Provider
        from mesh_pilot.identity.openid.settings import ClientSettings
        from mesh_pilot.net.fetching import Fetcher

        # The control plane's file has permitted plain HTTP where its issuer's URL is one.
        is_plain = self.issuer.startswith("http:")
        client = ClientSettings(issuer=self.issuer, client_id=self.client_id, scopes=self.scopes, allow_http=is_plain)
        return Provider(client, Fetcher())


def login_at(url: str) -> Login | None:
    """The login at a control plane; None without one. Raises ClickException for a file that cannot be read."""
    return _read().get(url)


def keep(url: str, login: Login | None) -> None:
    """Keep a login in the file; None: forget it. Raises ClickException."""
    with _locked():
        _write({**_read(), url: login})


def token_at(url: str) -> str:
    """The token for a control plane, renewed if it is nearly over; empty without a login. Raises ClickException."""
    login = login_at(url)
    if login is None:
        return ""
    if time.time() < login.until - EARLY_SECONDS:
        return login.id_token
    with _locked():
        login = login_at(url)  # another command may have renewed it: some issuers take a refresh token once
        if login is None:
            return ""
        if time.time() >= login.until - EARLY_SECONDS:
            login = _renewed(url, login)
            _write({**_read(), url: login})
    return login.id_token


def _renewed(url: str, login: Login) -> Login:
    """The login with new tokens. Raises ClickException where the old ones have expired, and there are no new ones."""
    import trio

    from mesh_pilot.identity.openid.provider import ProviderError, ProviderRefusal

    reason = "the issuer gives no refresh token"
    if login.refresh_token:
        try:
            return login.again(trio.run(login.provider().tokens_again, login.refresh_token))
        except ProviderRefusal as refusal:
            reason = str(refusal)
        except ProviderError as error:
            if time.time() < login.until:
                return login
            raise click.ClickException(f"the login at {url} cannot be renewed now: {error}") from None
    if time.time() < login.until:
        return login
    raise click.ClickException(f"the login at {url} is over ({reason}): mesh-pilot login")


def end_of(id_token: str) -> float:
    """The end of a token, in seconds since 1970: read only, as the control plane is who has to believe it."""
    from mesh_pilot.identity.authenticators.compact_token import read_token
    from mesh_pilot.identity.trust.callers import AuthenticationError

    try:
        return float(read_token(id_token).claims["exp"])
    except (AuthenticationError, KeyError, TypeError, ValueError):
        raise click.ClickException("the issuer gives no ID token: may its client have the scope openid?") from None


def _read() -> Mapping[str, Login | None]:
    file = logins_file()
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        return {str(url): _login(each) for url, each in document.items()}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from None
    except (ValueError, TypeError, AttributeError, KeyError):
        raise click.ClickException(f"{file} has no logins as mesh-pilot login writes them: remove it") from None


def _login(found: Mapping[str, Any]) -> Login:
    return Login(**{**found, "scopes": tuple(found["scopes"]), "until": float(found["until"])})


def _write(logins: Mapping[str, Login | None]) -> None:
    file = logins_file()
    text = json.dumps({url: attrs.asdict(each) for url, each in logins.items() if each is not None}, indent=1)
    new = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(f"{text}\n")
        new.replace(file)
    except OSError as error:
        raise click.ClickException(f"{file}: cannot be written: {error.strerror}") from None


@contextmanager
def _locked() -> Iterator[None]:
    """The turn of this command among others."""
    file = logins_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(file.with_name(".logins.lock"), os.O_WRONLY | os.O_CREAT, 0o600)
    except OSError as error:
        raise click.ClickException(f"{file.parent}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
