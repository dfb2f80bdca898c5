"""TLS files of clients: rotated in place, at every client that speaks to a server for long."""

from __future__ import annotations

import os
import shutil
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio
from structlog.testing import capture_logs

from mesh_pilot.consul.client.client import open_http
from mesh_pilot.consul.client.settings import Agent, Tls
from mesh_pilot.identity.signers.remote import CaError
from mesh_pilot.identity.signers.vault.client import VaultClient
from mesh_pilot.identity.signers.vault.settings import VaultSettings
from mesh_pilot.net.rpc import CertificateFiles, TlsError, client_tls, http_client_tls
from tests.support.certificates import serving, write_certificates

ANSWER = (
    b'HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n{"data":{}}'
)

Ask = Callable[[], Awaitable[object]]


@asynccontextmanager
async def server(port: int, certificates: Path) -> AsyncIterator[None]:
    """It takes only clients of its own CA, one request a connection."""
    context = serving(write_certificates(certificates, "server"), mutual=True)

    async def answer(stream: trio.SocketStream) -> None:
        secure = trio.SSLStream(stream, context, server_side=True)
        try:
            await secure.receive_some(65536)
            await secure.send_all(ANSWER)
            await secure.aclose()
        except (trio.BrokenResourceError, ssl.SSLError):
            pass

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(trio.serve_tcp, answer, port, host="127.0.0.1"))
        yield
        nursery.cancel_scope.cancel()


@pytest.fixture
def authorities(tmp_path: Path) -> list[Path]:
    found = [tmp_path / "one", tmp_path / "two"]
    for folder in found:
        folder.mkdir()
        write_certificates(folder, "client")
    return found


def install(authority: Path, into: Path) -> CertificateFiles:
    """The client's files in their place, written over those before."""
    into.mkdir(exist_ok=True)
    for name in ("ca.pem", "client.pem", "client.key"):
        shutil.copy(authority / name, into / name)
    return CertificateFiles(certificate=into / "client.pem", key=into / "client.key", trusted=into / "ca.pem")


@asynccontextmanager
async def by_consul(files: CertificateFiles, url: str) -> AsyncIterator[Ask]:
    tls = Tls(ca_file=files.trusted, certificate=files.certificate, key=files.key)
    async with open_http(Agent(address=url, tls=tls)) as client:
        yield partial(client.get, "/")


@asynccontextmanager
async def by_vault(files: CertificateFiles, url: str) -> AsyncIterator[Ask]:
    settings = VaultSettings(
        address=url,
        role="role",
        ca_certificates=files.trusted,
        client_certificate=files.certificate,
        private_key=files.key,
    )
    client = VaultClient(settings)
    try:
        yield partial(client.get, "x")
    finally:
        await client.aclose()


@asynccontextmanager
async def by_httpx(files: CertificateFiles, url: str) -> AsyncIterator[Ask]:
    async with httpx.AsyncClient(verify=http_client_tls(files), trust_env=False, timeout=60) as client:
        yield partial(client.get, url)


@pytest.mark.parametrize("by", [by_consul, by_vault, by_httpx], ids=lambda by: str(by.__name__))
async def test_a_client_follows_files_that_are_rotated(
    by: Callable[..., object], authorities: list[Path], tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    one, two = authorities
    (free_port,) = free_ports(1)
    files = install(one, tmp_path / "used")
    async with by(files, f"https://localhost:{free_port}") as ask:  # type: ignore[attr-defined]
        async with server(free_port, one):
            await ask()
        async with server(free_port, two):
            with pytest.raises((httpx.ConnectError, CaError)):
                await ask()
            install(two, tmp_path / "used")
            await ask()


async def test_files_that_are_half_written_leave_the_last_in_force(
    authorities: list[Path], tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    one, _ = authorities
    (free_port,) = free_ports(1)
    files = install(one, tmp_path / "used")
    assert files.certificate is not None and files.key is not None
    async with by_httpx(files, f"https://localhost:{free_port}") as ask, server(free_port, one):
        await ask()
        files.certificate.write_bytes(files.certificate.read_bytes()[:100])
        with capture_logs() as logs:
            await ask()
            await ask()
        files.key.unlink()
        await ask()
    (line,) = logs
    assert "previous ones are kept" in line["event"]
    assert str(files.certificate) in line["error"]


def test_the_systems_roots_are_read_again_too(
    authorities: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = tmp_path / "roots.pem"
    shutil.copy(authorities[0] / "ca.pem", roots)
    monkeypatch.setenv("SSL_CERT_FILE", str(roots))
    monkeypatch.setenv("SSL_CERT_DIR", os.devnull)
    context = http_client_tls()
    source = context._source  # type: ignore[attr-defined]
    before = source.context()
    assert source.context() is before
    shutil.copy(authorities[1] / "ca.pem", roots)
    after = source.context()
    assert after is not before
    assert before.get_ca_certs() != after.get_ca_certs()


@pytest.mark.parametrize("make", [http_client_tls, client_tls], ids=["http", "grpc"])
def test_files_that_cannot_be_used_at_the_start_are_named(make: Callable[..., object], tmp_path: Path) -> None:
    with pytest.raises(TlsError, match=r"absent\.pem"):
        make(CertificateFiles(trusted=tmp_path / "absent.pem"))
