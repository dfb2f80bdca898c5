"""Broken and hostile signing requests: each is refused by a reason, or is one whose key may be signed. Never slow."""

from __future__ import annotations

import base64
import time
from functools import cache

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.model.spiffe import Identity
from mesh_pilot.security.callers import TrustDomains
from mesh_pilot.security.signing_requests import SigningRequestError, checked_request
from tests.support.forgery import csr_of, new_key

WEB = Identity("cluster.local", "shop", "web")
DOMAINS = TrustDomains("cluster.local", frozenset({"old.example"}))
REASONS = {"csr_size", "csr_form", "csr_key", "csr_signature", "csr_identity", "csr_ca"}
SLOW_SECONDS = 0.25
"""Of the machine's time: a request that is signed takes about a millisecond."""


@cache
def seeds() -> tuple[bytes, ...]:
    """Requests of all kinds of keys and claims, DER."""
    rsa_key = rsa.generate_private_key(65537, 2048)
    requests = (
        csr_of(uris=[str(WEB)]),
        csr_of(rsa_key, uris=[str(WEB)], subject=str(WEB)),
        csr_of(ed25519.Ed25519PrivateKey.generate()),
        csr_of(ec.generate_private_key(ec.SECP521R1()), dns=["a.test"], ca=True),
    )
    return tuple(x509.load_pem_x509_csr(pem).public_bytes(Encoding.DER) for pem in requests)


def pem(der: bytes) -> str:
    return f"-----BEGIN CERTIFICATE REQUEST-----\n{base64.encodebytes(der).decode()}-----END CERTIFICATE REQUEST-----\n"


def verdict(text: str) -> str:
    """The reason of the refusal; empty for a request that may be signed, of which only the key counts."""
    began = time.thread_time()
    try:
        checked = checked_request(text, WEB, DOMAINS)
    except SigningRequestError as error:
        assert error.reason in REASONS
        assert len(str(error)) < 1000, "the text is for a log line"
        return error.reason
    finally:
        assert time.thread_time() - began < SLOW_SECONDS
    request = x509.load_pem_x509_csr(checked)
    assert request.is_signature_valid
    assert isinstance(request.public_key(), ec.EllipticCurvePublicKey | rsa.RSAPublicKey)
    return ""


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A request with a few bytes replaced, taken out, repeated or put in."""
    der = bytearray(draw(st.sampled_from(seeds())))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(der)))
        match draw(st.integers(0, 3)):
            case 0:
                der[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case 1:
                del der[at : at + draw(st.integers(1, 40))]
            case 2:
                der[at:at] = der[at : at + draw(st.integers(1, 200))]
            case 3:
                der[at:at] = draw(st.binary(max_size=20))
    return bytes(der)


@settings(deadline=None)
@given(mutated())
def test_a_changed_request_is_refused_unless_its_key_still_signs_it(der: bytes) -> None:
    verdict(pem(der))


@settings(deadline=None)
@given(st.text(max_size=300) | st.binary(max_size=300).map(pem))
def test_what_is_no_request_is_refused(text: str) -> None:
    assert verdict(text) == "csr_form"


NESTED = b"".join(b"\x30\x84" + (12_000 - 6 * n).to_bytes(4, "big") for n in range(1900))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "csr_form"),
        ("\0" * 1000, "csr_form"),
        ("А" * 16_000, "csr_form"),
        ("\ud800", "csr_form"),
        ("x" * 20_000, "csr_size"),
        (pem(bytes(1_000_000)), "csr_size"),
        (pem(NESTED[:11_000]), "csr_form"),
        (pem(b"\x30\x80" * 5000), "csr_form"),
        (csr_of().decode().replace("CERTIFICATE REQUEST", "CERTIFICATE"), "csr_form"),
        (csr_of().decode().replace("CERTIFICATE REQUEST", "PRIVATE KEY"), "csr_form"),
        ("-----BEGIN CERTIFICATE REQUEST-----\n" * 400, "csr_form"),
        (csr_of(rsa.generate_private_key(65537, 1024)).decode(), "csr_key"),
        (csr_of(rsa.generate_private_key(3, 2048)).decode(), ""),
        (csr_of(ec.generate_private_key(ec.SECP224R1())).decode(), "csr_key"),
        (csr_of(ec.generate_private_key(ec.SECP256K1())).decode(), "csr_key"),
        (csr_of(uris=[str(WEB)] * 50).decode(), ""),
        (csr_of(uris=["spiffe://old.example/ns/shop/sa/web"]).decode(), ""),
        (csr_of(uris=[str(WEB), "spiffe://cluster.local/ns/shop/sa/admin"]).decode(), "csr_identity"),
        (csr_of(uris=[f"spiffe://cluster.local/ns/shop/sa/{n}" for n in range(150)]).decode(), "csr_identity"),
        (csr_of(subject="spiffe://cluster.local/ns/shop/sa/admin").decode(), "csr_identity"),
        (csr_of(ca=True).decode(), "csr_ca"),
    ],
    ids=str,
)
def test_hostile_requests(text: str, reason: str) -> None:
    assert verdict(text) == reason


def test_a_request_with_a_key_that_signs_slowly_is_refused() -> None:
    """An RSA key with an exponent as long as its modulus: verification takes as long as signing."""


def test_a_request_signed_by_another_key_is_refused() -> None:
    """One whose signature is that of another request."""
    one, other = (x509.load_pem_x509_csr(csr_of(new_key())) for _ in range(2))
    der, signature = one.public_bytes(Encoding.DER), one.signature
    forged = der.replace(signature, other.signature)
    assert verdict(pem(forged)) in {"csr_signature", "csr_form"}
    assert verdict(pem(der)) == ""
