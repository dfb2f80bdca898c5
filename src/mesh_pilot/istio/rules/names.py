"""Rules for names, hosts, addresses, ports and labels.

Functions called `..._reason` give what is wrong with a value, in words for people, or an empty string.
"""

from __future__ import annotations

import ipaddress
import posixpath
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from mesh_pilot.istio.rules.context import check, error
from mesh_pilot.model.config import Problem
from mesh_pilot.model.net import UNIX_PREFIX, is_ip

MAX_DIGITS = 20
"""The most digits of a port or status that is written as text."""

MAX_UNIX_PATH = 107
"""Bytes of a Unix socket's path, with the `@` of an abstract one: what a socket address has room for."""

MAX_NAME_PART = 500
"""The longest string that becomes a resource's name: a request for a name of over 1024 ends a proxy's stream."""

_LABEL = re.compile(r"[a-zA-Z0-9](?:[-a-zA-Z0-9]*[a-zA-Z0-9])?")
_WILDCARD_LABEL = re.compile(r"\*|(?:\*-?)?[a-zA-Z0-9](?:[-a-zA-Z0-9]*[a-zA-Z0-9])?")
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_LABEL_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_GO_ATOI = re.compile(r"[-+]?[0-9]+")


def is_dns_label(text: str) -> bool:
    """A DNS-1123 label: letters, digits and `-`, at most 63."""
    return len(text) <= 63 and _LABEL.fullmatch(text) is not None


def dns_label_reason(text: str) -> str:
    if is_dns_label(text):
        return ""
    return (
        f'"{text}" is not a DNS label: letters, digits and "-", starting and ending with a letter or digit, at most 63'
    )


def fqdn_reason(name: str) -> str:
    """The fault in a domain name without wildcards."""
    return _length_reason(name) or _labels_reason(name, name)


def wildcard_host_reason(name: str) -> str:
    """The fault in a domain name whose first label may be `*` or start with it."""
    if reason := _length_reason(name):
        return reason
    first, dot, rest = name.partition(".")
    if len(first) > 63 or not _WILDCARD_LABEL.fullmatch(first):
        return f'"{name}" is not a host name: the part "{first}" is not a DNS label or a leading wildcard'
    return _labels_reason(name, rest) if dot else ""


def _length_reason(name: str) -> str:
    if not name:
        return "must not be empty"
    return f'"{name[:40]}..." is longer than 255 characters' if len(name) > 255 else ""


def _labels_reason(name: str, domain: str) -> str:
    parts = domain.split(".")
    if _GO_ATOI.fullmatch(parts[-1]):
        return f'"{name}" is not a host name: its last part "{parts[-1]}" is a number'
    if not parts[-1]:
        parts.pop()
    for part in parts:
        if not is_dns_label(part):
            return f'"{name}" is not a host name: the part "{part}" is not a DNS label'
    return ""


def empty_reason(text: str) -> str:
    return "" if text else "must not be empty"


def negative_reason(number: int) -> str:
    return f"{number} is negative" if number < 0 else ""


def ip_reason(text: str) -> str:
    return "" if is_ip(text) else f'"{text}" is not an IP address'


def subnet_reason(text: str) -> str:
    """The fault in an IP address or a CIDR block; host bits may be set, as Go allows."""
    if "/" not in text:
        return "" if is_ip(text) else f'"{text}" is not an IP address or CIDR block'
    try:
        if not re.fullmatch(r"[^/]+/[0-9]{1,3}", text):
            raise ValueError
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return f'"{text}" is not a CIDR block'
    return ""


def fqdn_or_ip_reason(text: str) -> str:
    if not text:
        return "must not be empty"
    return "" if is_ip(text) or not fqdn_reason(text) else f'"{text}" is not a host name or an IP address'


def unix_path_reason(path: str) -> str:
    """The fault in what follows `unix://`: an absolute path to a file, or `@` and an abstract name."""
    if not path:
        return "the path of a Unix socket must not be empty"
    if (size := len(path.encode())) > MAX_UNIX_PATH:
        return f"the path of a Unix socket has {size} bytes, allowed are {MAX_UNIX_PATH}"
    if "\0" in path:
        return "the path of a Unix socket can't have a zero byte"
    if path.startswith("@"):
        return ""
    if not posixpath.isabs(path) or path.endswith("/"):
        return f'"{path}" is not an absolute path to a file'
    return ""


def bound_ip_reason(text: str) -> str:
    """The fault in an IP address that a proxy itself listens on."""
    if reason := ip_reason(text):
        return reason
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv4Address) or not (address.is_link_local or address.ipv4_mapped):
        return ""
    kind = "a link-local IPv6 address" if address.is_link_local else "an IPv4 address in IPv6 form"
    return f'"{text}" is {kind}, which Envoy can\'t listen on'


def name_part_reason(text: str) -> str:
    """The fault in a string of which the name of a resource is made."""
    if len(text) > MAX_NAME_PART:
        return f"has {len(text)} characters, allowed are {MAX_NAME_PART}"
    return "can't have a zero byte" if "\0" in text else ""


def port_reason(number: int) -> str:
    return "" if 1 <= number <= 65535 else f"{number} is not a port, allowed are 1 to 65535"


def small_number(text: str) -> int | None:
    """The number that decimal digits write; None for anything else, and where there are more than any use has."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS else None


def address_and_port_reason(text: str) -> str:
    """The fault in `host:port`, with an IPv6 address in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon:
        return f'"{text}" is not of the form host:port'
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return f'"{text}" is not of the form host:port; write an IPv6 address in brackets'
    number = small_number(port)
    if number is None:
        return f'"{text}" is not of the form host:port; "{port}" is not a number'
    return port_reason(number) or fqdn_or_ip_reason(host)


@lru_cache(maxsize=1024)  # the endpoints of a service have theirs in common
def label_key_reason(key: str) -> str:
    """The fault in a label's key: an optional DNS name and `/`, then at most 63 characters."""
    prefix, slash, name = key.rpartition("/")
    if slash and fqdn_reason(prefix):
        return f'"{key}" is not a label key: "{prefix}" is not a DNS name'
    if len(name) > 63 or not _LABEL_NAME.fullmatch(name):
        return (
            f'"{key}" is not a label key: letters, digits, "-", "_" and ".", '
            "starting and ending with a letter or digit, at most 63"
        )
    return ""


@lru_cache(maxsize=1024)
def label_value_reason(value: str) -> str:
    if len(value) <= 63 and _LABEL_VALUE.fullmatch(value):
        return ""
    return (
        f'"{value}" is not a label value: letters, digits, "-", "_" and ".", '
        "starting and ending with a letter or digit, at most 63"
    )


def check_labels(path: str, labels: Mapping[str, str]) -> Iterator[Problem]:
    """Keys and values of a set of labels."""
    for key, value in labels.items():
        if reason := label_key_reason(key):
            yield error(f"{path}[{key}]", reason)
        if reason := label_value_reason(value):
            yield error(f"{path}[{key}]", reason)


def trust_domain_reason(domain: str) -> str:
    """The fault in a trust domain: DNS labels between dots, which may be numbers."""
    if not domain:
        return "must not be empty"
    parts = domain.removesuffix(".").split(".")
    return "" if all(map(is_dns_label, parts)) else f'"{domain}" is not a trust domain: DNS labels between dots'


# -- rules for hosts that may carry a namespace (`namespace/host`), and for where listeners bind


def scoped_host_reason(text: str, *, gateway: bool) -> str:
    """The fault in a host of a Gateway (`host` or `namespace/host`) or of a Sidecar (`namespace/host`)."""
    namespace, slash, host = text.partition("/")
    if not slash:
        if not gateway:
            return f'"{text}" is not of the form namespace/host'
        return _host_reason(text, gateway)
    if not namespace or not host:
        return f'"{text}" is not of the form namespace/host'
    allowed = ("*", ".") if gateway else ("*", ".", "~")
    if namespace not in allowed and not is_dns_label(namespace):
        also = '"*" and "."' if gateway else '"*", "." and "~"'
        return f'"{namespace}" is not a namespace; allowed are {also} and names of namespaces'
    return _host_reason(host, gateway)


def _host_reason(host: str, gateway: bool) -> str:
    if gateway and is_ip(host):
        return ""
    if host != "*" and "." not in host:
        return f'"{host}" is a short name; write the full one' if host else "must not be empty"
    if "*" in host[1:] or (host.startswith("*") and host != "*" and not host.startswith("*.")):
        return wildcard_host_reason(host) or f'"{host}": a wildcard must stand alone before the first dot'
    return wildcard_host_reason(host)


def check_bind(path: str, number: int, bind: str, *, bound: bool) -> Iterator[Problem]:
    """Port and address of a listener; `path` is that of the listener. `bound`: a proxy listens there in any case."""
    if bind.startswith(UNIX_PREFIX):
        yield from check(f"{path}.bind", unix_path_reason(bind.removeprefix(UNIX_PREFIX)))
        if number:
            yield Problem(f"{path}.port.number", "must be 0 or absent where bind is a Unix socket")
        return
    if bind:
        yield from check(f"{path}.bind", bound_ip_reason(bind) if bound else ip_reason(bind))
    yield from check(f"{path}.port.number", port_reason(number))
