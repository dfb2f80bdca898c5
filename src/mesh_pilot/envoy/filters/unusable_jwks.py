"""The key that nobody has: what tokens are checked by while their issuer's keys are not known, so that none is good.

It is a point of the curve P-256 found by hashing a sentence, so that whoever doubts can see that there is no private
key: finding one would mean breaking the curve.
"""

from __future__ import annotations

import base64
import hashlib
import json

_SENTENCE = b"mesh-pilot: the key that nobody has"

_P = 2**256 - 2**224 + 2**192 + 2**96 - 1
_B = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B


def _point() -> tuple[int, int]:
    x = int.from_bytes(hashlib.sha256(_SENTENCE).digest(), "big") % _P
    while True:
        square = (x**3 - 3 * x + _B) % _P
        y = pow(square, (_P + 1) // 4, _P)
        if y * y % _P == square:
            return x, y
        x += 1


def _encoded(number: int) -> str:
    return base64.urlsafe_b64encode(number.to_bytes(32, "big")).rstrip(b"=").decode()


def _key_set() -> str:
    x, y = map(_encoded, _point())
    key = {"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "nobody", "x": x, "y": y}
    return json.dumps({"keys": [key]}, separators=(",", ":"))


NOBODYS_KEYS = _key_set()
"""A JSON Web Key Set."""
