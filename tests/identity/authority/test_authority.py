from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store

from mesh_pilot.identity.authority import authority as authority_module
from mesh_pilot.identity.authority import folder as folder_module
from mesh_pilot.identity.authority.authority import Authority
from mesh_pilot.identity.authority.certificates import make_crl
from mesh_pilot.identity.authority.folder import FolderStore
from mesh_pilot.identity.authority.material import joined, pem, read_material
from mesh_pilot.identity.authority.revocation import Revocations
from mesh_pilot.identity.authority.rotation import RotationPhase, begin, finish, initial, revoke, switch
from mesh_pilot.identity.authority.settings import AuthoritySettings
from mesh_pilot.identity.authority.store import StoredFiles
from mesh_pilot.identity.signers.signing import SigningError
from mesh_pilot.identity.trust.bundles import Bundle, TrustStore
from mesh_pilot.identity.trust.validity import LOOK_SECONDS
from tests.support.authorities import RECO, LeafRequest, cacerts, make_ca, set_mode, write_files
from tests.support.envoy import eventually

NOW = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Clock:
    def __init__(self) -> None:
        self.time = NOW

    def __call__(self) -> datetime:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


def authority_of(files: dict[str, bytes], clock: Clock, trust: TrustStore | None = None) -> Authority:
    return Authority(StoredFiles(files), "ca", trust or TrustStore(), now=clock)


def parsed(chain: bytes) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(chain)


def is_trusted(chain: bytes, roots: bytes, at: datetime = NOW) -> bool:
    """True if a workload with these roots accepts a client with this chain."""
    leaf, *between = parsed(chain)
    verifier = PolicyBuilder().store(Store(parsed(roots))).time(at).build_client_verifier()
    try:
        verifier.verify(leaf, between)
    except x509.verification.VerificationError:
        return False
    return True


ROOT = make_ca("root", now=NOW)
MIDDLE = make_ca("middle", ROOT, now=NOW)
RSA_ROOT = make_ca("rsa", key=rsa.generate_private_key(65537, 2048), now=NOW)
P384_ROOT = make_ca("p384", key=ec.generate_private_key(ec.SECP384R1()), now=NOW)
RSA_KEY = rsa.generate_private_key(65537, 2048)


@pytest.mark.parametrize("above", [(ROOT,), (MIDDLE, ROOT), (RSA_ROOT,), (P384_ROOT,)])
@pytest.mark.parametrize("key", [ec.generate_private_key(ec.SECP384R1()), RSA_KEY])
def test_a_leaf_has_the_callers_name_and_key_and_leads_to_the_root(
    above: tuple[object, ...], key: ec.EllipticCurvePrivateKey, clock: Clock
) -> None:
    signed = authority_of(cacerts(*above), clock).sign_now(LeafRequest(key=key).signing)  # type: ignore[arg-type]
    leaf, *rest = parsed(signed.chain)
    assert rest == [pair.certificate for pair in above]  # type: ignore[attr-defined]
    assert leaf.public_key() == key.public_key()
    assert leaf.issuer == rest[0].subject
    assert is_trusted(signed.chain, pem(rest[-1]))
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.critical
    assert list(names.value) == [x509.UniformResourceIdentifier(str(RECO))]
    assert not leaf.subject.rdns
    usage = leaf.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.digital_signature, usage.key_encipherment) == (True, isinstance(key, rsa.RSAPrivateKey))
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    purposes = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(purposes) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}


@pytest.mark.parametrize(("above", "aside"), [((RSA_ROOT,), True), ((ROOT,), False)])
async def test_only_a_slow_key_signs_in_a_thread(
    above: tuple[object, ...], aside: bool, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[threading.Thread] = []
    sign_leaf = authority_module.sign_leaf

    def noted(*args: Any) -> x509.Certificate:
        used.append(threading.current_thread())
        return sign_leaf(*args)

    monkeypatch.setattr(authority_module, "sign_leaf", noted)
    authority = authority_of(cacerts(*above), clock)  # type: ignore[arg-type]
    signed = await authority.sign(LeafRequest().signing)
    assert parsed(signed.chain)[0] == signed.leaf
    assert [thread is not threading.main_thread() for thread in used] == [aside]
    assert authority.statistics().signed == 1


def test_a_server_is_named_by_dns_names_and_addresses(clock: Clock) -> None:
    request = LeafRequest(identity=None, dns_names=("mesh-pilot", "::1")).signing
    leaf = parsed(authority_of(initial("x", NOW), clock).sign_now(request).chain)[0]  # type: ignore[arg-type]
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.DNSName("mesh-pilot"), x509.IPAddress(ip_address("::1"))]


def test_lifetimes_are_those_asked_for_within_bounds_and_begin_a_little_early(clock: Clock) -> None:
    settings = AuthoritySettings(max_workload_cert_ttl=2 * HOUR)
    authority = Authority.ephemeral(now=clock, settings=settings)
    for asked, given in ((HOUR, HOUR), (5 * HOUR, 2 * HOUR)):
        signed = authority.sign_now(LeafRequest(lifetime=asked).signing)
        assert (signed.not_before, signed.not_after) == (NOW, NOW + given)
        assert parsed(signed.chain)[0].not_valid_before_utc == NOW - timedelta(minutes=2)
    with pytest.raises(SigningError, match="positive lifetime"):
        authority.sign_now(LeafRequest(lifetime=-HOUR).signing)


def test_no_certificate_lives_longer_than_any_of_its_issuers(clock: Clock) -> None:
    short = make_ca("short", ROOT, now=NOW, lifetime=timedelta(days=10))
    authority = authority_of(cacerts(make_ca("low", short, now=NOW), short, ROOT), clock)
    clock.time = NOW + timedelta(days=10) - HOUR
    assert authority.sign_now(LeafRequest(lifetime=5 * HOUR).signing).not_after == NOW + timedelta(days=10)
    assert any("the intermediate CN=short ends at 2026-03-11" in line for line in authority.warnings())
    clock.time += 2 * HOUR
    with pytest.raises(SigningError, match="the CA ended at"):
        authority.sign_now(LeafRequest().signing)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (rsa.generate_private_key(65537, 1024), "an RSA key of 1024 bits"),
        (ec.generate_private_key(ec.SECP224R1()), "neither RSA nor of P-256"),
        (ed25519.Ed25519PrivateKey.generate(), "neither RSA nor of P-256"),
    ],
)
def test_keys_that_no_envoy_takes_are_not_signed(key: ec.EllipticCurvePrivateKey, message: str, clock: Clock) -> None:
    digest = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    csr = x509.CertificateSigningRequestBuilder(x509.Name([])).sign(key, digest)  # type: ignore[arg-type]
    request = LeafRequest().signing
    request = attrs.evolve(request, csr=csr)
    with pytest.raises(SigningError, match=message):
        Authority.ephemeral(now=clock).sign_now(request)


def steps(clock: Clock) -> Iterator[tuple[RotationPhase, StoredFiles]]:
    files = initial("mesh-pilot", NOW)
    yield RotationPhase.STEADY, StoredFiles(files)
    files = begin(files, read_material(files, "ca", NOW), "mesh-pilot", NOW)
    yield RotationPhase.BEGUN, StoredFiles(files)
    files = switch(files, read_material(files, "ca", NOW))
    yield RotationPhase.SWITCHED, StoredFiles(files)
    files = finish(files, read_material(files, "ca", NOW))
    yield RotationPhase.STEADY, StoredFiles(files)


def test_in_each_step_of_a_rotation_every_certificate_is_trusted_by_those_one_step_behind(clock: Clock) -> None:
    trust = TrustStore()
    authority: Authority | None = None
    seen = []
    for phase, stored in steps(clock):
        if authority is None:
            authority = Authority(stored, "ca", trust, now=clock)
        authority.take(stored)
        assert authority.statistics().phase is phase
        signed = authority.sign_now(LeafRequest().signing).chain
        seen.append((signed, b"".join(trust.own().roots)))
    for before, after in pairwise(seen):
        assert is_trusted(before[0], before[1])
        assert is_trusted(after[0], before[1])
        if after is not seen[-1]:
            assert is_trusted(before[0], after[1])
    assert not is_trusted(seen[0][0], seen[-1][1])
    assert [roots.count(b"BEGIN") for _, roots in seen] == [1, 2, 2, 1]


def test_a_new_issuer_is_told_of_only_when_it_signs(clock: Clock) -> None:
    told: list[str] = []
    (_, steady), *others = steps(clock)
    authority = Authority(steady, "ca", TrustStore(), now=clock)
    authority.on_new_issuer(lambda: told.append(authority.statistics().phase.value))
    for _, stored in others:
        authority.take(stored)
    assert told == ["switched"]


def test_the_end_of_what_the_old_root_signed_is_known_also_after_a_restart(clock: Clock) -> None:
    (_, steady), (_, begun), (_, switched), (_, finished) = steps(clock)
    authority = Authority(steady, "ca", TrustStore(), now=clock)
    authority.sign_now(LeafRequest(lifetime=5 * HOUR).signing)
    assert authority.statistics().old_in_force_until is None
    authority.take(begun)
    authority.take(switched)
    assert authority.statistics().old_in_force_until == NOW + 5 * HOUR
    restarted = Authority(switched, "ca", TrustStore(), now=clock)
    assert restarted.statistics().old_in_force_until == NOW + 24 * HOUR
    clock.time += 5 * HOUR
    assert authority.statistics().old_in_force_until is None
    authority.take(finished)
    assert authority.statistics().phase is RotationPhase.STEADY


def test_nobody_waits_for_certificates_that_are_replaced_at_once(clock: Clock) -> None:
    (_, steady), (_, begun), (_, switched), _ = steps(clock)
    authority = Authority(steady, "ca", TrustStore(), now=clock)
    authority.sign_now(attrs.evolve(LeafRequest().signing, is_followed=True))
    authority.take(begun)
    authority.take(switched)
    assert authority.statistics().old_in_force_until is None


def test_files_that_cannot_be_used_change_nothing_and_are_reported(clock: Clock) -> None:
    trust = TrustStore()
    files = cacerts(MIDDLE, ROOT)
    authority = authority_of(files, clock, trust)
    before = trust.own()
    authority.take(StoredFiles({**files, "ca-key.pem": b"half"}))
    assert trust.own() == before
    assert authority.statistics().problem == "ca: ca-key.pem: not a plain PEM private key"
    assert "the previous files are kept" in authority.warnings()[0]
    authority.sign_now(LeafRequest().signing)
    authority.take(StoredFiles(files))
    assert (authority.statistics().problem, authority.warnings()) == ("", ())


def test_an_outside_root_that_disappears_is_trusted_while_what_was_signed_under_it_is_in_force(clock: Clock) -> None:
    trust = TrustStore()
    authority = authority_of(cacerts(MIDDLE, ROOT), clock, trust)
    authority.sign_now(LeafRequest(lifetime=3 * HOUR).signing)
    other = make_ca("other root", now=NOW)
    below = StoredFiles(cacerts(make_ca("new middle", other, now=NOW), other))
    authority.take(below)
    assert set(trust.own().roots) == {pem(other.certificate), pem(ROOT.certificate)}
    assert "the removed root CN=root stays trusted until 2026-03-01 03:00:00 UTC" in authority.warnings()[0]
    clock.time += 3 * HOUR
    authority.take(below)
    assert trust.own().roots == (pem(other.certificate),)


def test_a_revoked_certificate_is_known_by_its_issuer_and_serial_number(clock: Clock) -> None:
    trust = TrustStore()
    files = initial("mesh-pilot", NOW)
    authority = authority_of(dict(files), clock, trust)
    revoked, other = (parsed(authority.sign_now(LeafRequest().signing).chain)[0] for _ in range(2))
    authority.take(StoredFiles(revoke(files, authority.material, [revoked.serial_number], NOW)))
    known = Revocations(lambda: trust.own().crls)
    assert known.is_revoked(revoked)
    assert not known.is_revoked(other)
    assert len(trust.crls_for_proxies()) == 1


def test_revoking_adds_to_what_is_revoked_and_counts_the_list(clock: Clock) -> None:
    files = initial("mesh-pilot", NOW)
    for serial in (5, 6, 5):
        files = revoke(files, read_material(files, "ca", NOW), [serial], NOW)
    (crl,) = read_material(files, "ca", NOW).crls
    assert sorted(entry.serial_number for entry in crl) == [5, 6]
    assert crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == 3


def test_lists_go_through_a_rotation_with_one_for_each_root(clock: Clock) -> None:
    trust = TrustStore()
    files = dict(initial("mesh-pilot", NOW))
    files = dict(revoke(files, read_material(files, "ca", NOW), [5], NOW))
    authority = authority_of(files, clock, trust)
    counts = []
    for step in (lambda f, m: begin(f, m, "mesh-pilot", NOW), switch, finish):
        files = dict(step(files, read_material(files, "ca", NOW)))
        authority.take(StoredFiles(files))
        counts.append((len(trust.own().roots), len(trust.crls_for_proxies())))
    assert counts == [(2, 2), (2, 2), (1, 1)]


def test_proxies_get_no_lists_unless_all_issuers_have_one_in_force(clock: Clock) -> None:
    """An Envoy that has any list refuses everybody whose issuer has none."""
    trust = TrustStore()
    files = cacerts(MIDDLE, ROOT)
    authority = authority_of(files, clock, trust)
    of_root = pem(make_crl(ROOT, [], NOW))
    of_middle = pem(make_crl(MIDDLE, [5], NOW))
    authority.take(StoredFiles({**files, "ca-crl.pem": of_root}))
    assert trust.crls_for_proxies() == ()
    assert "proxies get no revocation lists: CN=middle has none in force" in authority.warnings()[0]
    authority.take(StoredFiles({**files, "ca-crl.pem": of_root + of_middle}))
    assert trust.crls_for_proxies() == (of_root, of_middle)
    trust.put("elsewhere", Bundle((pem(RSA_ROOT.certificate),)), trust_domain="other.test")
    assert trust.crls_for_proxies() == ()


class Unchanging:
    """A store whose files stay as they are."""

    place = "ca"

    async def changed(self, version: str) -> None:
        await trio.sleep_forever()


async def test_a_list_that_ends_while_its_file_stays_is_withdrawn_within_a_minute(
    clock: Clock, autojump_clock: trio.testing.MockClock
) -> None:
    """An Envoy that has one which ended refuses everybody."""
    trust = TrustStore()
    files = {**cacerts(ROOT, ROOT), "ca-crl.pem": pem(make_crl(ROOT, [5], NOW))}
    authority = authority_of(files, clock, trust)
    assert len(trust.crls_for_proxies()) == 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(authority.run, Unchanging())
        clock.time = ROOT.certificate.not_valid_after_utc + HOUR
        await trio.sleep(LOOK_SECONDS + 1)
        assert trust.crls_for_proxies() == ()
        clock.time = NOW  # it was ahead
        await trio.sleep(LOOK_SECONDS + 1)
        assert len(trust.crls_for_proxies()) == 1
        nursery.cancel_scope.cancel()


def test_after_an_intermediate_was_replaced_its_list_is_needed_until_its_certificates_end(clock: Clock) -> None:
    trust = TrustStore()
    authority = authority_of(cacerts(MIDDLE, ROOT), clock, trust)
    authority.sign_now(LeafRequest().signing)
    second = make_ca("second", ROOT, now=NOW)
    stored = StoredFiles({**cacerts(second, ROOT), "ca-crl.pem": pem(make_crl(second, [], NOW))})
    authority.take(stored)
    assert trust.crls_for_proxies() == ()
    clock.time += HOUR
    authority.take(stored)
    assert len(trust.crls_for_proxies()) == 1


async def test_replicas_that_start_at_once_on_a_folder_have_one_root(tmp_path: Path, clock: Clock) -> None:
    roots = []

    async def replica() -> None:
        store = FolderStore(tmp_path / "ca")
        await trio.lowlevel.checkpoint()
        roots.append((await Authority.open(store, TrustStore(), now=clock)).material.root)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(replica)
    assert len(set(roots)) == 1


async def test_a_running_ca_follows_its_folder(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    monkeypatch.setattr(folder_module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(authority_module, "RETRY_SECONDS", 0.01)
    folder = tmp_path / "ca"
    write_files(folder, cacerts(MIDDLE, ROOT))
    store = FolderStore(folder)
    authority = await Authority.open(store, TrustStore(), now=clock)
    nursery.start_soon(authority.run, store)

    write_files(folder, {"ca-cert.pem": pem(ROOT.certificate)})
    await eventually(lambda: "ca-key.pem: is not the key of ca-cert.pem" in authority.statistics().problem)
    second = make_ca("second", ROOT, now=NOW)
    write_files(folder, cacerts(second, ROOT))
    await eventually(lambda: authority.material.issuer.certificate == second.certificate)
    await eventually(lambda: authority.statistics().problem == "")

    set_mode(folder / "ca-key.pem", 0o644)
    write_files(folder, {"root-cert.pem": joined([ROOT.certificate, RSA_ROOT.certificate])})
    await eventually(lambda: "other users may read" in authority.statistics().problem)
    set_mode(folder / "ca-key.pem", 0o600)
    await eventually(lambda: authority.material.roots == (ROOT.certificate, RSA_ROOT.certificate))
    assert authority.statistics().problem == ""
