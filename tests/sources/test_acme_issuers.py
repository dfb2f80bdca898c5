"""Issuers at their worst: an order fails with a reason, in bounded time and memory, and what is kept of it is small."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from datetime import timedelta

import pytest
import trio

from mesh_pilot.sources.acme import protocol
from mesh_pilot.sources.acme.issued import IssuedCertificate, IssuerError
from mesh_pilot.sources.acme.protocol import LONGEST_WAIT, obtain
from mesh_pilot.sources.acme.stored import Account
from mesh_pilot.sources.acme.wanted import AcmeServer
from tests.support.certificates import CertificateFiles, serving, write_certificates
from tests.support.hostile_servers import (
    ENCODED,
    NO_END,
    OK,
    HostileServers,
    Misbehaviour,
    first,
    half,
    hostile_servers,
    redirect,
    reset,
    whole,
    zeros,
)

MOST_BYTES = 20_000_000
"""What an order may allocate at a time, some times the longest answer."""


def answer(status: str, body: bytes, *headers: str) -> Misbehaviour:
    head = "".join(f"{line}\r\n" for line in (f"content-length: {len(body)}", "connection: close", *headers))
    return lambda sock: sock.sendall(f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body)


def problem(detail: str) -> bytes:
    return json.dumps({"type": "urn:ietf:params:acme:error:rateLimited", "detail": detail}).encode()


BEHAVIOURS: dict[str, Misbehaviour] = {
    "silent": first(),
    "drip-headers": first(OK, again=b"x: y\r\n", pause=0.1),
    "drip": first(NO_END, again=b" ", pause=0.1),
    "endless": first(NO_END, again=bytes(65536)),
    "endless-headers": first(OK, again=b"x: y\r\n" * 1000),
    "bomb": whole(zeros(20_000_000), ENCODED),
    "not-http": first(b"SSH-2.0-x\r\n\r\n"),
    "half": half,
    "reset": reset,
    "elsewhere": redirect("http://169.254.169.254/latest/meta-data/iam"),
    "round": redirect("/round"),
    "html": answer("500 Oops", b"<html>"),
    "deep": whole(b"[" * 400_000),
    "types": whole(b'{"newNonce": 5, "newAccount": {}, "newOrder": null, "meta": [1]}'),
    "numbers": whole(b'{"newNonce": ' + b"9" * 5000 + b"}"),
    "nowhere": whole(b'{"newNonce": "file:///etc/passwd", "newAccount": "http://169.254.169.254/"}'),
    "limited": answer("429 No", problem("no\nlevel=error \x1b[31m" + "x" * 500_000), "retry-after: 99999999999999"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return write_certificates(tmp_path_factory.mktemp("issuers"), "issuer")


@pytest.fixture(scope="module")
def issuers(files: CertificateFiles) -> Iterator[HostileServers]:
    with hostile_servers(serving(files), BEHAVIOURS) as servers:
        yield servers


async def keep(account: Account) -> None:
    raise AssertionError


async def show(answers: object) -> None:
    raise AssertionError


async def order(issuers: HostileServers, files: CertificateFiles, name: str) -> IssuedCertificate:
    return await obtain(AcmeServer(f"https://{issuers.host}/{name}", (), str(files.ca)), None, ["a.test"], keep, show)


@pytest.mark.parametrize("name", [*BEHAVIOURS])
async def test_an_order_fails_with_a_reason_in_bounded_time_and_memory(
    name: str, issuers: HostileServers, files: CertificateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "REQUEST_SECONDS", 0.5)
    tracemalloc.start()
    try:
        with trio.fail_after(20), pytest.raises(IssuerError) as raised:
            await order(issuers, files, name)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
    assert 0 < len(str(raised.value)) < 700 and str(raised.value).isprintable()


async def test_a_limit_that_an_issuer_names_is_believed_for_a_week(
    issuers: HostileServers, files: CertificateFiles
) -> None:
    with pytest.raises(IssuerError, match=r"^it says rateLimited: no level=error  \[31mxxx") as raised:
        await order(issuers, files, "limited")
    assert (raised.value.code, raised.value.told) == ("rateLimited", LONGEST_WAIT)
    assert timedelta(days=7) == LONGEST_WAIT


async def test_an_issuer_that_redirects_is_not_followed(issuers: HostileServers, files: CertificateFiles) -> None:
    with pytest.raises(IssuerError, match="redirects elsewhere, which is not followed"):
        await order(issuers, files, "elsewhere")
