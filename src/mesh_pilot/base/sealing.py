"""Encryption of what is stored: AES-256-GCM with keys from a file.

The file has a key a line, 32 bytes in hexadecimal (``openssl rand -hex 32``). The first encrypts; all decrypt, so a
key is replaced by putting the new one before it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES, NONCE_BYTES = 32, 12


class SealingError(ValueError):
    """Keys that cannot be read, or data that none of them opens: the reason."""


def read_keys(path: Path) -> tuple[bytes, ...]:
    """The keys of a file. Raises SealingError, never with their text."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        lines = path.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
        raise SealingError(f"{path}: the encryption key cannot be read: {reason}") from None
    if mode & 0o007:
        raise SealingError(f"{path}: every user may use this encryption key (mode {mode:04o}); run chmod 600 on it")
    try:
        keys = tuple(map(bytes.fromhex, lines))
    except ValueError:
        keys = ()
    if not keys or any(len(key) != KEY_BYTES for key in keys):
        raise SealingError(
            f"{path}: each line must be a key of {KEY_BYTES} bytes in hexadecimal; make one with: openssl rand -hex 32"
        )
    return keys


def seal(data: bytes, keys: Sequence[bytes], place: str) -> bytes:
    """The data encrypted with the first key. ``place`` is bound to it: it cannot be opened as that of another place."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(keys[0]).encrypt(nonce, data, place.encode())


def unseal(data: bytes, keys: Sequence[bytes], place: str) -> bytes:
    """The data that was sealed with one of the keys. Raises SealingError."""
    for key in keys:
        try:
            return AESGCM(key).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], place.encode())
        except (InvalidTag, ValueError):
            continue
    raise SealingError("cannot be decrypted: the key is another one, or the entry was tampered with")
