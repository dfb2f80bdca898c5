"""Network addresses as text."""

from __future__ import annotations

import ipaddress
import re

UNIX_PREFIX = "unix://"
"""Begins the address of a Unix domain socket: ``unix:///path``, or ``unix://@name`` for an abstract one."""

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = re.compile(rf"{_OCTET}\.{_OCTET}\.{_OCTET}\.{_OCTET}")


def plain_address(text: str) -> str:
    """An IP address or CIDR block as it is usually written; any other text as it is.

    ``2001:db8:0::1`` is ``2001:db8::1``. Host bits are cleared, and a block of one address is that address.
    """
    if ":" not in text and "/" not in text:
        return text
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return text
    return str(network.network_address) if network.num_addresses == 1 else str(network)


def is_ip(text: str) -> bool:
    """True if a string is an IPv4 or IPv6 address; one with an IPv6 zone (``fe80::1%eth0``) is not one to Envoy."""
    # A host name is asked about as often as an address is: an exception for each takes ten times as long.
    if ":" not in text:
        return _IPV4.fullmatch(text) is not None
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return "%" not in text
