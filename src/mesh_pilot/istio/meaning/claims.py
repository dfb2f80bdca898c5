"""The claims of a token that a match of a VirtualService names as if they were headers."""

from __future__ import annotations

CLAIMS = "@request.auth.claims"
"""Prefix of the header names that mean claims."""


def claim_path(header: str) -> tuple[str, ...]:
    """The path to the claim that a header name means: ``@request.auth.claims[a][b]``, or ``@request.auth.claims.a.b``,
    is ``b`` in ``a``. Empty for names of headers, and for those that mean no claim."""
    if not header.lower().startswith(CLAIMS):
        return ()
    rest = header[len(CLAIMS) :]
    if rest.startswith("[") and rest.endswith("]"):
        parts = tuple(rest[1:-1].split("]["))
    elif rest.startswith("."):
        parts = tuple(rest[1:].split("."))
    else:
        return ()
    return parts if all(parts) else ()
