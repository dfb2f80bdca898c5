"""The request that is asked about: a URL, or ``HOST[:PORT]/PATH``, with what else decides where it goes."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

import attrs

_PORTS = {"http": 80, "https": 443, "grpc": 80}
_SCHEMES = ("http", "https", "tcp", "tls", "grpc", "udp")


class WrongRequest(ValueError):
    """A request that cannot be read; its text says why."""


@attrs.frozen
class WhyRequest:
    """A request, or the connection that it would be sent on."""

    host: str
    """As the client names it, in lower case, without brackets."""
    port: int
    path: str = "/"
    """With its query."""
    scheme: str = "http"
    """``http``, ``https``, ``grpc``; ``tcp`` and ``tls`` for connections without requests; ``udp`` for datagrams."""
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    """Names in lower case. ``host`` stands for ``:authority``."""
    names_port: bool = False
    """True if the client's Host header has the port."""
    is_port_given: bool = True
    """False: the port is the scheme's."""
    address: str = ""
    """The address that the client connects to; empty: not known."""
    source: str = ""
    """The address that it connects from; empty: not known."""
    sni: str = ""
    """The server name of its TLS; empty: the host."""
    inbound: bool = False
    """True: a request to the proxy's own application."""
    mtls: bool = True
    """True if an inbound request comes by the mesh's mTLS."""
    principal: str = ""
    """The client's identity in an inbound request by mTLS, ``spiffe://...``; empty: not known."""

    @property
    def is_http(self) -> bool:
        return self.scheme in ("http", "https", "grpc")

    @property
    def is_tls(self) -> bool:
        """True if the client itself speaks TLS."""
        return self.scheme in ("https", "tls")

    @property
    def authority(self) -> str:
        """The Host header."""
        for name, value in self.headers:
            if name in ("host", ":authority"):
                return value
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.names_port else host

    @property
    def server_name(self) -> str:
        """The server name (SNI) that the client's TLS asks for; none for an address."""
        return self.sni or ("" if is_address(self.host) else self.host)

    @property
    def text(self) -> str:
        where = f"{self.scheme}://{'[' + self.host + ']' if ':' in self.host else self.host}:{self.port}"
        return f"{self.method} {where}{self.path}" if self.is_http else where


def parse_request(target: str, headers: Iterable[str] = (), *, method: str = "", **more: object) -> WhyRequest:
    """A request of its text: ``HOST[:PORT][/PATH]`` or a URL; headers as ``NAME=VALUE``. Raises WrongRequest."""
    # Host and port come first, then the scheme: without one, only the port tells (443 means HTTPS, as for people).
    scheme, found, rest = target.partition("://")
    if not found:
        scheme, rest = "", target
    elif scheme.lower() not in _SCHEMES:
        raise WrongRequest(f"the scheme {scheme!r} is not one of {', '.join(_SCHEMES)}")
    try:
        parts = urlsplit(f"//{rest}")
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError as error:
        raise WrongRequest(f"{target!r} is not HOST[:PORT]/PATH: {error}") from None
    if not host:
        raise WrongRequest(f"{target!r} names no host")
    scheme = scheme.lower() or ("https" if port == 443 else "http")
    if not port and scheme not in _PORTS:
        raise WrongRequest(f"{target!r} needs a port")
    path = parts.path or "/"
    if parts.query:
        path += f"?{parts.query}"
    pairs = tuple(_pair(header) for header in headers)
    if scheme == "grpc" and "content-type" not in dict(pairs):
        pairs = (*pairs, ("content-type", "application/grpc"))
    number = port or _PORTS[scheme]
    return WhyRequest(
        host=host,
        port=number,
        path=path,
        scheme=scheme,
        method=(method or ("POST" if scheme == "grpc" else "GET")).upper(),
        headers=pairs,
        names_port=port is not None and port != _PORTS.get(scheme),
        is_port_given=port is not None,
        **more,  # type: ignore[arg-type]  # the other fields, by their names
    )


def is_address(text: str) -> bool:
    """True for an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _pair(header: str) -> tuple[str, str]:
    name, found, value = header.partition("=")
    if not found or not name.strip():
        raise WrongRequest(f"the header {header!r} is not NAME=VALUE")
    return name.strip().lower(), value.strip()
