"""A JWK provisioner of step-ca: its key, and one-time tokens that it signs, each for one certificate signing request.

The key is kept encrypted at the CA (JWE with a password, RFC 7518 section 4.8), or in a file. joserfc would decrypt it
with up to 300,000 rounds of PBKDF2; step has 600,000, so that is done here.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap
from cryptography.hazmat.primitives.serialization import Encoding
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey, import_key
from joserfc.util import urlsafe_b64decode, urlsafe_b64encode

from mesh_pilot.base.reading import as_integer, as_string

MOST_ROUNDS = 5_000_000
"""Rounds of PBKDF2 that are computed: about two seconds of a thread."""

TOKEN_LIFETIME = timedelta(minutes=5)

EARLY = timedelta(seconds=30)
"""A token begins so much before it is made: clocks differ."""

_WRAPPED = {
    "PBES2-HS256+A128KW": (hashes.SHA256, 16),
    "PBES2-HS384+A192KW": (hashes.SHA384, 24),
    "PBES2-HS512+A256KW": (hashes.SHA512, 32),
}
"""The hash and the length of the key that a password becomes, by algorithm."""

_ALGORITHMS = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "EdDSA"}


class KeyFault(Exception):
    """A key that cannot be used, and why. The message holds nothing of it."""


@attrs.frozen
class Provisioner:
    """A provisioner with its key."""

    name: str
    kid: str
    key: Key = attrs.field(repr=False)
    algorithm: str

    def token(
        self, audience: str, subject: str, names: list[str], csr: x509.CertificateSigningRequest, now: datetime
    ) -> str:
        """A token for these names, good for that one request. step-ca takes each once."""
        digest = hashlib.sha256(csr.public_bytes(Encoding.DER)).digest()
        claims = {
            "iss": self.name,
            "aud": audience,
            "sub": subject,
            "sans": names,
            "iat": int(now.timestamp()),
            "nbf": int((now - EARLY).timestamp()),
            "exp": int((now + TOKEN_LIFETIME).timestamp()),
            "jti": secrets.token_hex(32),
            "cnf": {"x5rt#S256": urlsafe_b64encode(digest).decode()},
        }
        header = {"alg": self.algorithm, "kid": self.kid, "typ": "JWT"}
        return jwt.encode(header, claims, self.key, algorithms=[self.algorithm])


def provisioner_of(name: str, kid: str, key: str, password: str) -> Provisioner:
    """A provisioner whose key is a JWK or PEM, or a JWE that the password decrypts. Raises KeyFault."""
    text = key.strip()
    if text.count(".") == 4 and not text.startswith(("{", "-")):
        if not password:
            raise KeyFault("it is encrypted: name the file of its password in passwordFile")
        text = decrypted(text, password)
    try:
        found = _of_jwk(json.loads(text)) if text.startswith("{") else _of_pem(text)
    except (ValueError, JoseError, RecursionError):
        raise KeyFault("it is neither a JWK nor PEM nor a JWE in its compact form") from None
    if not found.is_private:
        raise KeyFault("it is a public key")
    algorithm = "RS256" if isinstance(found, RSAKey) else _ALGORITHMS.get(str(found.as_dict().get("crv")), "")
    if not algorithm:
        raise KeyFault("it is on a curve that signs nothing: P-256, P-384, P-521 or Ed25519 is needed")
    return Provisioner(name, kid, found, algorithm)


def _of_jwk(data: Mapping[str, Any]) -> Key:
    if data.get("kty") not in ("EC", "RSA", "OKP"):
        raise ValueError("not a key that signs")
    return import_key(dict(data))


def _of_pem(text: str) -> Key:
    for kind in (ECKey, RSAKey, OKPKey):
        try:
            return kind.import_key(text)
        except (ValueError, TypeError, JoseError):
            continue
    raise ValueError("not PEM")


def decrypted(compact: str, password: str) -> str:
    """The content of a JWE that is encrypted with a password. Raises KeyFault."""
    try:
        protected, wrapped, nonce, ciphertext, tag = (urlsafe_b64decode(part.encode()) for part in compact.split("."))
        header: Mapping[str, Any] = json.loads(protected)
    except (ValueError, RecursionError):
        raise KeyFault("it is not a JWE in its compact form") from None
    algorithm, rounds = as_string(header, "alg"), as_integer(header, "p2c")
    if algorithm not in _WRAPPED or as_string(header, "enc") not in ("A128GCM", "A192GCM", "A256GCM"):
        raise KeyFault(f"it is encrypted with {algorithm[:40]!r}; known: {', '.join(_WRAPPED)}, with AES-GCM")
    if not 0 < rounds <= MOST_ROUNDS:
        raise KeyFault(f"the key's password takes {rounds} rounds; at most {MOST_ROUNDS} are computed")
    hashing, length = _WRAPPED[algorithm]
    try:
        salt = algorithm.encode() + b"\0" + urlsafe_b64decode(as_string(header, "p2s").encode())
        kek = PBKDF2HMAC(hashing(), length, salt, rounds).derive(password.encode())
        key = aes_key_unwrap(kek, wrapped)
        return AESGCM(key).decrypt(nonce, ciphertext + tag, compact.split(".")[0].encode()).decode()
    except InvalidUnwrap:
        raise KeyFault("the password in passwordFile is not that of the key") from None
    except Exception as error:  # of a library, about bytes of others: its words might hold them
        raise KeyFault(f"it cannot be decrypted ({type(error).__name__})") from None
