"""Join tokens: what a new workload shows to get its first certificate.

A token is a JSON Web Signature by its own key, after ``mpjt_``. It names a workload, the mesh's trust domain and
its end. What it still allows stands in the record (``identity.tokens.store``), so a token can be revoked, used up, or
bound to networks; one that is not in the record is refused whoever signed it.

All calls block on files: call them in a worker thread.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import secrets
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
from joserfc import jwt
from joserfc.errors import (
    BadSignatureError,
    ConflictAlgorithmError,
    InvalidKeyIdError,
    JoseError,
    MissingAlgorithmError,
    UnsupportedAlgorithmError,
)
from joserfc.jwk import ECKey, KeySet

from mesh_pilot.identity.tokens.store import TokenRecord, TokenStore, TokenStoreError
from mesh_pilot.identity.trust.callers import AuthenticationError, TrustDomains
from mesh_pilot.model.spiffe import Identity, make_identity

PREFIX = "mpjt_"
"""Begins every join token, so that its bearer and those who search for leaked secrets recognise it."""

ALGORITHM = "ES256"
MAX_CHARACTERS = 2048
MAX_LIFETIME = timedelta(days=30)
KEPT = timedelta(days=30)
"""The time for which records of expired tokens are still listed."""

_NO_FORM = "the join token is not complete: it begins with mpjt_ and has three parts separated by dots"


@attrs.frozen
class NewToken:
    """A token that was just made: its text cannot be shown again."""

    text: str = attrs.field(repr=False)
    record: TokenRecord


class JoinTokens:
    """The tokens of one folder; ``now`` gives the wall clock."""

    def __init__(self, folder: Path, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._store = TokenStore(folder)
        self._now = now

    def __repr__(self) -> str:
        return f"<JoinTokens {self._store.folder}>"

    def create(
        self,
        identity: Identity,
        lifetime: timedelta,
        *,
        max_uses: int = 0,
        networks: Iterable[str] = (),
        created_by: str = "",
    ) -> NewToken:
        """Make a token. Raises ValueError for what no token can have, and TokenStoreError."""
        if make_identity(identity.trust_domain, identity.namespace, identity.service_account) is None:
            raise ValueError(f"{identity} is not the SPIFFE id of a namespace and a service account")
        if not timedelta() < lifetime <= MAX_LIFETIME:
            raise ValueError(f"a token lives for more than 0 seconds and at most {MAX_LIFETIME.days} days")
        allowed = tuple(str(ipaddress.ip_network(network)) for network in networks)
        with self._store.locked():
            keys = self._key_set()
            if not keys.keys:
                keys = self._add_key(keys.keys)
            key = keys.keys[0]
            created = self._now().replace(microsecond=0)
            self._forget(created - KEPT)
            id = secrets.token_hex(8)
            expires = created + lifetime
            claims = {
                "jti": id,
                "sub": str(identity),
                "aud": identity.trust_domain,
                "iat": int(created.timestamp()),
                "exp": int(expires.timestamp()),
            }
            text = PREFIX + jwt.encode({"alg": ALGORITHM, "kid": key.kid}, claims, key, algorithms=[ALGORITHM])
            record = TokenRecord(
                id,
                identity,
                _digest(text),
                str(key.kid),
                created,
                created_by,
                expires,
                max_uses=max_uses,
                networks=allowed,
            )
            self._store.put(record)
        return NewToken(text, record)

    def redeem(self, text: str, address: str, trust_domains: TrustDomains) -> Identity:
        """Use a token once; ``address`` is that of its bearer. The identity is in the mesh's own trust domain.

        Raises AuthenticationError and TokenStoreError.
        """
        id, audience = self._verified(text)
        if audience not in trust_domains:
            raise AuthenticationError(
                "audience", f"the join token {id} is for the trust domain {audience!r}, not for {trust_domains.own}"
            )
        with self._store.locked():
            record = self._store.get(id)
            self._check(id, record, text, address)
            assert record is not None
            now = self._now()
            self._store.put(attrs.evolve(record, uses=record.uses + 1, last_used=now, last_address=address))
        return attrs.evolve(record.identity, trust_domain=trust_domains.own)

    def records(self) -> list[TokenRecord]:
        """The record of each token, oldest first. Raises TokenStoreError."""
        return self._store.all()

    def revoke(self, ids: Sequence[str]) -> list[TokenRecord]:
        """Revoke tokens, all or none: each is refused from now on. Raises KeyError for an unknown id."""
        with self._store.locked():
            found = {id: self._store.get(id) for id in dict.fromkeys(ids)}
            for id, record in found.items():
                if record is None:
                    raise KeyError(id)
            now = self._now()
            revoked = [attrs.evolve(r, revoked=r.revoked or now) for r in found.values() if r is not None]
            for record in revoked:
                self._store.put(record)
        return revoked

    def rotate_key(self, *, drop_old: bool = False) -> tuple[str, list[str]]:
        """Sign with a new key from now on; returns its id and those of the keys that are no longer accepted.

        A former key is accepted while a token that it signed is in force, unless ``drop_old``: then all tokens made so
        far are refused. Raises TokenStoreError.
        """
        with self._store.locked():
            now = self._now()
            needed = {record.key_id for record in self._store.all() if record.expires > now and not record.revoked}
            before = self._key_set().keys
            kept = [key for key in before if key.kid in needed and not drop_old]
            added = self._add_key(kept).keys[0]
        return str(added.kid), [str(key.kid) for key in before if key not in kept]

    def _verified(self, text: str) -> tuple[str, str]:
        """The id and the audience of a token that one of our keys signed and that is not over."""
        if len(text) > MAX_CHARACTERS or not text.isascii() or text.count(".") != 2:
            raise AuthenticationError("form", _NO_FORM)
        try:
            claims = jwt.decode(text.removeprefix(PREFIX), self._key_set(), algorithms=[ALGORITHM]).claims
        except BadSignatureError:
            raise AuthenticationError("signature", "the join token's signature is wrong: it was changed") from None
        except InvalidKeyIdError:
            raise AuthenticationError(
                "unknown_key", "the join token was signed with a key that this control plane does not have (any more)"
            ) from None
        except (UnsupportedAlgorithmError, MissingAlgorithmError, ConflictAlgorithmError):
            raise AuthenticationError("algorithm", f"the join token is not signed with {ALGORITHM}") from None
        except (JoseError, ValueError, RecursionError):
            raise AuthenticationError("form", _NO_FORM) from None
        id, audience, expires = claims.get("jti"), claims.get("aud"), claims.get("exp")
        if not (isinstance(id, str) and isinstance(audience, str) and isinstance(expires, int)):
            raise AuthenticationError("form", _NO_FORM)
        if self._now().timestamp() >= expires:
            raise AuthenticationError("expired", f"the join token {id} has expired; make a new one")
        return id, audience

    def _check(self, id: str, record: TokenRecord | None, text: str, address: str) -> None:
        if record is None:
            raise AuthenticationError("unknown", f"the join token {id} is not in the record of tokens")
        if not hmac.compare_digest(record.digest, _digest(text)):
            raise AuthenticationError("unknown", f"another token has the id {id} in the record of tokens")
        if record.revoked is not None:
            raise AuthenticationError("revoked", f"the join token {id} was revoked")
        if record.networks and not _is_within(address, record.networks):
            allowed = ", ".join(record.networks)
            raise AuthenticationError("address", f"the join token {id} may be used from {allowed}, not from {address}")
        if record.max_uses and record.uses >= record.max_uses:
            raise AuthenticationError(
                "replayed", f"the join token {id} was already used {record.uses} of {record.max_uses} times"
            )

    def _key_set(self) -> KeySet:
        """The keys in force. Their values are never in an error."""
        try:
            return KeySet([ECKey.import_key(key) for key in self._store.keys()["keys"]])
        except (JoseError, ValueError, KeyError, TypeError):
            raise TokenStoreError(f"{self._store.folder}: its keys cannot be read; make new ones") from None

    def _add_key(self, others: Iterable[Any]) -> KeySet:
        new = ECKey.generate_key("P-256", {"kid": secrets.token_hex(4)})
        keys = KeySet([new, *others])
        self._store.put_keys(keys.as_dict(private=True))
        return keys

    def _forget(self, before: datetime) -> None:
        for record in self._store.all():
            if record.expires < before:
                self._store.remove(record.id)


def token_id(text: str) -> str:
    """The id in a token, which is not secret; empty for a string in another format. Nothing is verified."""
    try:
        payload = text.removeprefix(PREFIX).split(".")[1]
        return str(json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["jti"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _is_within(address: str, networks: Iterable[str]) -> bool:
    try:
        ip = ipaddress.ip_address(address.rpartition(":")[0].strip("[]"))
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return any(ip in ipaddress.ip_network(network) for network in networks)
