"""IP addresses as text."""

from __future__ import annotations

import ipaddress


def is_ip(text: str) -> bool:
    """Whether a text is an IPv4 or IPv6 address; one with a zone (``fe80::1%eth0``) is."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
