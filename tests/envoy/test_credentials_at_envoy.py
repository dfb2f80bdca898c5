"""Certificates, keys and revocation lists that a credential may hold, Envoy takes; and the other way round."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from envoy.config.listener.v3 import listener_pb2
from envoy.extensions.transport_sockets.tls.v3 import tls_pb2

from mesh_pilot.sources.files.secrets import make_credential
from tests.support.envoy_check import complaints

pytestmark = pytest.mark.envoy

NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a")])
NOW = datetime.now(UTC)
Key = (
    rsa.RSAPrivateKey
    | ec.EllipticCurvePrivateKey
    | ed25519.Ed25519PrivateKey
    | ed448.Ed448PrivateKey
    | dsa.DSAPrivateKey
)


def certificate(key: Key, *extensions: x509.ExtensionType) -> bytes:
    builder = x509.CertificateBuilder().subject_name(NAME).issuer_name(NAME).public_key(key.public_key())
    builder = builder.serial_number(7).not_valid_before(NOW).not_valid_after(NOW + timedelta(hours=1))
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    edwards = isinstance(key, ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey)
    return builder.sign(key, None if edwards else hashes.SHA256()).public_bytes(Encoding.PEM)


def private(key: Key) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def pair(key: Key, *extensions: x509.ExtensionType) -> dict[str, bytes]:
    return {"tls.crt": certificate(key, *extensions), "tls.key": private(key)}


def key_usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(sign, False, True, False, False, False, False, False, False)


RSA, EC = rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP256R1())
RSA_PEM, EC_PEM = certificate(RSA), certificate(EC)
CRL = (
    x509.CertificateRevocationListBuilder()
    .issuer_name(NAME)
    .last_update(NOW)
    .next_update(NOW + timedelta(hours=1))
    .sign(EC, hashes.SHA256())
    .public_bytes(Encoding.PEM)
)
CUT = CRL[:100]
ODD = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
STAPLE = x509.TLSFeature([x509.TLSFeatureType.status_request])

GOOD = {
    "RSA": pair(RSA),
    "P-256": pair(EC),
    "P-384": pair(ec.generate_private_key(ec.SECP384R1())),
    "P-521": pair(ec.generate_private_key(ec.SECP521R1())),
    "Ed25519": pair(ed25519.Ed25519PrivateKey.generate()),
    "RSA without digitalSignature": pair(RSA, key_usage(sign=False)),
    "P-256 with digitalSignature": pair(EC, key_usage(sign=True)),
    "a chain, with text around": pair(RSA) | {"tls.crt": b"leaf\n" + RSA_PEM + b"issuer\n" + EC_PEM},
    "must-staple of the issuer": pair(RSA) | {"tls.crt": RSA_PEM + certificate(EC, STAPLE)},
    "Windows line ends": {name: pem.replace(b"\n", b"\r\n") for name, pem in pair(RSA).items()},
    "no line end at the end": {name: pem.strip() for name, pem in pair(RSA).items()},
    "the key in the chain": pair(RSA) | {"tls.crt": RSA_PEM + private(RSA)},
    "the chain in the key": pair(RSA) | {"tls.key": RSA_PEM + private(RSA)},
    "CAs": pair(RSA) | {"ca.crt": RSA_PEM + EC_PEM},
    "revocation lists": pair(RSA) | {"ca.crt": EC_PEM, "ca.crl": CRL + b"text\n" + CRL},
}
BAD = {
    "RSA of 1024 bits": pair(rsa.generate_private_key(65537, 1024)),
    "P-224": pair(ec.generate_private_key(ec.SECP224R1())),
    "secp256k1": pair(ec.generate_private_key(ec.SECP256K1())),
    "Ed448": pair(ed448.Ed448PrivateKey.generate()),
    "DSA": pair(dsa.generate_private_key(2048)),
    "P-256 without digitalSignature": pair(EC, key_usage(sign=False)),
    "must-staple": pair(RSA, STAPLE),
    "another key": pair(RSA) | {"tls.key": private(EC)},
    "issuer before leaf": pair(RSA) | {"tls.crt": EC_PEM + RSA_PEM},
    "a chain that is cut off": pair(RSA) | {"tls.crt": RSA_PEM + EC_PEM[:200]},
    "a chain with an odd certificate": pair(RSA) | {"tls.crt": RSA_PEM + ODD},
    "a byte order mark": pair(RSA) | {"tls.crt": b"\xef\xbb\xbf" + RSA_PEM},
    "indented": pair(RSA) | {"tls.crt": RSA_PEM.replace(b"-----BEGIN", b"  -----BEGIN")},
    "on one line": pair(RSA) | {"tls.crt": RSA_PEM.replace(b"\n", b" ")},
    "END and BEGIN on one line": pair(RSA) | {"tls.crt": RSA_PEM.strip() + EC_PEM},
    "a key on one line": pair(RSA) | {"tls.key": private(RSA).replace(b"\n", b" ")},
    "an indented key": pair(RSA) | {"tls.key": b" " + private(RSA)},
    "no CA": pair(RSA) | {"ca.crt": b"\n"},
    "a CA that is cut off": pair(RSA) | {"ca.crt": EC_PEM + RSA_PEM[:200]},
    "CAs on one line": pair(RSA) | {"ca.crt": EC_PEM.replace(b"\n", b" ")},
    "a revocation list that is cut off": pair(RSA) | {"ca.crt": EC_PEM, "ca.crl": CRL + CUT},
    "an odd revocation list": pair(RSA) | {"ca.crt": EC_PEM, "ca.crl": CRL + ODD.replace(b"CERTIFICATE", b"X509 CRL")},
}


def listener(parts: dict[str, bytes]) -> bytes:
    """A listener that presents the certificate and trusts the CAs."""
    context = tls_pb2.DownstreamTlsContext()
    pair = context.common_tls_context.tls_certificates.add()
    pair.certificate_chain.inline_bytes, pair.private_key.inline_bytes = parts["tls.crt"], parts["tls.key"]
    if "ca.crt" in parts:
        context.common_tls_context.validation_context.trusted_ca.inline_bytes = parts["ca.crt"]
    if "ca.crl" in parts:
        context.common_tls_context.validation_context.crl.inline_bytes = parts["ca.crl"]
    message = listener_pb2.Listener()
    message.address.socket_address.address = "127.0.0.1"
    message.address.socket_address.port_value = 1
    socket = message.filter_chains.add().transport_socket
    socket.name = "tls"
    socket.typed_config.Pack(context)
    return message.SerializeToString()


def test_envoy_takes_the_credentials_that_are_let_through(tmp_path: Path) -> None:
    for name, parts in GOOD.items():
        assert make_credential("a", "shop", parts)[1] == (), name
    assert complaints(tmp_path, [listener(parts) for parts in GOOD.values()]) == ""


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("RSA of 1024 bits", "tls.crt: has an RSA key of 1024 bits; Envoy takes 2048 or more"),
        ("P-224", "tls.crt: has a key on the curve secp224r1; Envoy takes P-256, P-384 and P-521"),
        ("must-staple", "tls.crt: demands OCSP stapling"),
        ("a chain that is cut off", "tls.crt: is not a chain of PEM certificates: each from BEGIN to END"),
        ("a CA that is cut off", "ca.crt: is not a list of PEM certificates: each from BEGIN to END"),
    ],
)
def test_a_refused_credential_is_told_where_and_why(name: str, problem: str) -> None:
    (found,) = make_credential("a", "shop", BAD[name])[1]
    assert f"{found.path}: {found.reason}".startswith(problem)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", BAD)
def test_envoy_refuses_the_credentials_that_are_refused(name: str, tmp_path: Path) -> None:
    assert make_credential("a", "shop", BAD[name])[1]
    assert complaints(tmp_path, [listener(BAD[name])])
