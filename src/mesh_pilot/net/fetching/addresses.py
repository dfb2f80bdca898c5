"""The address that is checked is the one that is connected to: a name is looked up once for each request."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import httpcore
import httpx
import trio

from mesh_pilot.net.fetching.errors import FetchError
from mesh_pilot.net.fetching.owners import OWNER

NEVER = tuple(
    map(
        ip_network,
        ("169.254.0.0/16", "fe80::/10", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32",
         "fd00:ec2::254/128", "fd20:ce::254/128"),
    )
)  # fmt: skip
"""Addresses that are not asked: link-local ones, and those at which clouds tell machines their credentials."""
_NAT64 = ip_network("64:ff9b::/96")

CONNECT_SECONDS = 3.0
"""The time for one address while there are others to try."""
MAX_ADDRESSES = 4
"""Addresses of one name that are tried."""
LOOKUPS = 4
"""Lookups at the same time for one owner. One that is given up holds its thread until the resolver answers."""

Address = IPv4Address | IPv6Address
Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""The IP addresses of a name. Raises OSError and UnicodeError."""


class Lookups:
    """Asks the system's resolver. State: a limit for each owner with lookups under way."""

    def __init__(self) -> None:
        self._limits: dict[str, trio.CapacityLimiter] = {}

    def __repr__(self) -> str:
        return f"<Lookups {', '.join(self._limits)}>"

    async def __call__(self, host: str) -> Sequence[str]:
        """If cancelled, the thread runs to its end."""
        for idle in [owner for owner, limit in self._limits.items() if not limit.statistics().borrowed_tokens]:
            del self._limits[idle]
        limit = self._limits.setdefault(OWNER.get(), trio.CapacityLimiter(LOOKUPS))
        look = partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
        found = await trio.to_thread.run_sync(look, abandon_on_cancel=True, limiter=limit)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))


def check_address(host: str, address: Address) -> None:
    """Raise FetchError for an address that no server of others has."""
    meant: set[Address] = {address}
    if isinstance(address, IPv6Address):
        meant |= {each for each in (address.ipv4_mapped, address.sixtofour) if each is not None}
        if address in _NAT64 or not int(address) >> 32:
            meant.add(IPv4Address(int(address) & 0xFFFFFFFF))
    if any(each in network for each in meant for network in NEVER if network.version == each.version):
        where = host if host == str(address) else f"{host} at {address}"
        raise FetchError(f"leads to {where}: link-local and metadata addresses are not asked")


class CheckedTransport(httpx.AsyncBaseTransport):
    """Sends each request to an address that was checked, under the name of the URL.

    ``inner`` must not keep connections: it knows them by address, and another name at the same address is another
    server.
    """

    def __init__(self, inner: httpx.AsyncBaseTransport, resolve: Resolve | None = None) -> None:
        self._inner = inner
        self._resolve = resolve or Lookups()

    def __repr__(self) -> str:
        return f"<CheckedTransport over {self._inner!r}>"

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        addresses = await addresses_of(host, self._resolve)
        for address in addresses:
            check_address(host, address)
        name = request.url.raw_host.decode("ascii")
        timeout = dict(request.extensions.get("timeout") or {})
        for left in range(min(len(addresses), MAX_ADDRESSES) - 1, -1, -1):
            address = addresses.pop(0)
            if left:
                timeout["connect"] = CONNECT_SECONDS
            to = httpx.Request(
                request.method,
                request.url.copy_with(host=str(address)),
                headers=request.headers,  # Host is among them
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": name, "timeout": timeout},
            )
            try:
                return await self._inner.handle_async_request(to)
            except (httpx.ConnectError, httpcore.ConnectError, httpcore.ConnectTimeout):
                if not left:
                    raise
                timeout = dict(request.extensions.get("timeout") or {})
        raise FetchError(f"cannot be asked: {host} has no address")

    async def aclose(self) -> None:
        await self._inner.aclose()


async def addresses_of(host: str, resolve: Resolve) -> list[Address]:
    """The addresses of a host: itself if it is one. Raises FetchError."""
    try:
        return [ip_address(host)]
    except ValueError:
        pass
    try:
        found = await resolve(host)
    except OSError as error:
        raise FetchError(f"cannot be asked: {host}: {error.strerror or error}") from None
    except UnicodeError:
        raise FetchError(f"cannot be asked: {host} is not a name that DNS can have") from None
    return [ip_address(each.partition("%")[0]) for each in found]
