from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from mesh_pilot.identity.authority.certificates import make_crl
from mesh_pilot.identity.authority.material import AuthorityError, joined, key_pem, pem, read_material
from mesh_pilot.identity.authority.rotation import initial
from tests.support.authorities import cacerts, make_ca

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ROOT = make_ca("root", now=NOW)
MIDDLE = make_ca("middle", ROOT, now=NOW)
ISSUING = make_ca("issuing", MIDDLE, now=NOW)
RSA = make_ca("rsa", ROOT, key=rsa.generate_private_key(65537, 2048), now=NOW)
STRANGER = make_ca("root", now=NOW)
"""A root of the same name, with another key."""

FILES = cacerts(ISSUING, MIDDLE, ROOT)


def test_a_root_of_our_own_is_read_back() -> None:
    material = read_material(initial("mesh-pilot", NOW), "ca", NOW)
    assert material.path == ()
    assert material.roots == (material.issuer.certificate,)


def test_istios_cacerts_are_read_with_their_path_to_the_root() -> None:
    material = read_material(FILES, "ca", NOW)
    assert material.path == (MIDDLE.certificate, ROOT.certificate)
    assert material.root == ROOT.certificate


def test_rsa_and_every_curve_that_envoy_takes_may_sign() -> None:
    for key in (RSA.key, *(ec.generate_private_key(curve()) for curve in (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1))):
        pair = make_ca("any", ROOT, key=key, now=NOW)
        assert read_material(cacerts(pair, ROOT), "ca", NOW).issuer.certificate == pair.certificate


def test_folders_of_older_versions_are_read() -> None:
    files = {"root-cert.pem": pem(ROOT.certificate), "root-key.pem": key_pem(ROOT.key)}
    assert read_material(files, "ca", NOW).issuer.certificate == ROOT.certificate


def test_an_empty_chain_is_none_and_lists_are_read() -> None:
    crls = joined([make_crl(RSA, [5], NOW), make_crl(ROOT, [], NOW)])
    files = {**cacerts(RSA, ROOT), "cert-chain.pem": b"\n", "ca-crl.pem": crls}
    assert [len(list(crl)) for crl in read_material(files, "ca", NOW).crls] == [1, 0]


def encrypted(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"word")
    )


ED25519 = ed25519.Ed25519PrivateKey.generate().private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
)
EXPIRED = make_ca("old", ROOT, now=NOW - timedelta(days=2), lifetime=timedelta(days=1))
EARLY = make_ca("early", ROOT, now=NOW + timedelta(days=1))
NO_CA = make_ca("leaf", ROOT, now=NOW, is_ca=False)
NO_SIGNER = make_ca("mute", ROOT, now=NOW, may_sign=False)
NARROW = make_ca("narrow", ROOT, now=NOW, path_length=0)
BELOW_NARROW = make_ca("below", NARROW, now=NOW)
SHORT = make_ca("short", ROOT, key=rsa.generate_private_key(65537, 1024), now=NOW)
P224 = make_ca("p224", ROOT, key=ec.generate_private_key(ec.SECP224R1()), now=NOW)
assert isinstance(ISSUING.key, ec.EllipticCurvePrivateKey)

TABLE = {
    "no certificate": ({"ca-cert.pem": None}, "ca-cert.pem: there is no such file"),
    "no key": ({"ca-key.pem": None}, "ca-key.pem: there is no such file"),
    "no roots": ({"root-cert.pem": None}, "root-cert.pem: there is no such file"),
    "rubbish for a certificate": ({"ca-cert.pem": b"rubbish"}, "ca-cert.pem: not a PEM certificate"),
    "a half-written certificate": ({"ca-cert.pem": FILES["ca-cert.pem"][:200]}, "ca-cert.pem: not a PEM certificate"),
    "rubbish for a key": ({"ca-key.pem": b"rubbish"}, "ca-key.pem: not a plain PEM private key"),
    "an encrypted key": ({"ca-key.pem": encrypted(ISSUING.key)}, "ca-key.pem: is encrypted with a password"),
    "a key of another kind": ({"ca-key.pem": ED25519}, "ca-key.pem: an RSA or an elliptic curve key"),
    "a weak RSA key": (cacerts(SHORT, ROOT), "ca-key.pem: an RSA key of 1024 bits; at least 2048 are needed"),
    "a weak curve": (cacerts(P224, ROOT), "ca-key.pem: an RSA or an elliptic curve key"),
    "the key of another": ({"ca-key.pem": key_pem(ROOT.key)}, "ca-key.pem: is not the key of ca-cert.pem"),
    "a certificate that is not a CA": (cacerts(NO_CA, ROOT), "ca-cert.pem: CN=leaf is not a CA certificate"),
    "a CA that may not sign": (cacerts(NO_SIGNER, ROOT), "ca-cert.pem: CN=mute may not sign certificates"),
    "an expired CA": (cacerts(EXPIRED, ROOT), "ca-cert.pem: CN=old expired at 2026-02-28"),
    "a CA of the future": (cacerts(EARLY, ROOT), "ca-cert.pem: CN=early is not valid before 2026-03-01 23:55"),
    "a path that is too long": (
        cacerts(BELOW_NARROW, NARROW, ROOT),
        r"cert-chain.pem: CN=narrow allows 0 intermediates below it \(pathlen\), and there are 1",
    ),
    "a gap in the chain": (
        {"cert-chain.pem": pem(ISSUING.certificate)},
        "cert-chain.pem: has no issuer of CN=issuing; complete the path",
    ),
    "no chain": ({"cert-chain.pem": None}, "root-cert.pem: has no issuer of CN=issuing"),
    "a root of the same name": ({"root-cert.pem": pem(STRANGER.certificate)}, "cert-chain.pem: has no issuer of CN="),
    "an intermediate among the roots": (
        {"root-cert.pem": joined([ROOT.certificate, MIDDLE.certificate])},
        "root-cert.pem: CN=middle is not self-signed",
    ),
    "rubbish for a list": ({"ca-crl.pem": b"rubbish"}, "ca-crl.pem: not a PEM certificate revocation list"),
}


@pytest.mark.parametrize(("change", "message"), TABLE.values(), ids=TABLE)
def test_what_cannot_be_used_is_refused_by_file_with_the_reason(change: dict[str, bytes | None], message: str) -> None:
    files = {name: content for name, content in {**FILES, **change}.items() if content is not None}
    with pytest.raises(AuthorityError, match=f"^/etc/ca: {message}") as raised:
        read_material(files, "/etc/ca", NOW)
    assert "PRIVATE KEY-----" not in str(raised.value)


def test_no_key_is_in_the_representation() -> None:
    material = read_material(FILES, "ca", NOW)
    assert "PrivateKey" not in repr(material)
