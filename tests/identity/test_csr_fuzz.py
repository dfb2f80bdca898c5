"""Broken and hostile signing requests: each is refused by a reason, or is one whose key may be signed. Never slow."""

from __future__ import annotations

import base64
import time
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mesh_pilot.identity.authenticators.settings import CallerSettings
from mesh_pilot.identity.certificates.service import PATH
from mesh_pilot.identity.signers.requests import SigningRequestError, check_claims, read_request
from mesh_pilot.identity.trust.callers import TrustDomains
from mesh_pilot.model.spiffe import Identity
from mesh_pilot.net.rpc import GRPCError, Status, client_tls, open_channel
from tests.support.forgery import Forger, badly_signed_csr, csr_of
from tests.support.impersonation import message_of
from tests.support.planes import running_plane
from tests.support.sample import examples

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
        request = read_request(text)
        check_claims(request, WEB, DOMAINS)
    except SigningRequestError as error:
        assert error.reason in REASONS
        assert len(str(error)) < 1000, "the text is for a log line"
        return error.reason
    finally:
        assert time.thread_time() - began < SLOW_SECONDS
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


HOSTILE = {
    "nothing": ("", "csr_form"),
    "NULs": ("\0" * 1000, "csr_form"),
    "letters that take two bytes": ("А" * 16_000, "csr_form"),
    "half a character": ("\ud800", "csr_form"),
    "much text": ("x" * 20_000, "csr_size"),
    "a megabyte": (pem(bytes(1_000_000)), "csr_size"),
    "deep structures": (pem(NESTED[:11_000]), "csr_form"),
    "structures that do not end": (pem(b"\x30\x80" * 5000), "csr_form"),
    "many beginnings": ("-----BEGIN CERTIFICATE REQUEST-----\n" * 400, "csr_form"),
    "another label": (csr_of().decode().replace("CERTIFICATE REQUEST", "PRIVATE KEY"), "csr_form"),
    "an RSA key of 1024 bits": (csr_of(rsa.generate_private_key(65537, 1024)).decode(), "csr_key"),
    "a short curve": (csr_of(ec.generate_private_key(ec.SECP224R1())).decode(), "csr_key"),
    "Bitcoin's curve": (csr_of(ec.generate_private_key(ec.SECP256K1())).decode(), "csr_key"),
    "many other names": (csr_of(uris=[f"{WEB}{n}" for n in range(150)]).decode(), "csr_identity"),
    "a CA": (csr_of(ca=True).decode(), "csr_ca"),
    "an exponent of 3": (csr_of(rsa.generate_private_key(3, 2048)).decode(), ""),
    "the own name fifty times": (csr_of(uris=[str(WEB)] * 50).decode(), ""),
    "the own name of an alias": (csr_of(uris=["spiffe://old.example/ns/shop/sa/web"]).decode(), ""),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_request_is_refused_at_once_and_a_strange_one_is_not(name: str) -> None:
    text, reason = HOSTILE[name]
    assert verdict(text) == reason


MESSAGES = st.one_of(
    mutated().map(lambda der: message_of(pem(der).encode())),
    st.text(max_size=300).map(lambda text: message_of(text.encode(errors="replace"))),
    st.binary(max_size=300),
    st.builds(bytes.__add__, st.sampled_from([b"\x0a\x05", b"\x18", b"\x22\x04\x0a\x02", b""]), st.binary(max_size=20)),
)


@pytest.mark.plane
async def test_hostile_messages_are_answered_with_a_status_for_their_sender(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    forger = Forger(tmp_path / "forger")
    client = client_tls(forger.leaf(str(WEB)), check_hostname=False)
    unlimited = CallerSettings(certificates_per_second=0)
    ends: Counter[Status] = Counter()

    @seed(1)
    @settings(deadline=None, database=None, max_examples=examples(150), phases=[Phase.generate])
    @given(MESSAGES)
    def collect(message: bytes) -> None:
        messages.append(message)

    messages = [message_of(text.encode(errors="replace")) for text, _ in HOSTILE.values()]
    collect()
    with capture_logs() as logs:
        async with (
            running_plane(tmp_path / "config", tls=forger.leaf(dns=("localhost",)), callers=unlimited) as plane,
            open_channel(plane.addresses.secure_grpc, tls=client) as channel,
        ):
            for message in messages:
                try:
                    await channel.unary(PATH, message, bytes, timeout_seconds=10)
                    ends[Status.OK] += 1
                except GRPCError as error:
                    ends[error.status] += 1
    assert ends.keys() == {Status.OK, Status.INVALID_ARGUMENT, Status.PERMISSION_DENIED}, ends
    assert [entry for entry in logs if entry["log_level"] in ("error", "critical") or entry.get("exc_info")] == []


def test_a_request_signed_by_another_key_is_refused() -> None:
    assert verdict(badly_signed_csr().decode()) == "csr_signature"
