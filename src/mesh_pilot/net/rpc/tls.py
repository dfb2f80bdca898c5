"""TLS for gRPC: contexts with ALPN h2, certificates that reload when their files change, sessions without sockets.

A session is bytes in, bytes out, so that a transport can write without waiting. Which identities a peer has is read
from the URI names of its verified certificate (the SPIFFE X.509-SVID document).
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Protocol

import structlog
import trio
from attrs import define, field, frozen

from mesh_pilot.net.rpc.errors import TlsError

__all__ = [
    "CertificateFiles",
    "CertificatePem",
    "ReloadingTls",
    "TlsSession",
    "TlsSource",
    "client_tls",
    "client_tls_in_memory",
    "handshake",
    "reason_of",
    "server_tls",
    "server_tls_in_memory",
]

log = structlog.get_logger(scope="rpc")


class TlsSource(Protocol):
    """The source of the TLS context for the next connection."""

    def context(self) -> ssl.SSLContext:
        """The context to use now. Raises TlsError when there is none."""
        ...


@frozen(kw_only=True)
class CertificateFiles:
    """PEM files of one side of a connection."""

    certificate: Path | None = None
    """The certificate chain that we show, leaf first."""

    key: Path | None = None
    """The private key of the leaf; None when it is in the certificate's file."""

    trusted: Path | None = None
    """Trust anchors for the peer's chain; None: the system's roots (client) or no client certificate (server)."""

    def stamp(self) -> tuple[tuple[int, int, int] | None, ...]:
        """A value that differs after any file was replaced or written: inode, mtime and size of each."""
        return tuple(_stamp(path) for path in (self.certificate, self.key, self.trusted) if path is not None)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


@frozen(kw_only=True)
class CertificatePem:
    """A certificate and its key, in memory."""

    certificate: bytes
    """The certificate chain, leaf first, in PEM."""

    key: bytes = field(repr=False)
    """The private key of the leaf, in PEM."""


NO_ROOTS: Callable[[], bytes] = bytes
"""No further trust anchors."""


@define
class ReloadingTls:
    """Builds a context when first asked and when what it is made of changed, as ``stamp`` shows; if that does not load,
    the last stays in force."""

    stamp: Callable[[], object]
    build: Callable[[], ssl.SSLContext]
    _stamp: object = field(default=None, init=False)
    _context: ssl.SSLContext | None = field(default=None, init=False)

    def context(self) -> ssl.SSLContext:
        stamp = self.stamp()
        if self._context is not None and stamp == self._stamp:
            return self._context
        try:
            self._context = self.build()
        except TlsError as error:
            if self._context is None:
                raise
            log.warning("changed certificate files cannot be loaded; the previous ones stay in force", error=str(error))
        self._stamp = stamp
        return self._context


def server_tls(
    files: CertificateFiles, *, roots: Callable[[], bytes] = NO_ROOTS, require_client_certificate: bool = True
) -> TlsSource:
    """TLS for a server that shows ``files.certificate``.

    With ``files.trusted``, or ``roots`` (PEM, as it is now), clients are asked for a certificate that leads there, and
    are refused without one unless ``require_client_certificate`` is false. Raises TlsError when the files do not load.
    """
    if files.certificate is None:
        raise TlsError("a TLS server needs a certificate file")

    def build() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _load(context, files)
        _verify_clients(context, roots(), files.trusted is not None, require_client_certificate)
        return context

    source = ReloadingTls(lambda: (files.stamp(), roots()), build)
    source.context()
    return source


def server_tls_in_memory(
    shown: Callable[[], CertificatePem],
    *,
    trusted: Path | None = None,
    roots: Callable[[], bytes] = NO_ROOTS,
    require_client_certificate: bool = True,
) -> TlsSource:
    """TLS for a server that shows what ``shown`` returns now; the rest as for ``server_tls``. Raises TlsError."""
    files = CertificateFiles(trusted=trusted)

    def build() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _load(context, files)
        _load_in_memory(context, shown())
        _verify_clients(context, roots(), trusted is not None, require_client_certificate)
        return context

    source = ReloadingTls(lambda: (files.stamp(), shown(), roots()), build)
    source.context()
    return source


def client_tls(files: CertificateFiles = CertificateFiles(), *, check_hostname: bool = True) -> TlsSource:
    """TLS for a channel; with ``files.certificate`` mutual. Raises TlsError when the files do not load.

    ``check_hostname`` off still verifies the chain: for servers that are named by SPIFFE identity, not by host.
    """

    def build() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = check_hostname
        if files.trusted is None:
            context.load_default_certs()
        _load(context, files)
        return context

    source = ReloadingTls(files.stamp, build)
    source.context()
    return source


def client_tls_in_memory(
    shown: Callable[[], CertificatePem | None],
    *,
    trusted: Path | None = None,
    roots: Callable[[], bytes] = NO_ROOTS,
) -> TlsSource:
    """TLS for a channel that shows what ``shown`` returns now, if anything.

    Servers are known by ``trusted``, or the system's roots without it, and by ``roots`` (PEM, as it is now). Raises
    TlsError when the file does not load.
    """
    files = CertificateFiles(trusted=trusted)

    def build() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if trusted is None:
            context.load_default_certs()
        _load(context, files)
        _load_roots(context, roots())
        if (pair := shown()) is not None:
            _load_in_memory(context, pair)
        return context

    source = ReloadingTls(lambda: (files.stamp(), shown(), roots()), build)
    source.context()
    return source


def _verify_clients(context: ssl.SSLContext, roots: bytes, more: bool, require: bool) -> None:
    """Ask clients for a certificate that leads to ``roots``; ``more``: there are others, which are loaded."""
    _load_roots(context, roots)
    if roots or more:
        context.verify_mode = ssl.CERT_REQUIRED if require else ssl.CERT_OPTIONAL


def _load_roots(context: ssl.SSLContext, roots: bytes) -> None:
    if roots:
        try:
            context.load_verify_locations(cadata=roots.decode("ascii"))
        except (ssl.SSLError, UnicodeDecodeError) as error:
            raise TlsError(f"cannot load the trusted certificates: {error}") from error


def _load_in_memory(context: ssl.SSLContext, shown: CertificatePem) -> None:
    """Load a certificate and its key through a file without a name: OpenSSL's interface in Python has files only."""
    with (
        os.fdopen(os.memfd_create("certificate"), "wb") if hasattr(os, "memfd_create") else NamedTemporaryFile() as file
    ):
        file.write(shown.key + shown.certificate)
        file.flush()
        try:
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}" if isinstance(file.name, int) else file.name)
        except (OSError, ssl.SSLError) as error:
            raise TlsError(f"cannot load our own certificate: {reason_of(error)}") from error


def _load(context: ssl.SSLContext, files: CertificateFiles) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    try:
        if files.certificate is not None:
            context.load_cert_chain(files.certificate, files.key)
    except (OSError, ssl.SSLError) as error:
        key = f" with key {files.key}" if files.key is not None else ""
        raise TlsError(f"cannot load the certificate {files.certificate}{key}: {reason_of(error)}") from error
    try:
        if files.trusted is not None:
            context.load_verify_locations(files.trusted)
    except (OSError, ssl.SSLError) as error:
        raise TlsError(f"cannot load the trusted certificates {files.trusted}: {reason_of(error)}") from error


def reason_of(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return error.strerror or str(error)


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
                chunk = self._ssl.read(64 * 1024)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                chunk = b""
            except ssl.SSLError as error:
                raise TlsError(f"TLS: {reason_of(error)}") from error
            if chunk:
                chunks.append(chunk)
            else:
                self.ended = True
        plain = b"".join(chunks) if chunks or self.ended else None
        return plain, self._outgoing.read()

    def farewell(self) -> bytes:
        """The close_notify alert."""
        with contextlib.suppress(ssl.SSLError):
            self._ssl.unwrap()
        return self._outgoing.read()

    def spiffe_ids(self) -> tuple[str, ...]:
        """The ``spiffe://`` names of the peer's verified certificate."""
        names = (self._ssl.getpeercert() or {}).get("subjectAltName", ())
        assert isinstance(names, tuple)
        return tuple(
            value for kind, value in names if kind == "URI" and isinstance(value, str) and value.startswith("spiffe://")
        )

    def peer_certificate(self) -> bytes | None:
        """The peer's certificate in DER, None when it showed none."""
        return self._ssl.getpeercert(binary_form=True)

    def peer_certificate_end(self) -> float:
        """The end of the peer's certificate in Unix time; infinite without one."""
        match (self._ssl.getpeercert() or {}).get("notAfter"):
            case str() as end:
                return ssl.cert_time_to_seconds(end)
            case _:
                return math.inf


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
    with trio.move_on_after(timeout_seconds):
        try:
            await _handshake(session, sock, turn, on_answer)
        except TlsError:
            with contextlib.suppress(OSError):
                sock.send(session.pending())
            raise
        except OSError as error:
            raise TlsError(f"TLS handshake failed: {error.strerror}") from error
        return
    raise TlsError(f"TLS handshake not done within {timeout_seconds:g} s")


async def _handshake(
    session: TlsSession,
    sock: socket.socket,
    turn: Callable[[], AbstractAsyncContextManager[None]],
    on_answer: Callable[[], None],
) -> None:
    received = b""
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
            received = sock.recv(16 * 1024)
            if not received:
                raise TlsError("the peer hung up during the TLS handshake")
