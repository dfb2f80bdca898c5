"""Encryption of the CA's files where others keep them: AES-256-GCM with keys from a file.

The file has a key a line, 32 bytes in hexadecimal (``openssl rand -hex 32``). The first encrypts; all decrypt, so a
key is replaced by putting the new one before it.
"""

from __future__ import annotations

import base64
import json
import os
import stat
from binascii import Error
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mesh_pilot.security.authority.store import StoreError

FORMAT = "mesh-pilot-ca/1"
PLAIN, ENCRYPTED = "none", "AES-256-GCM"
KEY_BYTES, NONCE_BYTES = 32, 12


def read_keys(path: Path) -> tuple[bytes, ...]:
    """The keys of a file. Raises StoreError, never with their text."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        lines = path.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no ASCII text"
        raise StoreError(f"{path}: the encryption key cannot be read: {reason}") from None
    if mode & 0o007:
        raise StoreError(f"{path}: every user may use this encryption key (mode {mode:04o}); run chmod 600 on it")
    try:
        keys = tuple(map(bytes.fromhex, lines))
    except ValueError:
        keys = ()
    if not keys or any(len(key) != KEY_BYTES for key in keys):
        raise StoreError(
            f"{path}: each line must be a key of {KEY_BYTES} bytes in hexadecimal; make one with: openssl rand -hex 32"
        )
    return keys


def sealed(files: Mapping[str, bytes], keys: Sequence[bytes], place: str) -> bytes:
    """The files as one text, encrypted with the first key; without keys in plaintext.

    ``place`` is bound to it: it cannot be decrypted as that of another place.
    """
    packed = json.dumps({name: content.decode() for name, content in sorted(files.items())}).encode()
    if not keys:
        return _document(PLAIN, packed)
    nonce = os.urandom(NONCE_BYTES)
    return _document(ENCRYPTED, nonce + AESGCM(keys[0]).encrypt(nonce, packed, _bound(place)))


def opened(text: bytes, keys: Sequence[bytes], place: str) -> dict[str, bytes]:
    """The files of such a text. Raises StoreError, also for plaintext where there are keys."""
    try:
        document = json.loads(text)
        found, how = document["format"], document["encryption"]
        data = base64.b64decode(document["data"], validate=True)
    except (ValueError, KeyError, TypeError, RecursionError, Error):
        raise StoreError(f"{place}: what is stored there is not a CA of mesh-pilot's") from None
    if found != FORMAT or how not in (PLAIN, ENCRYPTED):
        raise StoreError(f"{place}: a CA in the form {found!r}, {how!r} cannot be read by this version")
    if how == PLAIN and keys:
        raise StoreError(
            f"{place}: the CA there is not encrypted although a key is given; whoever can write there wins"
        )
    packed = data if how == PLAIN else _decrypted(data, keys, place)
    try:
        files = json.loads(packed)
        return {str(name): content.encode() for name, content in files.items()}
    except (ValueError, AttributeError, RecursionError):
        raise StoreError(f"{place}: the files of the CA there cannot be read") from None


def _decrypted(data: bytes, keys: Sequence[bytes], place: str) -> bytes:
    if not keys:
        raise StoreError(f"{place}: the CA there is encrypted; give its key with --ca-key-encryption-file")
    for key in keys:
        try:
            return AESGCM(key).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], _bound(place))
        except (InvalidTag, ValueError):
            continue
    raise StoreError(
        f"{place}: the CA there cannot be decrypted: the key is another one, or the entry was tampered with"
    )


def _document(how: str, data: bytes) -> bytes:
    return json.dumps({"format": FORMAT, "encryption": how, "data": base64.b64encode(data).decode()}).encode()


def _bound(place: str) -> bytes:
    return f"{FORMAT} {place}".encode()
