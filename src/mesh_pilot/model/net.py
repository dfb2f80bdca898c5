"""Network addresses as text."""

from __future__ import annotations

import ipaddress

UNIX_PREFIX = "unix://"
"""Begins the address of a Unix domain socket: ``unix:///path``, or ``unix://@name`` for an abstract one."""


def is_ip(text: str) -> bool:
    """True if a text is an IPv4 or IPv6 address; IPv6 zones (``fe80::1%eth0``) are allowed."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
