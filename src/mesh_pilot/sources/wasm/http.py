"""Requests to servers of modules: within limits of size and time, and not to every address."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from ipaddress import ip_address, ip_network
from typing import cast

import httpx
import trio

from mesh_pilot.sources.jwks.fetch import FetchError, reason_of

IDLE_SECONDS = 15.0
"""The time that a server may be silent."""
MAX_REDIRECTS = 5

_NEVER = tuple(map(ip_network, ("169.254.0.0/16", "fe80::/10", "100.100.100.200/32", "fd00:ec2::254/128")))
"""Addresses that are not asked: link-local ones, and those at which clouds tell machines their credentials."""


def new_client(is_insecure: bool) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        verify=not is_insecure,
        follow_redirects=True,
        max_redirects=MAX_REDIRECTS,
        timeout=IDLE_SECONDS,
        event_hooks={"request": [check_address]},
    )


async def check_address(request: httpx.Request) -> None:
    """Refuse requests to addresses that no server of modules has, also after a redirect."""
    host = request.url.host
    try:
        found = [ip_address(host)]
    except ValueError:
        try:
            answers = await trio.socket.getaddrinfo(host, None)
        except (OSError, UnicodeError):
            return  # the connection will say so
        found = [ip_address(str(address[0]).partition("%")[0]) for *_, address in answers]
    for address in found:
        mapped = getattr(address, "ipv4_mapped", None) or address
        if any(mapped in network for network in _NEVER if network.version == mapped.version):
            raise FetchError(f"{request.url.scheme}://{host} is at {address}, which no module is fetched from")


async def download(
    client: httpx.AsyncClient, url: str, limit: int, headers: dict[str, str] | None = None
) -> tuple[int, httpx.Headers, bytes]:
    """Status, headers and body of an answer of at most so many bytes. Raises FetchError."""
    body = bytearray()
    try:
        async with client.stream("GET", url, headers={"Accept-Encoding": "identity"} | (headers or {})) as answer:
            declared = answer.headers.get("content-length", "")
            if answer.is_success and declared.isdecimal():
                check_size(int(declared), limit)
            async with aclosing(cast("AsyncGenerator[bytes, None]", answer.aiter_bytes())) as parts:
                async for part in parts:
                    body += part
                    check_size(len(body), limit)
            return answer.status_code, answer.headers, bytes(body)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:  # ValueError: a host that has no form for DNS
        raise FetchError(f"{url}: {reason_of(error)}") from None


def check_size(size: int, limit: int) -> None:
    if size > limit:
        raise FetchError(f"has more than {limit} bytes (--wasm-module-bytes)")
