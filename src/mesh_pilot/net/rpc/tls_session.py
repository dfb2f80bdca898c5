"""A TLS connection without a socket: bytes in, bytes out, so that a transport can write without waiting.

The one TLS of servers and channels of gRPC and of the HTTP ports. Which identities a peer has is read from the URI
names of its verified certificate (the SPIFFE X.509-SVID document).
"""

from __future__ import annotations

import contextlib
import math
import socket
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio

from mesh_pilot.net.rpc.errors import TlsError
from mesh_pilot.net.rpc.tls import reason_of

__all__ = ["TlsSession", "handshake"]

_RECORD = 16 * 1024
"""The most plain bytes of a record."""
_REFUSALS = {
    7: "signature",
    9: "not_yet_valid",
    10: "expired",
    18: "self_signed",
    19: "unknown_issuer",
    20: "unknown_issuer",
    23: "revoked",
    25: "path_length",
    26: "purpose",
    79: "not_a_ca",
}
"""Why a certificate is refused, for metrics, by OpenSSL's code (X509_V_ERR_...)."""


class TlsSession:
    """One TLS connection as a value: cipher text in, plain text out, and back; no socket."""

    def __init__(self, context: ssl.SSLContext, *, server_side: bool, server_hostname: str | None = None) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self.ended = False
        """True once the peer has sent close_notify."""

    def handshake(self, data: bytes) -> tuple[bool, bytes]:
        """Take ``data`` from the peer (b"" at first); return whether the handshake is done, and bytes to send.

        Raises TlsError; :meth:`pending` then has the alert to send.
        """
        if data:
            self._incoming.write(data)
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            return False, self._outgoing.read()
        except ssl.SSLCertVerificationError as error:
            reason = _REFUSALS.get(error.verify_code, "certificate")
            raise TlsError(f"the peer's certificate is refused: {error.verify_message}", reason=reason) from error
        except ssl.SSLError as error:
            raise TlsError(f"TLS handshake failed: {reason_of(error)}") from error
        return True, self._outgoing.read()

    def pending(self) -> bytes:
        """Bytes that are ready to be sent."""
        return self._outgoing.read()

    def encrypt(self, data: bytes | bytearray | memoryview) -> bytes:
        """The records that carry ``data``."""
        if data:
            self._ssl.write(data)
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> tuple[bytes | None, bytes]:
        """The plain text that ``data`` completes (None: none yet, b"": the peer ended), and an answer to send.

        Raises TlsError for what is not TLS, was tampered with, or is an alert.
        """
        self._incoming.write(data)
        chunks: list[bytes] = []
        while not self.ended:
            try:
                chunk = self._ssl.read(len(data) or _RECORD)  # room for more would be cleared in vain
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                chunk = b""
            except ssl.SSLError as error:
                raise TlsError(f"TLS: {reason_of(error)}") from error
            self.ended = not chunk
            chunks.append(chunk)
            if not (self._incoming.pending or self._ssl.pending()):
                break  # to ask for more would cost an exception
        plain = b"".join(chunks) if chunks else None
        return plain, self._outgoing.read()

    @property
    def has_unread(self) -> bool:
        """True while something has arrived that was not decrypted: a client may send it with its last step of the
        handshake."""
        return self._incoming.pending > 0

    def farewell(self) -> bytes:
        """The close_notify alert."""
        with contextlib.suppress(ssl.SSLError):
            self._ssl.unwrap()
        return self._outgoing.read()

    def spiffe_ids_and_end(self) -> tuple[tuple[str, ...], float]:
        """The ``spiffe://`` names of the peer's verified certificate and its end in Unix time, infinite without one."""
        found = self._verified()  # OpenSSL makes all of it again for each question
        names, end = found.get("subjectAltName", ()), found.get("notAfter")
        ids = tuple(value for kind, value in names if kind == "URI" and value.startswith("spiffe://"))
        return ids, math.inf if end is None else ssl.cert_time_to_seconds(end)

    def peer_names(self) -> tuple[str, ...]:
        """The names in the peer's verified certificate: URIs, DNS names, addresses and the common name."""
        found = self._verified()
        names = [str(value) for _, value in found.get("subjectAltName", ())]
        names += [str(value) for part in found.get("subject", ()) for key, value in part if key == "commonName"]
        return tuple(dict.fromkeys(names))

    def _verified(self) -> dict[str, Any]:
        return self._ssl.getpeercert() or {}

    def peer_certificate(self) -> bytes | None:
        """The peer's certificate in DER, None when it showed none."""
        return self._ssl.getpeercert(binary_form=True)


async def handshake(
    session: TlsSession,
    sock: socket.socket,
    *,
    timeout_seconds: float,
    turn: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext,
    on_answer: Callable[[], None] = lambda: None,
) -> None:
    """Do the handshake over a connected, non-blocking socket; each step, which may take milliseconds, in a ``turn``.

    ``on_answer`` is called when the peer has completed a step, and it is its turn again. Raises TlsError,
    also when it takes too long or the peer hangs up. If cancelled, the socket is of no more use.
    """
    received = b""
    try:
        with trio.move_on_after(timeout_seconds):
            while True:
                async with turn():
                    done, answer = session.handshake(received)
                if answer:
                    on_answer()
                while answer:
                    try:
                        answer = answer[sock.send(answer) :]
                    except BlockingIOError:
                        await trio.lowlevel.wait_writable(sock)
                if done:
                    return
                await trio.lowlevel.wait_readable(sock)
                received = b""  # of a wakeup without data; what came before must not be taken in again
                with contextlib.suppress(BlockingIOError):
                    received = sock.recv(_RECORD)
                    if not received:
                        raise TlsError("the peer hung up during the TLS handshake")
    except TlsError:
        with contextlib.suppress(OSError):
            sock.send(session.pending())
        raise
    except OSError as error:
        raise TlsError(f"TLS handshake failed: {error.strerror}") from error
    raise TlsError(f"TLS handshake not done within {timeout_seconds:g} s")
