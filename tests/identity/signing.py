"""Clients of the certificate service as Istio's agents are, on grpcio, and the requests that they send."""

from __future__ import annotations

from pathlib import Path

import grpc
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from mesh_pilot.api.google.protobuf import Struct, Value
from mesh_pilot.api.istio.v1.auth import IstioCertificateRequest, IstioCertificateResponse
from mesh_pilot.identity.certificates.service import PATH

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def names(*uris: str) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris])


def new_csr(
    *extensions: x509.ExtensionType, key: Key | None = None, organization: str | None = "", common_name: str = ""
) -> str:
    """A request in PEM; Istio's agents have an empty organization as subject."""
    subject = []
    if organization is not None:
        subject.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization, _validate=False))
    if common_name:
        subject.append(x509.NameAttribute(NameOID.COMMON_NAME, common_name))
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(subject))
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    request = builder.sign(key or ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM).decode()


def pem(key: Key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def request_of(csr: str, *, seconds: int = 0, **metadata: str) -> bytes:
    """An encoded request. Agents send the field CertSigner, which is mostly empty."""
    fields = {name: Value(string_value=value) for name, value in {"CertSigner": "", **metadata}.items()}
    return bytes(IstioCertificateRequest(csr=csr, validity_duration=seconds, metadata=Struct(fields=fields)))


async def create_certificate(
    address: str,
    request: bytes,
    *,
    ca: Path | None,
    own: tuple[bytes, bytes] | None = None,
    metadata: tuple[tuple[str, str], ...] = (),
) -> list[str]:
    """The chain that is answered. ``own``: client certificate and key, PEM; ``ca`` None: plaintext.

    Raises grpc.RpcError.
    """

    def call() -> list[str]:
        if ca is None:
            channel = grpc.insecure_channel(address)
        else:
            certificate, key = own or (None, None)
            channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(ca.read_bytes(), key, certificate))
        with channel:
            answer = channel.unary_unary(PATH)(request, timeout=30, metadata=metadata)
        return IstioCertificateResponse.parse(answer).cert_chain

    return await trio.to_thread.run_sync(call)
