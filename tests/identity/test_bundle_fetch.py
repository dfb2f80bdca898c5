"""Fetching a bundle over HTTPS: the server is verified, and whatever it answers is a bundle or an error."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from mesh_pilot.identity.trust.federation import fetching
from mesh_pilot.identity.trust.spiffe_bundles import BundleDocument, write_bundle
from mesh_pilot.net.fetching import FetchError
from tests.support.certificates import serving, write_certificates
from tests.support.roots import make_root

DOCUMENT = BundleDocument((make_root("east").pem,), 7, 60)


@asynccontextmanager
async def server(tls: ssl.SSLContext, status: str, body: bytes, *headers: str) -> AsyncIterator[str]:
    """An HTTPS server with one answer; gives the URL."""
    head = "\r\n".join((f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close", *headers))

    async def handle(stream: trio.SSLStream[trio.SocketStream]) -> None:
        try:
            await stream.receive_some()
            await stream.send_all(head.encode() + b"\r\n\r\n" + body)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client did not like the certificate, or read no further

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(
            partial(trio.serve_ssl_over_tcp, handle, 0, tls, host="127.0.0.1", https_compatible=True)
        )
        port = listeners[0].transport_listener.socket.getsockname()[1]
        yield f"https://127.0.0.1:{port}/spiffe/bundle"
        nursery.cancel_scope.cancel()


async def test_a_server_that_is_verified_gives_its_bundle(tmp_path: Path) -> None:
    files = write_certificates(tmp_path, "server")
    async with server(serving(files), "200 OK", write_bundle(DOCUMENT).encode()) as url:
        assert await fetching(files.ca)(url) == DOCUMENT
        with pytest.raises(FetchError, match=r"(?i)certificate"):
            await fetching(None)(url)
        with pytest.raises(FetchError, match="cannot be read"):
            await fetching(tmp_path / "nothing")(url)


@pytest.mark.parametrize(
    ("status", "body", "headers", "reason"),
    [
        ("302 Found", b"", ("location: https://127.0.0.1:1/",), "answers 302"),
        ("500 Oops", b"", (), "answers 500"),
        ("200 OK", b"<html>", (), "not JSON"),
        ("200 OK", b"[]", (), "not a JSON object"),
        ("200 OK", b"{}", (), "no SPIFFE bundle: it has no list of keys"),
        ("200 OK", b"[" * 100_000, (), "not JSON"),
        ("200 OK", b"\xff\xfe", (), "not JSON"),
    ],
)
async def test_other_answers_are_errors(
    tmp_path: Path, status: str, body: bytes, headers: tuple[str, ...], reason: str
) -> None:
    files = write_certificates(tmp_path, "server")
    async with server(serving(files), status, body, *headers) as url:
        with pytest.raises(FetchError, match=reason):
            await fetching(files.ca)(url)
