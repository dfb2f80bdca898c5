"""The network as `Fetcher` reaches it: directly, to addresses that were checked, or through a proxy."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path

import httpx
import trio

from mesh_pilot.net.fetching.addresses import CheckedTransport, Lookups, Resolve, addresses_of, check_address
from mesh_pilot.net.fetching.errors import FetchError, shown_url
from mesh_pilot.net.fetching.network import PooledTransport
from mesh_pilot.net.fetching.proxies import proxy_of


def network(
    roots: Path | None, verify: bool, environment: Mapping[str, str], resolve: Resolve | None
) -> httpx.AsyncBaseTransport:
    """The network for servers that are verified by these roots. Raises FetchError if they cannot be read."""
    try:
        context = ssl.create_default_context(cafile=roots) if roots else _public_roots()
    except (OSError, ssl.SSLError) as error:
        raise FetchError(f"the roots in {roots} cannot be read: {error}") from None
    if not verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return _Network(context, environment, resolve or Lookups())


def _public_roots() -> ssl.SSLContext:
    """The roots of ``SSL_CERT_FILE`` or ``SSL_CERT_DIR``, else those of the system and of httpx."""
    context = httpx.create_ssl_context()
    if not os.environ.keys() & {"SSL_CERT_FILE", "SSL_CERT_DIR"}:
        context.load_default_certs()
    return context


class _Network(httpx.AsyncBaseTransport):
    """The network: directly to an address that was checked, or through a proxy. State: a transport for each proxy."""

    def __init__(self, context: ssl.SSLContext, environment: Mapping[str, str], resolve: Resolve) -> None:
        self._context = context
        self._environment = environment
        self._resolve = resolve
        self._direct = CheckedTransport(PooledTransport(context), resolve)
        self._proxied: dict[str, httpx.AsyncBaseTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        proxy = proxy_of(str(request.url.copy_with(username="", password="", path="/", query=None)), self._environment)
        if not proxy:
            return await self._direct.handle_async_request(request)
        # Names are the proxy's to look up: what can be checked here are addresses.
        for address in await addresses_of(request.url.host, _nowhere):
            check_address(request.url.host, address)
        if proxy not in self._proxied:
            try:
                self._proxied[proxy] = PooledTransport(self._context, proxy)
            except (ValueError, httpx.InvalidURL):
                raise FetchError(f"is not asked: the environment's proxy {shown_url(proxy)} cannot be used") from None
        return await self._proxied[proxy].handle_async_request(request)


async def _nowhere(host: str) -> tuple[str, ...]:
    await trio.lowlevel.checkpoint()
    return ()
