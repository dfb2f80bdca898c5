"""The TLS contexts of servers and clients, made again when the files or values that they are made of have changed.

Changed files hold for the next connection. What cannot be loaded, as a file that is half written, leaves the last in
force, and the log says so.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Protocol, Self

import structlog
from attrs import define, field, frozen

from mesh_pilot.net.rpc.errors import TlsError

__all__ = [
    "CertificateFiles",
    "CertificatePem",
    "TlsSource",
    "client_tls",
    "client_tls_in_memory",
    "http_client_tls",
    "http_client_tls_in_memory",
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


Shown = Callable[[], CertificatePem | None]
"""The certificate that a side shows now, if it is not in its files."""

NO_ROOTS: Callable[[], bytes] = bytes
"""No further trust anchors."""

_REVOCATIONS = b"-----BEGIN X509 CRL-----"


@define
class _ReloadingTls:
    """Builds a context when first asked and when what it is made of changed, as ``stamp`` shows; if that does not load,
    the last is kept."""

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
            log.warning("changed certificate files cannot be loaded; the previous ones are kept", error=str(error))
        self._stamp = stamp
        return self._context


def _reloading(stamp: Callable[[], object], build: Callable[[], ssl.SSLContext]) -> TlsSource:
    """A source whose first context loads. Raises TlsError when it does not."""
    source = _ReloadingTls(stamp, build)
    source.context()
    return source


def server_tls(
    files: CertificateFiles, *, roots: Callable[[], bytes] = NO_ROOTS, require_client_certificate: bool = True
) -> TlsSource:
    """TLS for a server that shows ``files.certificate``.

    With ``files.trusted``, or ``roots`` (PEM, as it is now), clients are asked for a certificate that leads there, and
    are refused without one unless ``require_client_certificate`` is false. Raises TlsError when the files do not load.
    """
    if files.certificate is None:
        raise TlsError("a TLS server needs a certificate file")
    return _server_tls(files, lambda: None, roots, require_client_certificate)


def server_tls_in_memory(
    shown: Callable[[], CertificatePem],
    *,
    trusted: Path | None = None,
    roots: Callable[[], bytes] = NO_ROOTS,
    require_client_certificate: bool = True,
) -> TlsSource:
    """TLS for a server that shows what ``shown`` returns now; the rest as for ``server_tls``. Raises TlsError.

    ``roots`` may have revocation lists among its certificates. Then one of each issuer of clients is needed, as in
    Envoy, and a client whose certificate is in its issuer's is refused.
    """
    return _server_tls(CertificateFiles(trusted=trusted), shown, roots, require_client_certificate)


def _server_tls(files: CertificateFiles, shown: Shown, roots: Callable[[], bytes], require: bool) -> TlsSource:
    def build() -> ssl.SSLContext:
        context = _context(ssl.PROTOCOL_TLS_SERVER, files, shown(), anchors := roots())
        # No tickets: two for each client, with its certificate in them, are a fifth of a handshake, and are of no use
        # at another replica, another worker, or after a restart, which is where crowds come from.
        context.num_tickets = 0
        if anchors or files.trusted is not None:
            context.verify_mode = ssl.CERT_REQUIRED if require else ssl.CERT_OPTIONAL
        return context

    return _reloading(lambda: (files.stamp(), shown(), roots()), build)


def client_tls(files: CertificateFiles = CertificateFiles(), *, check_hostname: bool = True) -> TlsSource:
    """TLS for a channel; with ``files.certificate`` mutual. Raises TlsError when the files do not load.

    ``check_hostname`` off still verifies the chain: for servers that are named by SPIFFE identity, not by host.
    """
    return _client_tls(files, lambda: None, NO_ROOTS, check_hostname)


def client_tls_in_memory(
    shown: Shown, *, trusted: Path | None = None, roots: Callable[[], bytes] = NO_ROOTS
) -> TlsSource:
    """TLS for a channel that shows what ``shown`` returns now, if anything.

    Servers are known by ``trusted``, or the system's roots without it, and by ``roots`` (PEM, as it is now). Raises
    TlsError when the file does not load.
    """
    return _client_tls(CertificateFiles(trusted=trusted), shown, roots, True)


def _client_tls(files: CertificateFiles, shown: Shown, roots: Callable[[], bytes], check_hostname: bool) -> TlsSource:
    def build() -> ssl.SSLContext:
        context = _context(ssl.PROTOCOL_TLS_CLIENT, files, shown(), roots())
        context.check_hostname = check_hostname
        if files.trusted is None:
            context.load_default_certs()
        return context

    return _reloading(lambda: (files.stamp(), shown(), roots()), build)


def http_client_tls(
    files: CertificateFiles = CertificateFiles(), *, folder: Path | None = None, verify: bool = True
) -> ssl.SSLContext:
    """A context for a client of HTTP, with ``files.certificate`` if there is one.

    Servers are known by ``files.trusted`` and ``folder`` (of certificates, hashed as OpenSSL wants it), or by the
    system's roots without both. ``verify`` off takes any server. Raises TlsError when the files do not load.

    An HTTP client keeps the one context that it was given for as long as it lives, so this one is another inside.
    """
    trusted = [path for path in (files.trusted, folder) if path is not None]

    def stamp() -> object:
        paths = ssl.get_default_verify_paths()
        roots = trusted or [Path(path) for path in (paths.cafile, paths.capath) if path]
        return files.stamp(), [_stamp(path) for path in roots]

    def build() -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(
                cafile=str(files.trusted) if files.trusted else None, capath=str(folder) if folder else None
            )
            if files.certificate is not None:
                context.load_cert_chain(files.certificate, files.key)
        except OSError as error:
            named = ", ".join(map(str, [*trusted, *(each for each in (files.certificate, files.key) if each)]))
            raise TlsError(f"cannot use the TLS files {named}: {reason_of(error)}") from error
        if not verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["http/1.1"])
        return context

    return _ReloadingContext.over(_reloading(stamp, build))


def http_client_tls_in_memory(
    shown: Shown, *, trusted: Path | None = None, roots: Callable[[], bytes] = NO_ROOTS
) -> ssl.SSLContext:
    """A context for a client of HTTP that shows what ``shown`` returns now, if anything and if it is asked for it.

    The rest as for ``client_tls_in_memory``. Raises TlsError when the file does not load.
    """
    files = CertificateFiles(trusted=trusted)

    def build() -> ssl.SSLContext:
        context = _context(ssl.PROTOCOL_TLS_CLIENT, files, shown(), roots())
        context.set_alpn_protocols(["http/1.1"])
        if trusted is None:
            context.load_default_certs()
        return context

    return _ReloadingContext.over(_reloading(lambda: (files.stamp(), shown(), roots()), build))


class _ReloadingContext(ssl.SSLContext):
    """Makes sessions with the context that its source has now. What is set on itself has no effect."""

    _source: TlsSource

    @classmethod
    def over(cls, source: TlsSource) -> Self:
        context = cls(ssl.PROTOCOL_TLS_CLIENT)
        context._source = source
        return context

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return self._source.context().wrap_bio(*args, **options)


def _context(protocol: int, files: CertificateFiles, shown: CertificatePem | None, roots: bytes) -> ssl.SSLContext:
    """A context for gRPC with what both sides load. Raises TlsError."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    what = "our own certificate"
    try:
        if files.certificate is not None:
            key = f" with key {files.key}" if files.key is not None else ""
            what = f"the certificate {files.certificate}{key}"
            context.load_cert_chain(files.certificate, files.key)
        if shown is not None:
            _load_in_memory(context, shown)
        what = f"the trusted certificates {files.trusted}"
        if files.trusted is not None:
            context.load_verify_locations(files.trusted)
        what = "the trusted certificates"
        if roots:
            context.load_verify_locations(cadata=roots.decode("ascii"))
        if _REVOCATIONS in roots:
            what = "the revocation lists"
            _in_file(roots, context.load_verify_locations)
            context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    except (OSError, UnicodeDecodeError) as error:
        raise TlsError(f"cannot load {what}: {reason_of(error)}") from error
    return context


def _load_in_memory(context: ssl.SSLContext, shown: CertificatePem) -> None:
    """Load a certificate and its key."""
    _in_file(shown.key + shown.certificate, context.load_cert_chain)


def _in_file(content: bytes, load: Callable[[str], None]) -> None:
    """Load through a file without a name: for much, OpenSSL's interface in Python has files only."""
    with (
        os.fdopen(os.memfd_create("certificate"), "wb") if hasattr(os, "memfd_create") else NamedTemporaryFile() as file
    ):
        file.write(content)
        file.flush()
        load(f"/proc/self/fd/{file.fileno()}" if isinstance(file.name, int) else file.name)


def reason_of(error: OSError | UnicodeDecodeError) -> str:
    """OpenSSL's or the system's words for an error."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return getattr(error, "strerror", None) or str(error)
