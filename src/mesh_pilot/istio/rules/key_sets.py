"""Rules for JSON Web Key Sets (RFC 7517): Envoy refuses a listener with a set that has no key which it can use.

Other keys of a set may be of kinds that Envoy does not know: it passes over them.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping

from cryptography.hazmat.primitives.asymmetric import ec

from mesh_pilot.base.reading import as_string, member

MAX_DEPTH = 100
"""Lists and objects inside each other that Envoy reads."""

MAX_LISTED = 3
"""Unusable keys that a reason names."""

_CURVES: Mapping[str, tuple[str, type[ec.EllipticCurve]]] = {
    "P-256": ("ES256", ec.SECP256R1),
    "P-384": ("ES384", ec.SECP384R1),
    "P-521": ("ES512", ec.SECP521R1),
}
_CURVE_OF = {algorithm: curve for curve, (algorithm, _) in _CURVES.items()}
_RSA_BITS = range(512, 16384 + 1)
_RSA_EXPONENTS = (3, 65537)
_ED25519_BYTES = 32


def key_set_reason(text: str) -> str:
    """The reason why a key set, written in JSON, is refused; or an empty string."""
    try:
        found = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_number, parse_float=_number, parse_int=_number
        )
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "is not JSON: a string has half of a surrogate pair"
    except ValueError as problem:
        return f"is not JSON: {problem}"
    except RecursionError:
        return "is nested too deeply for a JSON Web Key Set"
    keys = member(found, "keys")
    if not isinstance(keys, list):
        return 'is not a JSON Web Key Set: an object with a list of "keys"'
    if _is_deeper(found, MAX_DEPTH):
        return "is nested too deeply for a JSON Web Key Set"
    reasons = []
    for index, key in enumerate(keys):
        reason = _key_reason(key)
        if not reason:
            return ""
        reasons.append(f"keys[{index}] {reason}")
    listed = "; ".join(reasons[:MAX_LISTED]) + ("; ..." if len(reasons) > MAX_LISTED else "")
    return f"has no key that proxies can use: {listed or 'it is empty'}"


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is given twice in one object")
    return found


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text:.20} is too large, or is not a number")
    return number


def _is_deeper(value: object, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        level = [inner for outer in level for inner in _inside(outer)]
    return any(isinstance(value, list | dict) for value in level)


def _inside(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _key_reason(key: object) -> str:
    """The reason why Envoy does not use a key, or an empty string."""
    if not isinstance(key, dict):
        return "is not an object"
    algorithm = as_string(key, "alg")
    # As Envoy's jwt_verify_lib: it chooses by kty, and an alg for another kty makes the key unusable.
    match key.get("kty"):
        case "RSA":
            return _rsa_reason(key, algorithm)
        case "EC":
            return _ec_reason(key, algorithm)
        case "oct":
            if algorithm not in ("", "HS256", "HS384", "HS512"):
                return f'has an "alg" for another "kty": {algorithm!r}'
            return "" if _octets(key, "k") else 'needs "k" in base64url'
        case "OKP":
            if algorithm not in ("", "EdDSA") or key.get("crv") != "Ed25519":
                return 'has kty "OKP", which is for crv "Ed25519" and alg "EdDSA" only'
            return "" if len(_octets(key, "x")) == _ED25519_BYTES else f'needs an "x" of {_ED25519_BYTES} bytes'
        case None:
            return 'has no "kty"'
        case other:
            return f'has the "kty" {str(other)[:20]!r}; Envoy takes RSA, EC, oct and OKP'


def _rsa_reason(key: Mapping[str, object], algorithm: str) -> str:
    if algorithm and not algorithm.startswith(("RS", "PS")):
        return f'has an "alg" for another "kty": {algorithm[:20]!r}'
    modulus, exponent = _integer(key, "n"), _integer(key, "e")
    if modulus % 2 == 0 or modulus.bit_length() not in _RSA_BITS:
        return f'needs an odd "n" of {_RSA_BITS.start} to {_RSA_BITS.stop - 1} bits, in base64url'
    return "" if exponent in _RSA_EXPONENTS else 'needs an "e" that is 3 or 65537, in base64url ("AQAB")'


def _ec_reason(key: Mapping[str, object], algorithm: str) -> str:
    curve = key.get("crv", "")
    if curve == "":
        curve = _CURVE_OF.get(algorithm) if algorithm else "P-256"
    if not isinstance(curve, str) or curve not in _CURVES:
        return f'has the "crv" {str(curve)[:20]!r}; Envoy takes {", ".join(_CURVES)}'
    expected, shape = _CURVES[curve]
    if algorithm not in ("", expected):
        return f'has the "alg" {algorithm[:20]!r}; that of {curve} is {expected}'
    try:
        ec.EllipticCurvePublicNumbers(_integer(key, "x"), _integer(key, "y"), shape()).public_key()
    except ValueError:
        return f'needs "x" and "y" of a point of {curve}, in base64url'
    return ""


def _integer(key: Mapping[str, object], name: str) -> int:
    return int.from_bytes(_octets(key, name), "big")


def _octets(key: Mapping[str, object], name: str) -> bytes:
    """A member in base64url, with or without padding; empty if it is absent or wrong."""
    text = key.get(name)
    if not isinstance(text, str) or not text.isascii():
        return b""
    bare = "".join(text.split()).replace(".", "=")
    padding = len(bare) - len(bare.rstrip("="))
    if (padding and len(bare) % 4) or "+" in bare or "/" in bare:
        return b""
    try:
        return base64.b64decode(bare + "=" * (-len(bare) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        return b""
