"""Throw-away certificates for tests of TLS: one CA a folder, any number of leaves signed by it."""

from __future__ import annotations

import ssl
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from mesh_pilot.identity.authority.material import key_pem, pem
from tests.support.x509_parts import named, unsigned


@attrs.frozen
class CertificateFiles:
    ca: Path
    certificate: Path
    key: Path


def write_certificates(
    folder: Path,
    name: str,
    *,
    dns: tuple[str, ...] = ("localhost",),
    uris: tuple[str, ...] = (),
    expired: bool = False,
) -> CertificateFiles:
    """A leaf ``NAME.pem``/``NAME.key`` for 127.0.0.1 and the names, signed by ``ca.pem`` (made on first use)."""
    ca_file, ca_key_file = folder / "ca.pem", folder / "ca.key"
    if ca_file.exists():
        ca = x509.load_pem_x509_certificate(ca_file.read_bytes())
        ca_key = serialization.load_pem_private_key(ca_key_file.read_bytes(), None)
        assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    else:
        authority = f"ca of {folder.name}"
        ca_key = ec.generate_private_key(ec.SECP256R1())
        ca = (
            unsigned(named(authority), named(authority), ca_key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(ca_key, hashes.SHA256())
        )
        _write(ca_file, ca_key_file, ca, ca_key)
    key = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [x509.DNSName(host) for host in dns]
    names += [x509.UniformResourceIdentifier(uri) for uri in uris]
    names.append(x509.IPAddress(ip_address("127.0.0.1")))
    leaf = (
        unsigned(named(name), ca.subject, key.public_key(), ends=timedelta(minutes=-1 if expired else 60))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    files = CertificateFiles(ca_file, folder / f"{name}.pem", folder / f"{name}.key")
    _write(files.certificate, files.key, leaf, key)
    return files


def serving(files: CertificateFiles, *, mutual: bool = False) -> ssl.SSLContext:
    """TLS for a backend; with ``mutual`` it takes only clients with a certificate of the same CA."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    if mutual:
        context.load_verify_locations(files.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _write(file: Path, key_file: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    file.write_bytes(pem(certificate))
    key_file.write_bytes(key_pem(key))
