"""Keys of an issuer: fetched when a token first needs them, again when they are old or one is missing.

Whatever tokens are shown, an issuer is asked at most once in ``RETRY_SECONDS``. While it does not answer, the last keys
are kept.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path

import structlog
import trio
from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import ECKey, RSAKey, import_key

from mesh_pilot.base.offload import LARGE_BYTES, offload
from mesh_pilot.base.reading import member
from mesh_pilot.identity.authenticators.token_issuers import TokenIssuer, TokenIssuerError
from mesh_pilot.identity.trust.callers import AuthenticationError, AuthenticatorUnavailable
from mesh_pilot.identity.trust.key_set_fetch import KeySetRef, fetch_keys
from mesh_pilot.net.fetching import Fetcher, FetchError

REFRESH_SECONDS = 1200.0
"""The age at which keys are fetched again."""
RETRY_SECONDS = 10.0
"""The shortest interval between fetches."""
TIMEOUT_SECONDS = 5.0
"""The longest time for a fetch, all its requests together."""
MAX_CANDIDATES = 4
"""Keys that are tried on one token."""
MAX_FILE_BYTES = 1_000_000
RSA_BITS = range(2048, 8192 + 1)
CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}

IssuerKey = RSAKey | ECKey
Fetch = Callable[[TokenIssuer], Awaitable[str]]

log = structlog.get_logger(scope="security")


class IssuerKeys:
    """The public keys of one issuer.

    Mutable state: the keys, when they were fetched, when that was last tried, and why it failed.
    """

    def __init__(self, issuer: TokenIssuer, *, fetch: Fetch | None = None) -> None:
        """Raises TokenIssuerError for keys in the rule that cannot be read."""
        self._issuer = issuer
        self._fetch = fetch or fetching(issuer)
        self._keys: tuple[IssuerKey, ...] | None = None
        self._fetched_at = self._tried_at = float("-inf")
        self._trouble = ""
        self._lock = trio.Lock()
        self.fetches = 0
        """The number of times the issuer was asked."""
        if issuer.jwks:
            try:
                self._keys = read_keys(issuer.jwks)
            except FetchError as error:
                raise TokenIssuerError(f"issuer {issuer.issuer}: jwks {error}") from None

    def __repr__(self) -> str:
        return f"<IssuerKeys of {self._issuer.issuer}: {len(self._keys or ())} keys {self._trouble}>"

    async def find(self, key_id: str | None, algorithm: str) -> tuple[IssuerKey, ...]:
        """The keys that a token may be signed with, at least one.

        Raises AuthenticationError, and AuthenticatorUnavailable while that cannot be told. If cancelled, a fetch is
        finished first, so that callers who go away early do not keep the others without keys.
        """
        found = self._fitting(key_id, algorithm)
        if found and (not self._is_old() or self._lock.locked()):
            return found
        async with self._lock:
            if not self._fitting(key_id, algorithm) or self._is_old():
                await self._refresh()
        if found := self._fitting(key_id, algorithm):
            return found
        if self._keys is None or self._trouble:
            raise AuthenticatorUnavailable(
                f"the keys of the issuer {self._issuer.issuer} is not available now; the control plane's log says why"
            )
        raise AuthenticationError(
            "unknown_key", f"the token is signed with a key that {self._issuer.issuer} does not have"
        )

    def _fitting(self, key_id: str | None, algorithm: str) -> tuple[IssuerKey, ...]:
        """A token without a key id may be signed with any key, but not of many."""
        fitting = [key for key in self._keys or () if _fits(key, algorithm) and key_id in (None, key.kid)]
        if key_id is None and len(fitting) > MAX_CANDIDATES:
            return ()
        return tuple(islice(fitting, MAX_CANDIDATES))

    def _is_old(self) -> bool:
        return not self._issuer.jwks and trio.current_time() >= self._fetched_at + REFRESH_SECONDS

    async def _refresh(self) -> None:
        """Fetch the keys, unless that was tried just now."""
        if self._issuer.jwks or trio.current_time() < self._tried_at + RETRY_SECONDS:
            return
        self._tried_at = trio.current_time()
        self.fetches += 1
        trouble = f"no answer in {TIMEOUT_SECONDS:g} s"
        with trio.move_on_after(TIMEOUT_SECONDS, shield=True):
            try:
                text = await self._fetch(self._issuer)
                self._keys = await offload(len(text) > LARGE_BYTES, partial(read_keys, text))
                self._fetched_at, trouble = trio.current_time(), ""
            except FetchError as error:
                trouble = str(error)
        if trouble and trouble != self._trouble:
            meanwhile = "the issuer's tokens cannot be checked" if self._keys is None else "the last keys are kept"
            log.warning(
                "keys of an issuer cannot be fetched", issuer=self._issuer.issuer, reason=trouble, meanwhile=meanwhile
            )
        elif self._trouble and not trouble:
            log.info("keys of an issuer are fetched again", issuer=self._issuer.issuer)
        self._trouble = trouble


def read_keys(text: str) -> tuple[IssuerKey, ...]:
    """The keys of a JSON Web Key Set that can verify; others, such as those for encryption, are passed over.

    Raises FetchError.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise FetchError("is not JSON") from None
    listed = member(found, "keys")
    if not isinstance(listed, list):
        raise FetchError('is not a JSON Web Key Set: an object with a list of "keys"')
    keys = tuple(_usable(listed))
    if not keys:
        raise FetchError(f"has no key that verifies: RSA of at least {RSA_BITS.start} bits, or EC")
    return keys


def _usable(listed: Iterable[object]) -> Iterable[IssuerKey]:
    for entry in listed:
        if not isinstance(entry, dict) or entry.get("use", "sig") != "sig" or entry.get("kty") not in ("RSA", "EC"):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SecurityWarning)  # about small keys, which are left out
                key = import_key(entry)
        except (JoseError, ValueError, TypeError, KeyError, AttributeError):
            continue
        if isinstance(key, ECKey) or (isinstance(key, RSAKey) and key.public_key.key_size in RSA_BITS):
            yield key


def _fits(key: IssuerKey, algorithm: str) -> bool:
    if key.alg not in (None, algorithm):
        return False
    operations = key.get("key_ops")
    if operations is not None and "verify" not in operations:
        return False
    if isinstance(key, ECKey):
        return CURVES.get(algorithm) == key.curve_name
    return algorithm.startswith(("RS", "PS"))


def fetching(issuer: TokenIssuer) -> Fetch:
    """A Fetch for an issuer: from its file, or from its servers, without a proxy."""
    fetcher = Fetcher(roots=issuer.ca_file, environment={})

    async def fetch(issuer: TokenIssuer) -> str:
        if issuer.jwks_file is not None:
            return await trio.to_thread.run_sync(_from_file, issuer.jwks_file)
        wanted = KeySetRef(issuer.issuer, issuer.jwks_uri)
        return await fetch_keys(fetcher, wanted, TIMEOUT_SECONDS, https_only=not issuer.allow_http)

    return fetch


def _from_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise FetchError(f"cannot read {path}: {error}") from None
