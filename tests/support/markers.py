"""What would give a private key or token away: pieces of it in the spellings in which a program may print it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

_PRIVATE = re.compile(rb"-----BEGIN ((?:EC |RSA )?PRIVATE KEY)-----.*?-----END \1-----\n?", re.DOTALL)
PIECE = 16
"""Characters of a spelling that are enough to give it away: 8 bytes or more of a key."""


@attrs.frozen
class Marker:
    """Something that must stay private."""

    name: str
    spellings: tuple[str, ...] = attrs.field(repr=False)

    def is_in(self, text: str) -> bool:
        return any(spelling in text for spelling in self.spellings)


def token_marker(name: str, token: str) -> Marker:
    """The last part of a token; the others are not secret."""
    last = token.rpartition(".")[2]
    return Marker(name, (last[:PIECE], last[-PIECE:], base64.b64encode(token.encode()).decode()[-3 * PIECE : -PIECE]))


def key_markers(name: str, text: bytes) -> Iterator[Marker]:
    """Of each private key in a PEM text."""
    for match in _PRIVATE.finditer(text):
        key = load_pem_private_key(match[0], None)
        assert isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey)
        numbers = key.private_numbers()
        number = numbers.private_value if isinstance(numbers, ec.EllipticCurvePrivateNumbers) else numbers.d
        lines = match[0].decode().split("\n")[1:-2]
        # The beginning is the same for all keys of a kind, and so is the public key at the end.
        piece = lines[0][-12:] if len(lines) < 8 else lines[4][:PIECE]
        encoded = base64.b64encode(match[0]).decode()
        at = len(encoded) // 3
        yield Marker(name, (piece, encoded[at : at + 2 * PIECE], *_number(number)))


def file_markers(folder: Path) -> list[Marker]:
    """Of all private keys in the files of a folder, but YAML: PEM, and JSON Web Keys."""
    found: list[Marker] = []
    for file in (file for file in folder.rglob("*") if file.is_file() and file.suffix != ".yaml"):
        content = file.read_bytes()
        name = file.relative_to(folder).as_posix()
        found += key_markers(name, content)
        if file.suffix == ".json" and b'"d"' in content:
            for key in json.loads(content)["keys"]:
                raw = base64.urlsafe_b64decode(key["d"] + "==")
                found.append(Marker(name, (key["d"][:PIECE], *_number(int.from_bytes(raw, "big")))))
    return found


def given_away(markers: Iterable[Marker], text: str) -> list[str]:
    """The names of those that a string gives away."""
    return sorted({marker.name for marker in markers if marker.is_in(text)})


def _number(number: int) -> tuple[str, ...]:
    raw = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return str(number)[:PIECE], f"{number:x}"[:PIECE], f"{number:X}"[:PIECE], repr(raw[:PIECE])[2:-1]
