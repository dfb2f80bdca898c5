"""Relations of host names, each possibly a wildcard (``*`` or ``*.suffix``)."""

from __future__ import annotations

from collections.abc import Iterator


def host_matches(pattern: str, other: str) -> bool:
    """True if two hosts, each possibly a wildcard (``*`` or ``*.suffix``), have a name in common.

    As Istio's ``host.Name.Matches``: a wildcard matches names with its suffix.
    """
    if pattern.startswith("*"):
        if other.startswith("*"):
            return pattern[1:].endswith(other[1:]) or other[1:].endswith(pattern[1:])
        return other.endswith(pattern[1:])
    if other.startswith("*"):
        return pattern.endswith(other[1:])
    return pattern == other


def host_covers(pattern: str, host: str) -> bool:
    """True if ``pattern`` matches every name that ``host`` matches: Istio's ``SubsetOf`` with swapped arguments."""
    if pattern.startswith("*"):
        return host.lstrip("*").endswith(pattern[1:]) if host.startswith("*") else host.endswith(pattern[1:])
    return pattern == host


def covering(host: str) -> Iterator[str]:
    """The patterns ``host`` and ``*.DOMAIN`` that cover a host, for a look-up among many; ``*`` is not one of them."""
    yield host
    at = host.find(".")
    while at >= 0:
        yield f"*{host[at:]}"
        at = host.find(".", at + 1)
