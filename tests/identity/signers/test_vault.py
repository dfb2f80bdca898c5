"""Vault as the signer: tokens and logins, revocation lists, and what every kind of CA does."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio
from cryptography import x509
from trio.testing import MockClock

from mesh_pilot.identity.signers.remote import REREAD_SECONDS, CaError
from mesh_pilot.identity.signers.vault.ca import VaultCa
from mesh_pilot.identity.signers.vault.client import VaultClient
from mesh_pilot.identity.signers.vault.settings import AppRole, VaultSettings
from mesh_pilot.identity.signers.wire import MAX_BYTES, REQUEST_SECONDS
from tests.identity.signers.conformance import AskedCa, SignerConformance, Story
from tests.identity.signers.fake_authority import NOW
from tests.identity.signers.fake_vault import FakeVault


@pytest.fixture
def settings(tmp_path: Path) -> VaultSettings:
    """With a token in a file."""
    file = tmp_path / "token"
    file.write_text("root-token\n")
    return VaultSettings(address="http://vault:8200", role="mesh", token_file=file)


def story(settings: VaultSettings) -> tuple[Story, FakeVault]:
    vault = FakeVault()
    ca = VaultCa(settings, VaultClient(settings, vault.transport()))
    return Story(AskedCa(ca, vault, "POST pki/sign/mesh", "root-token")), vault


class TestVault(SignerConformance):
    @pytest.fixture
    def asked(self, settings: VaultSettings) -> AskedCa:
        return story(settings)[0].asked


async def test_revocation_lists_are_shown_while_they_are_in_force_and_revoke_anything(
    settings: VaultSettings, autojump_clock: MockClock
) -> None:
    it, vault = story(settings)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(it.signer.run)
        await trio.sleep(1)
        assert it.trust.own().crls == ()
        vault.issuers[0].revoked.append(4711)
        await trio.sleep(REREAD_SECONDS + 1)
        (crl,) = it.trust.own().crls
        assert x509.load_pem_x509_crl(crl).get_revoked_certificate_by_serial_number(4711) is not None
        vault.crl_ends = NOW + timedelta(minutes=10)
        await trio.sleep(REREAD_SECONDS + 1)
        assert it.trust.own().crls == ()
        nursery.cancel_scope.cancel()


# -- tokens


async def test_a_token_in_a_file_is_read_again(
    tmp_path: Path, settings: VaultSettings, autojump_clock: MockClock
) -> None:
    it, vault = story(settings)
    file = tmp_path / "token"
    await it.sign()
    vault.tokens = {"second"}
    with pytest.raises(CaError, match="403 permission denied") as raised:
        await it.sign()
    assert raised.value.reason == "forbidden"
    file.write_text("second")
    await it.sign()
    file.unlink()
    with pytest.raises(CaError, match="No such file"):
        await it.sign()


@pytest.fixture
def approle(tmp_path: Path, settings: VaultSettings) -> VaultSettings:
    file = tmp_path / "secret-id"
    file.write_text("secret\n")
    role = AppRole(role_id="pilot", secret_id_file=file)
    return attrs.evolve(settings, token_file=None, app_role=role)


LOGIN, RENEW = "POST auth/approle/login", "POST auth/token/renew-self"


async def test_an_approle_logs_in_once_and_renews_its_token(approle: VaultSettings, autojump_clock: MockClock) -> None:
    it, vault = story(approle)
    await it.sign()
    await it.sign()
    assert (vault.asked.count(LOGIN), vault.asked.count(RENEW)) == (1, 0)
    await trio.sleep(2500)
    await it.sign()
    assert (vault.asked.count(LOGIN), vault.asked.count(RENEW)) == (1, 1)


async def test_an_approle_logs_in_again_when_its_token_is_gone_or_gets_no_more_time(
    approle: VaultSettings, autojump_clock: MockClock
) -> None:
    it, vault = story(approle)
    await it.sign()
    vault.tokens.clear()
    await trio.sleep(61)
    await it.sign()
    assert vault.asked.count(LOGIN) == 2
    await trio.sleep(2500)
    vault.lease_seconds = 1100
    await it.sign()
    assert (vault.asked.count(LOGIN), vault.asked.count(RENEW)) == (3, 1)
    await trio.sleep(5000)
    await it.sign()


async def test_a_fresh_token_that_is_refused_is_kept_for_a_minute(
    approle: VaultSettings, autojump_clock: MockClock
) -> None:
    it, vault = story(approle)
    vault.is_forbidden = True
    for seconds, logins in ((0, 1), (10, 1), (40, 1), (15, 2), (20, 2)):
        await trio.sleep(seconds)
        for _ in range(20):
            with pytest.raises(CaError, match="403 permission denied"):
                await it.sign()
        assert vault.asked.count(LOGIN) == logins
    vault.is_forbidden = False
    await it.sign()
    assert vault.asked.count(LOGIN) == 2


async def test_a_refused_login_says_so_without_the_secret(approle: VaultSettings, autojump_clock: MockClock) -> None:
    it, vault = story(approle)
    vault.secret_ids.clear()
    with pytest.raises(CaError, match="auth/approle/login: 400 invalid role or secret ID") as raised:
        await it.sign()
    assert raised.value.reason == "refused"


class Endless(httpx.AsyncByteStream):
    """A body that comes in pieces with pauses. State: how many were asked for."""

    def __init__(self, piece: bytes, pause_seconds: float = 0.0) -> None:
        self.piece, self.pause_seconds, self.asked = piece, pause_seconds, 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self.asked < 100_000:
            self.asked += 1
            await trio.sleep(self.pause_seconds)
            yield self.piece


@pytest.mark.parametrize(
    ("body", "coding", "reason", "code"),
    [
        (Endless(b"x" * 64 * 1024), "identity", f"answers with more than {MAX_BYTES} bytes", "answer"),
        (httpx.ByteStream(gzip.compress(bytes(40_000_000))), "gzip", f"larger than {MAX_BYTES} bytes", "answer"),
        (httpx.ByteStream(gzip.compress(gzip.compress(bytes(9)))), "gzip, gzip", "content coding", "answer"),
        (Endless(b" ", 2.0), "identity", f"no answer in full within {REQUEST_SECONDS:g} s", "unreachable"),
    ],
)
async def test_no_answer_is_read_beyond_its_limits(
    body: httpx.AsyncByteStream, coding: str, reason: str, code: str, settings: VaultSettings, autojump_clock: MockClock
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-encoding": coding}, stream=body)

    began = trio.current_time()
    with pytest.raises(CaError, match=reason) as caught:
        await VaultClient(settings, httpx.MockTransport(answer)).get("pki/ca_chain")
    assert caught.value.reason == code
    assert trio.current_time() <= began + REQUEST_SECONDS


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"address": "vault:8200"}, "not an https URL"),
        ({"token_file": None}, "one way to log in"),
        ({"app_role": AppRole(role_id="x", secret_id_file=Path("y"))}, "one way to log in"),
        ({"private_key": Path("y")}, "privateKey: has no effect without clientCertificate"),
    ],
)
def test_settings_that_cannot_work_are_refused(change: dict[str, Any], problem: str, settings: VaultSettings) -> None:
    assert problem in "; ".join(map(str, attrs.evolve(settings, **change).problems()))
    assert [*settings.problems()] == []
