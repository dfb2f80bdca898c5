"""The proxy for a request, by the environment."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit


def proxy_of(server: str, environment: Mapping[str, str]) -> str:
    """The proxy towards a server by ``HTTPS_PROXY``, ``HTTP_PROXY`` and ``NO_PROXY``, as Go reads them; or empty."""
    url = urlsplit(server)
    name = f"{url.scheme}_proxy"
    proxy = environment.get(name.upper()) or environment.get(name) or ""
    port = url.port or (443 if url.scheme == "https" else 80)
    exceptions = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    if not proxy or _is_direct(url.hostname or "", port, exceptions):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_direct(host: str, port: int, exceptions: str) -> bool:
    # The order and the cases are those of golang.org/x/net/http/httpproxy (`useProxy`): an exception is a network, an
    # address, a name with all names below it, or (with a dot or `*.` before it) only names below it; each may have a
    # port. The colons of an IPv6 address do not begin a port.
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    for exception in exceptions.lower().replace(",", " ").split():
        if exception == "*":
            return True
        if address is not None and "/" in exception:
            try:
                if address in ipaddress.ip_network(exception, strict=False):
                    return True
            except ValueError:
                continue
        name, colon, its_port = exception.rpartition(":")
        if not colon or not its_port.isdigit() or _address(exception) is not None:
            name, its_port = exception, ""
        if its_port and int(its_port) != port:
            continue
        name = name.removeprefix("[").removesuffix("]")
        if address is not None:
            if _address(name) == address:
                return True
        elif (host == name.removeprefix("*").lstrip(".") and not name.startswith((".", "*"))) or host.endswith(
            "." + name.removeprefix("*").lstrip(".")
        ):
            return True
    return False


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
