from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store

from mesh_pilot.model.spiffe import Identity, parse_identity
from mesh_pilot.security.ca import AuthorityError, CertificateAuthority

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
