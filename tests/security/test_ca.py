from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2

from mesh_pilot.failures import Condition
from mesh_pilot.model.resource import IDENTITY_SECRET, TRUST_SECRET
from mesh_pilot.model.spiffe import Identity, parse_identity
from mesh_pilot.security.ca import AuthorityError, CertificateAuthority
from mesh_pilot.security.secrets import Issuer
from mesh_pilot.snapshots import SnapshotStore

NOW = datetime(2024, 3, 1, tzinfo=UTC)
RECO = Identity("cluster.local", "shop", "reco")


def test_an_identity_is_written_and_read_as_istio_does() -> None:
    assert str(RECO) == "spiffe://cluster.local/ns/shop/sa/reco"
    assert parse_identity(str(RECO)) == RECO
    for other in ("", "https://x/ns/a/sa/b", "spiffe://x/a/b", "spiffe:///ns/a/sa/b", "spiffe://x/ns/a/sa/"):
        assert parse_identity(other) is None


def test_a_certificate_names_the_workload_and_chains_to_the_root() -> None:
    authority = CertificateAuthority.ephemeral("cluster.local", NOW)
    issued = authority.issue(RECO, NOW)
    leaf, root = x509.load_pem_x509_certificates(issued.chain)
    leaf.verify_directly_issued_by(root)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [str(RECO)]
    assert issued.not_after == NOW + timedelta(hours=24)
    store = Store(x509.load_pem_x509_certificates(authority.root))
    assert PolicyBuilder().store(store).time(NOW).build_client_verifier().verify(leaf, [])


def test_a_root_in_a_folder_survives_a_restart(tmp_path: Path) -> None:
    first = CertificateAuthority.open(tmp_path / "ca", "cluster.local", NOW)
    second = CertificateAuthority.open(tmp_path / "ca", "cluster.local", NOW)
    assert first.root == second.root
    assert stat.S_IMODE((tmp_path / "ca" / "root-key.pem").stat().st_mode) == 0o600


def test_a_certificate_ends_with_its_root() -> None:
    authority = CertificateAuthority.ephemeral("cluster.local", NOW - timedelta(days=3649, hours=12))
    assert authority.issue(RECO, NOW).not_after < NOW + timedelta(hours=13)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("root-cert.pem", b"rubbish", "not a PEM certificate"),
        ("root-key.pem", b"rubbish", "not a plain PEM private key"),
        ("root-key.pem", None, "No such file"),
    ],
)
def test_a_broken_root_is_refused_by_file(tmp_path: Path, file: str, content: bytes | None, message: str) -> None:
    CertificateAuthority.open(tmp_path, "cluster.local", NOW)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(AuthorityError, match=message) as raised:
        CertificateAuthority.open(tmp_path, "cluster.local", NOW)
    assert file in str(raised.value)


def test_a_key_of_another_root_is_refused(tmp_path: Path) -> None:
    CertificateAuthority.open(tmp_path / "a", "cluster.local", NOW)
    CertificateAuthority.open(tmp_path / "b", "cluster.local", NOW)
    (tmp_path / "a" / "root-key.pem").write_bytes((tmp_path / "b" / "root-key.pem").read_bytes())
    with pytest.raises(AuthorityError, match="is not the key of"):
        CertificateAuthority.open(tmp_path / "a", "cluster.local", NOW)


class Clock:
    def __init__(self) -> None:
        self.now = NOW


def test_proxies_of_one_identity_share_a_certificate_that_is_renewed_at_half_its_life() -> None:
    clock = Clock()
    authority = CertificateAuthority.ephemeral("cluster.local", NOW)
    issuer = Issuer(authority, now=lambda: clock.now)
    woken: list[str] = []
    held = issuer.secrets_of(RECO)
    held.attach("one", lambda: woken.append("one"))
    assert issuer.secrets_of(RECO) is held
    before = held.snapshot()
    first = held.get(IDENTITY_SECRET)
    assert held.snapshot() is before
    due = issuer.renew()
    assert due == NOW + timedelta(hours=12)
    assert woken == []
    clock.now = due
    issuer.renew()
    assert woken == ["one"]
    assert SnapshotStore().diff(before, held.snapshot()) == {IDENTITY_SECRET}
    assert held.get(IDENTITY_SECRET) != first
    assert issuer.statistics().issued == 2


def test_secrets_carry_the_certificate_its_key_and_the_root() -> None:
    clock = Clock()
    authority = CertificateAuthority.ephemeral("cluster.local", NOW)
    held = Issuer(authority, now=lambda: clock.now).secrets_of(RECO)
    resources = held.snapshot().entries
    own = secret_pb2.Secret.FromString(resources[IDENTITY_SECRET].body).tls_certificate
    root = secret_pb2.Secret.FromString(resources[TRUST_SECRET].body).validation_context
    assert b"BEGIN PRIVATE KEY" in own.private_key.inline_bytes
    assert own.certificate_chain.inline_bytes.endswith(authority.root)
    assert root.trusted_ca.inline_bytes == authority.root


def test_an_identity_that_nobody_holds_is_forgotten() -> None:
    clock = Clock()
    authority = CertificateAuthority.ephemeral("cluster.local", NOW)
    issuer = Issuer(authority, now=lambda: clock.now)
    held = issuer.secrets_of(RECO)
    held.attach("one", lambda: None)
    held.detach("one")
    assert issuer.renew() is None
    assert issuer.statistics().identities == 0


def test_a_certificate_that_cannot_be_issued_is_reported_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    authority, now = CertificateAuthority.ephemeral("cluster.local", NOW), NOW

    def fail(*_: object) -> None:
        raise OSError("no entropy")

    issuer = Issuer(authority, now=lambda: now)
    secrets = issuer.secrets_of(RECO)
    secrets.attach("proxy", lambda: None)
    first = secrets.get(IDENTITY_SECRET)
    with monkeypatch.context() as broken:
        broken.setattr(authority, "issue", fail)
        now = NOW + timedelta(hours=23)
        assert issuer.renew() == now + timedelta(seconds=10)
        ((owner, failure),) = issuer.failures.standing()
        assert (owner, failure.state, failure.error) == (secrets, Condition.STALE, "OSError: no entropy")
        assert secrets.get(IDENTITY_SECRET) is first
        late = issuer.secrets_of(Identity("cluster.local", "shop", "late"))
        late.attach("proxy", lambda: None)
        assert late.snapshot().names == {TRUST_SECRET}
    now += timedelta(seconds=10)
    issuer.renew()
    assert list(issuer.failures.standing()) == []
    assert secrets.get(IDENTITY_SECRET) != first
    assert late.snapshot().names == {IDENTITY_SECRET, TRUST_SECRET}
