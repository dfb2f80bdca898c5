"""The call by which a control plane signs, ``istio.v1.auth.IstioCertificateService``, without generated messages."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import trio

from mesh_pilot.agent.base.wire import Parts
from mesh_pilot.agent.identity.credentials import is_reusable
from mesh_pilot.agent.identity.material import IdentityMaterial, difference, new_request, read_material
from mesh_pilot.base.protowire import VARINT, WireError, field, tag, varint
from mesh_pilot.net.rpc import AddressError, GRPCError, RpcError, Status, TlsError, TlsSource, open_channel
from mesh_pilot.net.rpc.net import connect
from mesh_pilot.net.rpc.tls_session import TlsSession, handshake

if TYPE_CHECKING:
    from mesh_pilot.agent.identity.material import PrivateKey

PATH = "/istio.v1.auth.IstioCertificateService/CreateCertificate"
CALL_SECONDS = 60.0
CLOCK_SECONDS = 5.0

_WANTED = re.compile(r"name exactly URI (spiffe://\S+) in it")
"""As ``identity.signers.requests.check_names`` says it."""


class SigningFailure(enum.Enum):
    """Kinds of failure, by what helps."""

    AWAY = "away"
    """The request was not judged: it may succeed later, or elsewhere."""
    PROOF = "proof"
    """The proof is not taken."""
    UNTRUSTED = "untrusted"
    """We do not believe that it is the control plane."""


class NotSigned(Exception):
    """No certificate, and why: one line that begins with the address."""

    def __init__(self, kind: SigningFailure, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def wanted(self) -> str:
        """The SPIFFE id that the request has to name, if that is the reason; else empty."""
        found = _WANTED.search(str(self))
        return found[1] if found else ""


def encode_request(csr: bytes, seconds: int) -> bytes:
    """An ``IstioCertificateRequest``; 0 seconds: what the control plane gives."""
    return field(1, csr) + (tag(3, VARINT) + varint(seconds) if seconds else b"")


def decode_answer(message: bytes) -> list[bytes]:
    """The chain of an ``IstioCertificateResponse``: leaf, intermediates, and last the roots. Raises WireError."""
    return Parts(message).all(1)


async def signed_material(
    address: str,
    key: PrivateKey,
    name: str = "",
    *,
    tls: TlsSource | None,
    server_name: str | None = None,
    metadata: Mapping[str, str] = {},
    seconds: int = 0,
) -> IdentityMaterial:
    """A certificate for a key. ``name``: the SPIFFE id, if it is known. Raises NotSigned and MaterialError.

    Some CAs take it from the request. So where it is not known, and the control plane says it, the request is repeated
    with it, unless the token may be for one use.
    """
    for _ in range(2):
        pem, csr = await trio.to_thread.run_sync(new_request, key, name)
        try:
            chain, roots = await request_certificate(
                address, csr, tls=tls, server_name=server_name, metadata=metadata, seconds=seconds
            )
            return read_material(pem, chain, roots)
        except NotSigned as error:
            if error.wanted in ("", name) or not is_reusable(metadata):
                raise
            name, refusal = error.wanted, error
    raise refusal


async def request_certificate(
    address: str,
    csr: bytes,
    *,
    tls: TlsSource | None,
    server_name: str | None = None,
    metadata: Mapping[str, str] = {},
    seconds: int = 0,
) -> tuple[bytes, bytes]:
    """The chain, leaf first, and the roots, both in PEM. Raises NotSigned."""
    try:
        async with open_channel(address, tls=tls, server_hostname=server_name) as channel:
            request = encode_request(csr, seconds)
            answer = await channel.unary(PATH, request, bytes, timeout_seconds=CALL_SECONDS, metadata=metadata or None)
        chain = decode_answer(answer)
    except GRPCError as error:
        raise NotSigned(
            _kind(error.status), f"{address} signs nothing: {error.message} ({error.status.name})"
        ) from None
    except RpcError as error:
        kind = SigningFailure.UNTRUSTED if isinstance(error, TlsError) else SigningFailure.AWAY
        # TLS 1.3 tells that our certificate is refused by an alert after the handshake.
        if " alert " in str(error) and not isinstance(error, AddressError):
            kind = SigningFailure.PROOF
        raise NotSigned(kind, f"{address}: {str(error).removeprefix(f'{address}: ')}") from error
    except WireError as error:
        raise NotSigned(SigningFailure.AWAY, f"{address}: its answer {error}") from None
    if len(chain) < 2:
        raise NotSigned(SigningFailure.AWAY, f"{address} has no root to send yet")
    return b"".join(chain[:-1]), chain[-1]


def _kind(status: Status) -> SigningFailure:
    is_refusal = status in (Status.UNAUTHENTICATED, Status.PERMISSION_DENIED)
    return SigningFailure.PROOF if is_refusal else SigningFailure.AWAY


async def clock_difference(address: str, server_name: str | None, now: datetime) -> timedelta | None:
    """The least by which our clock is ahead of a control plane's (negative: behind), by its certificate.

    That is not verified, so this is for a log line only. None if it is in force, or is not available.
    """
    import ssl

    from cryptography import x509

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    session = TlsSession(context, server_side=False, server_hostname=server_name)
    try:
        with await connect(address) as sock:
            await handshake(session, sock, timeout_seconds=CLOCK_SECONDS)
    except RpcError:
        return None
    der = session.peer_certificate()
    if der is None:
        return None
    leaf = x509.load_der_x509_certificate(der)
    return difference(leaf.not_valid_before_utc, leaf.not_valid_after_utc, now)
