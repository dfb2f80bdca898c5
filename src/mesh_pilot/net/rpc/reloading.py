"""The TLS context of a client of HTTP, whose files are read again when they change.

An HTTP client keeps the one context that it was given for as long as it lives; this one is another inside as soon as
its files are, so the next connection has what they hold now. Files that cannot be loaded, as one that is half written,
leave the last in force, and the log says so.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from mesh_pilot.net.rpc.errors import TlsError
from mesh_pilot.net.rpc.tls import CertificateFiles, ReloadingTls, TlsSource, reason_of

__all__ = ["http_client_tls"]

HTTP = ["http/1.1"]
NO_FILES = CertificateFiles()


def http_client_tls(
    files: CertificateFiles = NO_FILES, *, folder: Path | None = None, verify: bool = True
) -> ssl.SSLContext:
    """A context for a client of HTTP, with ``files.certificate`` if there is one.

    Servers are known by ``files.trusted`` and ``folder`` (of certificates, hashed as OpenSSL wants it), or by the
    system's roots without both. ``verify`` off takes any server. Raises TlsError when the files do not load.
    """
    trusted = [path for path in (files.trusted, folder) if path is not None]

    def stamp() -> object:
        return files.stamp(), [_stamps(path) for path in trusted or _system_roots()]

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
        context.set_alpn_protocols(HTTP)
        return context

    source = ReloadingTls(stamp, build)
    source.context()
    return _ReloadingContext.over(source)


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


def _system_roots() -> Iterable[Path]:
    found = ssl.get_default_verify_paths()
    return [Path(path) for path in (found.cafile, found.capath) if path]


def _stamps(path: Path) -> tuple[int, int, int] | None:
    return CertificateFiles(trusted=path).stamp()[0]
