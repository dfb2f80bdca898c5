"""Vault as the signer: what it signs is verified, its roots are trusted, and an outage costs nothing in force."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from trio.testing import MockClock

from mesh_pilot.identity.signers.requests import new_request
from mesh_pilot.identity.signers.signing import SignedCertificate, SigningError, SigningRequest
from mesh_pilot.identity.signers.vault.client import MAX_BYTES, REQUEST_SECONDS, VaultClient, VaultError
from mesh_pilot.identity.signers.vault.settings import VaultSettings
from mesh_pilot.identity.signers.vault.signer import REREAD_SECONDS, RETRY_SECONDS, VaultSigner
from mesh_pilot.identity.trust.bundles import TrustStore
from mesh_pilot.model.spiffe import Identity
from tests.identity.signers.fake_vault import NOW, FakeVault, Root, names_of

WEB = Identity("cluster.local", "shop", "web")
DAY = timedelta(days=1)
SETTINGS = VaultSettings(address="http://vault:8200", role="mesh", token="root-token")


class Story:
    def __init__(self, settings: VaultSettings = SETTINGS, vault: FakeVault | None = None) -> None:
        self.vault = vault or FakeVault()
        self.trust = TrustStore()
        client = VaultClient(settings, self.vault.transport())
        self.signer = VaultSigner(settings, self.trust, lambda: NOW, client=client)
        self.key = ec.generate_private_key(ec.SECP256R1())

    async def sign(self, **more: Any) -> SignedCertificate:
        return await self.signer.sign(attrs.evolve(SigningRequest(new_request(self.key), DAY, WEB), **more))

    def count(self, request: str) -> int:
        return self.vault.asked.count(request)


async def test_the_identity_is_signed_and_the_chain_ends_at_the_root(autojump_clock: MockClock) -> None:
    it = Story()
    root = Root("root")
    middle = Root("intermediate", root)
    it.vault.issuers, it.vault.chain = [middle], [root]
    signed = await it.sign()
    leaf, second, third = x509.load_pem_x509_certificates(signed.chain)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.UniformResourceIdentifier(str(WEB))]
    assert (second, third) == (middle.certificate, root.certificate)
    assert signed.not_after == NOW + DAY
    assert it.trust.own().roots == (root.pem,)
    assert it.signer.statistics().signed == 1


async def test_a_server_gets_its_dns_names(autojump_clock: MockClock) -> None:
    signed = await Story().sign(identity=None, dns_names=("pilot.example.com", "localhost"))
    (leaf, _) = x509.load_pem_x509_certificates(signed.chain)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["pilot.example.com", "localhost"]


def _others_name(_: object) -> list[x509.GeneralName]:
    return [x509.UniformResourceIdentifier("spiffe://cluster.local/ns/shop/sa/other")]


def _one_more_host(body: dict[str, Any]) -> list[x509.GeneralName]:
    return [*names_of(body), x509.DNSName("shop.example.com")]


def _twice(body: dict[str, Any]) -> list[x509.GeneralName]:
    return [*names_of(body), *names_of(body)]


WRONG: dict[str, tuple[Callable[[FakeVault], None], str]] = {
    "another's name": (lambda v: setattr(v, "names", _others_name), "sa/other and not, as asked"),
    "a name more": (lambda v: setattr(v, "names", _one_more_host), "DNS shop.example.com"),
    "the name twice": (lambda v: setattr(v, "names", _twice), "exactly"),
    "no name": (lambda v: setattr(v, "names", lambda _: []), "for no name"),
    "another key": (
        lambda v: setattr(v, "key", ec.generate_private_key(ec.SECP256R1()).public_key()),
        "another public key",
    ),
    "a CA": (lambda v: setattr(v, "is_ca", True), "one of a CA"),
    "only for servers": (lambda v: setattr(v, "usages", [ExtendedKeyUsageOID.SERVER_AUTH]), "both servers and clients"),
    "too long": (lambda v: setattr(v, "lifetime", timedelta(days=30)), "longer than"),
    "ended": (lambda v: setattr(v, "lifetime", timedelta(seconds=-10)), "ended already"),
    "an unknown root": (lambda v: setattr(v, "signer", Root("other")), "does not lead to a root"),
    "a root of the same name": (lambda v: setattr(v, "signer", Root("mesh root")), "does not lead to a root"),
}


@pytest.mark.parametrize("how", WRONG)
async def test_a_certificate_that_is_not_as_asked_is_an_error_that_names_the_role(
    how: str, autojump_clock: MockClock
) -> None:
    it = Story()
    spoil, reason = WRONG[how]
    spoil(it.vault)
    with pytest.raises(SigningError, match=reason) as raised:
        await it.sign()
    assert "pki/roles/mesh" in str(raised.value)
    assert it.signer.statistics().failed == {"wrong": 1}


async def test_a_root_that_the_engine_has_since_is_read_when_it_signs(autojump_clock: MockClock) -> None:
    it = Story()
    await it.sign()
    await trio.sleep(RETRY_SECONDS + 1)
    it.vault.issuers.append(Root("next root"))
    await it.sign()
    assert set(it.trust.own().roots) == {root.pem for root in it.vault.issuers}


async def test_an_outage_keeps_roots_and_the_error_says_where(autojump_clock: MockClock) -> None:
    it = Story()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(it.signer.run)
        await trio.sleep(1)
        roots = it.trust.own().roots
        assert len(roots) == 1
        it.vault.is_away = True
        await trio.sleep(REREAD_SECONDS + 10)
        assert it.trust.own().roots == roots
        with pytest.raises(VaultError, match=r"http://vault:8200/v1/pki/sign/mesh: connection refused") as raised:
            await it.sign()
        assert raised.value.reason == "unreachable"
        assert "connection refused" in it.signer.statistics().trouble
        it.vault.is_away = False
        await it.sign()
        await trio.sleep(RETRY_SECONDS + 1)
        assert it.signer.statistics().trouble == ""
        it.vault.is_away = True
        await trio.sleep(REREAD_SECONDS + 10)
        it.vault.is_away = False
        await trio.sleep(RETRY_SECONDS + 1)
        assert it.signer.statistics().trouble == ""
        nursery.cancel_scope.cancel()


async def test_revocation_lists_are_shown_while_they_are_in_force_and_revoke_anything(
    autojump_clock: MockClock,
) -> None:
    it = Story()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(it.signer.run)
        await trio.sleep(1)
        assert it.trust.own().crls == ()
        it.vault.issuers[0].revoked.append(4711)
        await trio.sleep(REREAD_SECONDS + 1)
        (crl,) = it.trust.own().crls
        assert x509.load_pem_x509_crl(crl).get_revoked_certificate_by_serial_number(4711) is not None
        it.vault.crl_ends = NOW + timedelta(minutes=10)
        await trio.sleep(REREAD_SECONDS + 1)
        assert it.trust.own().crls == ()
        nursery.cancel_scope.cancel()


async def test_without_its_root_the_engine_needs_a_file_of_roots(tmp_path: Path, autojump_clock: MockClock) -> None:
    root = Root("outside")
    it = Story()
    it.vault.issuers = [Root("intermediate", root)]
    with pytest.raises(SigningError, match="--vault-roots"):
        await it.sign()
    file = tmp_path / "roots.pem"
    file.write_bytes(root.pem)
    named = Story(attrs.evolve(SETTINGS, roots_file=file))
    named.vault.issuers = it.vault.issuers
    await named.sign()
    assert named.trust.own().roots == (root.pem,)


# -- tokens


async def test_a_token_in_a_file_is_read_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    file = tmp_path / "token"
    file.write_text("root-token\n")
    it = Story(attrs.evolve(SETTINGS, token="", token_file=file))
    await it.sign()
    it.vault.tokens = {"second"}
    with pytest.raises(VaultError, match="403 permission denied") as raised:
        await it.sign()
    assert raised.value.reason == "forbidden"
    file.write_text("second")
    await it.sign()
    file.unlink()
    with pytest.raises(VaultError, match="No such file"):
        await it.sign()


@pytest.fixture
def approle(tmp_path: Path) -> VaultSettings:
    file = tmp_path / "secret-id"
    file.write_text("secret\n")
    return attrs.evolve(SETTINGS, token="", role_id="pilot", secret_id_file=file)


LOGIN, RENEW = "POST auth/approle/login", "POST auth/token/renew-self"


async def test_an_approle_logs_in_once_and_renews_its_token(approle: VaultSettings, autojump_clock: MockClock) -> None:
    it = Story(approle)
    await it.sign()
    await it.sign()
    assert (it.count(LOGIN), it.count(RENEW)) == (1, 0)
    await trio.sleep(2500)
    await it.sign()
    assert (it.count(LOGIN), it.count(RENEW)) == (1, 1)


async def test_an_approle_logs_in_again_when_its_token_is_gone_or_gets_no_more_time(
    approle: VaultSettings, autojump_clock: MockClock
) -> None:
    it = Story(approle)
    await it.sign()
    it.vault.tokens.clear()
    await trio.sleep(61)
    await it.sign()
    assert it.count(LOGIN) == 2
    await trio.sleep(2500)
    it.vault.lease_seconds = 1100
    await it.sign()
    assert (it.count(LOGIN), it.count(RENEW)) == (3, 1)
    await trio.sleep(5000)
    await it.sign()


async def test_a_fresh_token_that_is_refused_is_kept_for_a_minute(
    approle: VaultSettings, autojump_clock: MockClock
) -> None:
    it = Story(approle)
    it.vault.is_forbidden = True
    for seconds, logins in ((0, 1), (10, 1), (40, 1), (15, 2), (20, 2)):
        await trio.sleep(seconds)
        for _ in range(20):
            with pytest.raises(VaultError, match="403 permission denied"):
                await it.sign()
        assert it.count(LOGIN) == logins
    it.vault.is_forbidden = False
    await it.sign()
    assert it.count(LOGIN) == 2


@pytest.mark.parametrize("seconds", [0, 30, 600])
async def test_a_renewal_is_no_longer_than_what_it_renews_whatever_the_role_adds(
    autojump_clock: MockClock, seconds: int
) -> None:
    it = Story(SETTINGS)
    it.vault.begins_early = timedelta(seconds=seconds)
    certificate = x509.load_pem_x509_certificate((await it.sign(lifetime=timedelta(hours=1))).chain)
    whole = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    for _ in range(5):
        it.signer = Story(SETTINGS, it.vault).signer  # a replica that has signed nothing yet
        certificate = x509.load_pem_x509_certificate((await it.sign(renews=certificate)).chain)
        assert certificate.not_valid_after_utc - certificate.not_valid_before_utc <= whole
    assert certificate.not_valid_after_utc - certificate.not_valid_before_utc == whole


async def test_a_refused_login_says_so_without_the_secret(approle: VaultSettings, autojump_clock: MockClock) -> None:
    it = Story(approle)
    it.vault.secret_ids.clear()
    with pytest.raises(VaultError, match="auth/approle/login: 400 invalid role or secret ID") as raised:
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
    body: httpx.AsyncByteStream, coding: str, reason: str, code: str, autojump_clock: MockClock
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-encoding": coding}, stream=body)

    began = trio.current_time()
    with pytest.raises(VaultError, match=reason) as caught:
        await VaultClient(SETTINGS, httpx.MockTransport(answer)).get("pki/ca_chain")
    assert caught.value.reason == code
    assert trio.current_time() <= began + REQUEST_SECONDS


def test_no_token_is_in_a_repr() -> None:
    assert "root-token" not in repr(SETTINGS)
    assert "root-token" not in repr(VaultClient(SETTINGS))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"address": "vault:8200"}, "no URL"),
        ({"role": ""}, "role"),
        ({"token": ""}, "one way to log in"),
        ({"role_id": "x"}, "both its role id"),
        ({"role_id": "x", "secret_id_file": Path("y")}, "one way to log in"),
        ({"client_key": Path("y")}, "needs its key"),
    ],
)
def test_settings_that_cannot_work_are_refused(change: dict[str, Any], problem: str) -> None:
    assert problem in attrs.evolve(SETTINGS, **change).problem()
    assert SETTINGS.problem() == ""
