"""Names of foreign objects as names that Kubernetes' rules allow."""

from __future__ import annotations

import re
from hashlib import sha256

_NOT_OF_NAMES = re.compile(r"[^a-z0-9.-]+")
_NOT_OF_LABELS = re.compile(r"[^a-z0-9-]+")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_DIGITS = 8
_LONGEST_NAME = 200
_LONGEST_LABEL = 63


def object_name(*parts: str) -> str:
    """The name of the object that things have, such as ``web`` or ``web.db``; the same for the same things.

    Two names that only differ in characters that are not allowed get different names.
    """
    name = ".".join(filter(None, parts))
    if _NAME.fullmatch(name) and len(name) <= _LONGEST_NAME:
        return name
    return _hashed(re.sub(r"[.-]*\.[.-]*", ".", _NOT_OF_NAMES.sub("-", name.lower())), name, _LONGEST_NAME)


def namespace_name(name: str) -> str:
    """The same for a namespace."""
    plain = _NOT_OF_LABELS.sub("-", name.lower()).strip("-")
    return plain if plain == name and len(plain) <= _LONGEST_LABEL else _hashed(plain, name, _LONGEST_LABEL)


def _hashed(plain: str, name: str, longest: int) -> str:
    kept = plain[: longest - _DIGITS - 1].strip(".-")
    return f"{kept}-{sha256(name.encode()).hexdigest()[:_DIGITS]}".lstrip("-")
