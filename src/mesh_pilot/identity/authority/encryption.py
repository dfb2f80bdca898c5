"""Encryption of the CA's files where others keep them (see `sealing`)."""

from __future__ import annotations

import base64
import json
from binascii import Error
from collections.abc import Mapping, Sequence
from pathlib import Path

from mesh_pilot.base import sealing
from mesh_pilot.base.sealing import SealingError, seal, unseal
from mesh_pilot.identity.authority.store import StoreError

FORMAT = "mesh-pilot-ca/1"
PLAIN, ENCRYPTED = "none", "AES-256-GCM"


def read_keys(path: Path) -> tuple[bytes, ...]:
    """The keys of a file. Raises StoreError, never with their text."""
    try:
        return sealing.read_keys(path)
    except SealingError as error:
        raise StoreError(str(error)) from None


def sealed(files: Mapping[str, bytes], keys: Sequence[bytes], place: str) -> bytes:
    """The files as one text, encrypted with the first key; without keys in plaintext.

    ``place`` is bound to it: it cannot be decrypted as that of another place.
    """
    packed = json.dumps({name: content.decode() for name, content in sorted(files.items())}).encode()
    if not keys:
        return _document(PLAIN, packed)
    return _document(ENCRYPTED, seal(packed, keys, _bound(place)))


def opened(text: bytes, keys: Sequence[bytes], place: str) -> dict[str, bytes]:
    """The files of such a string. Raises StoreError, also for plaintext where there are keys."""
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
    try:
        return unseal(data, keys, _bound(place))
    except SealingError as error:
        raise StoreError(f"{place}: the CA there {error}") from None


def _document(how: str, data: bytes) -> bytes:
    return json.dumps({"format": FORMAT, "encryption": how, "data": base64.b64encode(data).decode()}).encode()


def _bound(place: str) -> str:
    return f"{FORMAT} {place}"
