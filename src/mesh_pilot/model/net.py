"""Network addresses as text."""

from __future__ import annotations

import ipaddress

UNIX_PREFIX = "unix://"
"""Begins the address of a Unix domain socket: ``unix:///path``, or ``unix://@name`` for an abstract one."""


def is_ip(text: str) -> bool:
    """Whether a text is an IPv4 or IPv6 address; one with a zone (``fe80::1%eth0``) is."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
