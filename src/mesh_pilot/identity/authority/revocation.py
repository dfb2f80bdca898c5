"""Revocation: which certificates are on the lists that we know."""

from __future__ import annotations

from collections.abc import Callable

import trio
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm


class Revocations:
    """The serial numbers on revocation lists, by issuer. An expired list still counts.

    ``crls`` gives the lists as they are now, in PEM, ``identities`` the identities that are revoked. Mutable state:
    those that were read last, and if there are news.
    """

    def __init__(self, crls: Callable[[], tuple[bytes, ...]], identities: Callable[[], object] = lambda: None) -> None:
        self._crls = crls
        self._identities = identities
        self._identities_seen = identities()
        self._read: tuple[bytes, ...] = ()
        self._revoked: dict[x509.Name, frozenset[int]] = {}
        self._news = trio.Event()

    def look(self) -> None:
        """Wake who waits for changes, if there are any."""
        if self._crls() != self._read or self._identities() != self._identities_seen:
            self._identities_seen = self._identities()
            self._news.set()

    async def changed(self) -> None:
        """Wait until other lists are known than at the last call."""
        await self._news.wait()
        self._news = trio.Event()

    def is_revoked(self, certificate: x509.Certificate) -> bool:
        """True if a certificate is on the list of its issuer, or its issuer cannot be read while there are lists."""
        crls = self._crls()
        if crls != self._read:
            found: dict[x509.Name, frozenset[int]] = {}
            for crl in map(x509.load_pem_x509_crl, crls):
                serials = frozenset(entry.serial_number for entry in crl)
                found[crl.issuer] = found.get(crl.issuer, frozenset()) | serials
            self._read, self._revoked = crls, found
        if not self._revoked:
            return False
        try:
            return certificate.serial_number in self._revoked.get(certificate.issuer, frozenset())
        except (ValueError, UnsupportedAlgorithm):
            return True
