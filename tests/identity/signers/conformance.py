"""What the signer over every kind of CA must do, as a suite to inherit from.

    class TestVault(SignerConformance):
        @pytest.fixture
        def asked(self, tmp_path: Path) -> AskedCa: ...

A kind's tests give a fixture ``asked``: a CA in the test's hand (``FakeAuthority``), and the client of that kind.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
import structlog.testing
import trio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from trio.testing import MockClock

from mesh_pilot.identity.signers.remote import (
    ATTEMPTS,
    MOST_AT_ONCE,
    REREAD_SECONDS,
    RETRY_SECONDS,
    SIGN_SECONDS,
    CaError,
    RemoteCa,
    RemoteSigner,
)
from mesh_pilot.identity.signers.requests import new_request
from mesh_pilot.identity.signers.signing import SignedCertificate, SigningError, SigningRequest
from mesh_pilot.identity.trust.bundles import TrustStore
from mesh_pilot.model.spiffe import Identity
from tests.identity.signers.fake_authority import NOW, FakeAuthority, Names, Root

WEB = Identity("cluster.local", "shop", "web")
DAY = timedelta(days=1)


@attrs.define(eq=False)
class AskedCa:
    """A client of a CA, with the CA."""

    ca: RemoteCa
    authority: FakeAuthority
    signing: str
    """How ``asked`` of the CA names a request for a certificate: ``POST pki/sign/mesh``."""
    secret: str
    """What no text may have."""
    chooses_lifetime: bool = False
    """True if the CA gives its own lifetime; the fake's is a day then."""

    @property
    def count(self) -> int:
        """Requests for certificates."""
        return self.authority.asked.count(self.signing)


class Story:
    """A signer over a CA."""

    def __init__(self, asked: AskedCa, roots_file: Path | None = None) -> None:
        self.asked, self.authority = asked, asked.authority
        self.trust = TrustStore()
        self.signer = RemoteSigner(asked.ca, self.trust, lambda: NOW, roots_file=roots_file)
        self.key = ec.generate_private_key(ec.SECP256R1())

    async def sign(self, **more: Any) -> SignedCertificate:
        identity, names = more.get("identity", WEB), more.get("dns_names", ())
        request = SigningRequest(new_request(self.key, identity, names), DAY, WEB)
        return await self.signer.sign(attrs.evolve(request, **more))


def _others_name(_: Names) -> Names:
    return [x509.UniformResourceIdentifier("spiffe://cluster.local/ns/shop/sa/other")]


WRONG: dict[str, tuple[Callable[[FakeAuthority], None], str]] = {
    "another's name": (lambda ca: setattr(ca, "names", _others_name), "sa/other and not, as asked"),
    "a name more": (
        lambda ca: setattr(ca, "names", lambda names: [*names, x509.DNSName("shop.example.com")]),
        "DNS shop.example.com",
    ),
    "the name twice": (lambda ca: setattr(ca, "names", lambda names: [*names, *names]), "exactly"),
    "no name": (lambda ca: setattr(ca, "names", lambda _: []), "for no name"),
    "another key": (
        lambda ca: setattr(ca, "key", ec.generate_private_key(ec.SECP256R1()).public_key()),
        "another public key",
    ),
    "a CA": (lambda ca: setattr(ca, "is_ca", True), "one of a CA"),
    "only for servers": (
        lambda ca: setattr(ca, "usages", [ExtendedKeyUsageOID.SERVER_AUTH]),
        "both servers and clients",
    ),
    "too long": (lambda ca: setattr(ca, "lifetime", timedelta(days=30)), "longer than"),
    "ended": (lambda ca: setattr(ca, "lifetime", timedelta(seconds=-10)), "ended already"),
    "an unknown root": (lambda ca: setattr(ca, "signer", Root("other")), "does not lead to a root"),
    "a root of the same name": (lambda ca: setattr(ca, "signer", Root("mesh root")), "does not lead to a root"),
}


class SignerConformance:
    """The suite."""

    async def test_the_identity_is_signed_and_the_chain_ends_at_the_root(
        self, asked: AskedCa, autojump_clock: MockClock
    ) -> None:
        it = Story(asked)
        root = Root("root")
        middle = Root("intermediate", root)
        it.authority.issuers, it.authority.chain = [middle], [root]
        signed = await it.sign()
        leaf, second, third = x509.load_pem_x509_certificates(signed.chain)
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert list(names) == [x509.UniformResourceIdentifier(str(WEB))]
        assert (second, third) == (middle.certificate, root.certificate)
        assert signed.not_after == NOW + DAY
        assert it.trust.own().roots == (root.pem,)
        assert it.signer.statistics().signed == 1

    async def test_a_server_gets_its_dns_names(self, asked: AskedCa, autojump_clock: MockClock) -> None:
        signed = await Story(asked).sign(identity=None, dns_names=("pilot.example.com", "localhost", "10.0.0.7"))
        leaf = x509.load_pem_x509_certificates(signed.chain)[0]
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == ["pilot.example.com", "localhost"]
        assert list(map(str, names.get_values_for_type(x509.IPAddress))) == ["10.0.0.7"]

    @pytest.mark.parametrize("how", WRONG)
    async def test_a_certificate_that_is_not_as_asked_is_an_error_that_names_the_ca(
        self, how: str, asked: AskedCa, autojump_clock: MockClock
    ) -> None:
        it = Story(asked)
        spoil, reason = WRONG[how]
        spoil(it.authority)
        with pytest.raises(SigningError, match=reason) as raised:
            await it.sign()
        assert it.asked.ca.place in str(raised.value)
        assert it.signer.statistics().failed == {"wrong": 1}

    async def test_a_csr_without_its_names_is_refused_if_the_ca_takes_them_from_there(
        self, asked: AskedCa, autojump_clock: MockClock
    ) -> None:
        it = Story(asked)
        bare = new_request(it.key)
        if not asked.ca.names_from_csr:
            await it.sign(csr=bare)
            return
        with pytest.raises(SigningError, match="is for no name, and this CA takes its names from there"):
            await it.sign(csr=bare)
        with pytest.raises(
            SigningError, match=r"sa/other, .* name exactly URI spiffe://cluster\.local/ns/shop/sa/web in it"
        ):
            await it.sign(csr=new_request(it.key, attrs.evolve(WEB, service_account="other")))
        assert asked.count == 0

    async def test_a_root_that_the_ca_has_since_is_read_when_it_signs(
        self, asked: AskedCa, autojump_clock: MockClock
    ) -> None:
        it = Story(asked)
        await it.sign()
        await trio.sleep(RETRY_SECONDS + 1)
        it.authority.issuers.append(Root("next root"))
        await it.sign()
        assert set(it.trust.own().roots) == {root.pem for root in it.authority.issuers}

    async def test_roots_that_change_at_the_ca_are_pushed(self, asked: AskedCa, autojump_clock: MockClock) -> None:
        it = Story(asked)
        pushed: list[int] = []
        it.trust.on_change(lambda: pushed.append(len(it.trust.own().roots)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(it.signer.run)
            await trio.sleep(1)
            it.authority.issuers.append(Root("next root"))
            await trio.sleep(REREAD_SECONDS + 1)
            del it.authority.issuers[0]
            await trio.sleep(REREAD_SECONDS + 1)
            nursery.cancel_scope.cancel()
        assert pushed == [1, 2, 1]

    async def test_an_outage_keeps_roots_and_the_error_says_where(
        self, asked: AskedCa, autojump_clock: MockClock
    ) -> None:
        it = Story(asked)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(it.signer.run)
            await trio.sleep(1)
            roots = it.trust.own().roots
            assert len(roots) == 1
            it.authority.is_away = True
            await trio.sleep(REREAD_SECONDS + 10)
            assert it.trust.own().roots == roots
            with pytest.raises(CaError, match="connection refused") as raised:
                await it.sign()
            assert raised.value.reason == "unreachable"
            assert "connection refused" in it.signer.statistics().trouble
            it.authority.is_away = False
            await it.sign()
            await trio.sleep(REREAD_SECONDS + 1)
            assert it.signer.statistics().trouble == ""
            nursery.cancel_scope.cancel()

    async def test_a_request_that_may_work_later_is_sent_again_with_jitter_and_then_given_up(
        self, asked: AskedCa, autojump_clock: MockClock
    ) -> None:
        it = Story(asked)
        it.authority.busy = 1
        await it.sign()
        assert asked.count == 2
        it.authority.busy = 100
        began = trio.current_time()
        with pytest.raises(CaError) as raised:
            await it.sign()
        assert raised.value.reason == "busy"
        assert asked.count == 2 + ATTEMPTS
        assert trio.current_time() - began < SIGN_SECONDS

    async def test_what_is_refused_is_not_sent_again(self, asked: AskedCa, autojump_clock: MockClock) -> None:
        it = Story(asked)
        it.authority.is_forbidden = True
        with pytest.raises(CaError) as raised:
            await it.sign()
        assert raised.value.reason == "forbidden"
        assert "; " in str(raised.value), "the error says what to do"
        assert asked.count <= 2  # a client with a session may try another
        assert it.signer.statistics().failed == {"forbidden": 1}

    async def test_only_so_many_requests_are_under_way_at_once(self, asked: AskedCa, autojump_clock: MockClock) -> None:
        it = Story(asked)
        most = 0
        running = 0
        ask = asked.ca.ask

        async def slow(request: SigningRequest) -> list[x509.Certificate]:
            nonlocal most, running
            running += 1
            most = max(most, running)
            await trio.sleep(1)
            running -= 1
            return await ask(request)

        asked.ca.ask = slow  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            for _ in range(3 * MOST_AT_ONCE):
                nursery.start_soon(it.sign)
        assert most == MOST_AT_ONCE
        assert it.signer.statistics().signed == 3 * MOST_AT_ONCE

    async def test_a_file_of_roots_counts_instead_of_those_of_the_ca(
        self, asked: AskedCa, autojump_clock: MockClock, tmp_path: Path
    ) -> None:
        root = Root("outside")
        asked.authority.issuers = [Root("intermediate", root)]
        with pytest.raises(SigningError, match="name a file with roots"):
            await Story(asked).sign()
        file = tmp_path / "roots.pem"
        file.write_bytes(root.pem)
        named = Story(asked, file)
        await named.sign()
        assert named.trust.own().roots == (root.pem,)
        asked.authority.issuers = [Root("another root")]
        with pytest.raises(SigningError, match="does not lead to a root"):
            await named.sign()

    async def test_roots_outlive_a_restart_without_the_ca_but_not_another_ca(
        self, asked: AskedCa, autojump_clock: MockClock, tmp_path: Path
    ) -> None:
        kept = tmp_path / "state" / "roots.pem"

        def started() -> RemoteSigner:
            it.trust = TrustStore()
            return RemoteSigner(asked.ca, it.trust, lambda: NOW, kept=kept)

        it = Story(asked)
        it.signer = started()
        assert it.trust.own().roots == ()
        await it.sign()
        roots = it.trust.own().roots
        it.authority.is_away = True
        it.signer = started()
        assert it.trust.own().roots == roots != ()
        asked.ca.place = "another CA"
        it.signer = started()
        assert it.trust.own().roots == ()
        kept.write_bytes(b"# another CA\nnonsense")
        it.signer = started()
        assert it.trust.own().roots == ()

    async def test_no_certificate_is_asked_for_longer_than_the_mesh_permits(
        self, asked: AskedCa, autojump_clock: MockClock
    ) -> None:
        if asked.chooses_lifetime:
            pytest.skip("the CA gives all certificates the same lifetime")
        it = Story(asked)
        it.signer = RemoteSigner(asked.ca, it.trust, lambda: NOW, longest=timedelta(hours=2))
        certificate = x509.load_pem_x509_certificate((await it.sign(lifetime=timedelta(days=3650))).chain)
        assert certificate.not_valid_after_utc <= NOW + timedelta(hours=2)

    async def test_a_request_that_never_got_its_turn_found_the_ca_busy(
        self, asked: AskedCa, autojump_clock: MockClock
    ) -> None:
        it = Story(asked)

        async def silent(request: SigningRequest) -> list[x509.Certificate]:
            await trio.sleep_forever()
            raise AssertionError

        asked.ca.ask = silent  # type: ignore[method-assign]
        reasons = []

        async def ask() -> None:
            with pytest.raises(CaError) as raised:
                await it.sign()
            reasons.append(raised.value.reason)

        async with trio.open_nursery() as nursery:
            for _ in range(MOST_AT_ONCE + 3):
                nursery.start_soon(ask)
        assert sorted(reasons) == ["busy"] * 3 + ["unreachable"] * MOST_AT_ONCE

    @pytest.mark.parametrize("seconds", [0, 30, 600])
    async def test_a_renewal_is_no_longer_than_what_it_renews_whatever_the_ca_adds(
        self, asked: AskedCa, autojump_clock: MockClock, seconds: int
    ) -> None:
        if asked.chooses_lifetime:
            pytest.skip("the CA gives all certificates the same lifetime")
        it = Story(asked)
        asked.authority.begins_early = timedelta(seconds=seconds)
        certificate = x509.load_pem_x509_certificate((await it.sign(lifetime=timedelta(hours=1))).chain)
        whole = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        for _ in range(5):
            it.signer = Story(asked).signer  # a replica that has signed nothing yet
            certificate = x509.load_pem_x509_certificate((await it.sign(renews=certificate)).chain)
            assert certificate.not_valid_after_utc - certificate.not_valid_before_utc == whole

    async def test_no_secret_is_in_texts_or_the_log(self, asked: AskedCa, autojump_clock: MockClock) -> None:
        it = Story(asked)
        with structlog.testing.capture_logs() as lines:
            for trouble in ("is_forbidden", "is_away"):
                setattr(it.authority, trouble, True)
                with pytest.raises(CaError) as raised:
                    await it.sign()
                assert asked.secret not in str(raised.value)
        assert lines
        for text in (*map(str, lines), repr(it.signer), repr(asked.ca), it.signer.statistics().trouble):
            assert asked.secret not in text
