"""The content of the stores: a credential that is ordered, the account; and when the next order is due."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import attrs
import msgspec
from cryptography import x509

from mesh_pilot.identity.authority.store import MaterialStore, StoreConflict, StoredFiles
from mesh_pilot.model.events import ChallengeAnswer
from mesh_pilot.sources.acme.wanted import WantedCertificate

CERTIFICATE, KEY, ORDER = "tls.crt", "tls.key", "order.json"
ACCOUNT_KEY, ACCOUNT = "account.key", "account.json"
KEYS = frozenset({KEY, ACCOUNT_KEY})
FILES = KEYS | {CERTIFICATE, ORDER, ACCOUNT}

FIRST_RETRY = timedelta(minutes=1)
LAST_RETRY = timedelta(hours=6)
RETRY_FACTOR = 4
"""Four orders at most in the first hour of a failure: public issuers allow five failed proofs of a host in an hour."""

RATE_LIMITED = timedelta(hours=1)
"""The wait after ``rateLimited``, if the issuer does not say how long."""

LONGEST_PAUSE = timedelta(hours=1)

EARLIEST, LATEST = 0.60, 0.66
"""The share of a certificate's life after which it is renewed: two thirds at the latest, spread so that credentials
that were ordered together are not renewed together."""


@attrs.frozen
class LastOrder:
    """The last order of a credential, or the one that is pending."""

    directory: str = ""
    hosts: tuple[str, ...] = ()
    answers: tuple[ChallengeAnswer, ...] = ()
    """Answers of gateways while it is pending."""
    failures: int = 0
    """Orders that failed in a row."""
    reason: str = ""
    """Why the last one failed; empty if it did not."""
    retry_at: datetime | None = None
    """No other order for the same before that."""
    pending_until: datetime | None = None
    """No other order at all before that: a replica makes one. None: none does."""


@attrs.frozen
class Account:
    """The account at an issuer."""

    key: bytes = attrs.field(repr=False)
    """PEM."""
    directory: str = ""
    """That of the issuer; the key may be registered at one only."""
    uri: str = ""
    """Empty: the key is not registered yet."""
    contacts: tuple[str, ...] = ()


@attrs.frozen
class StoredCredential:
    """A credential as a store has it."""

    certificate: bytes = b""
    private_key: bytes = attrs.field(default=b"", repr=False)
    order: LastOrder = LastOrder()

    @classmethod
    def of(cls, stored: StoredFiles) -> StoredCredential:
        """The content of a store. An unreadable record of the last order is dropped: it says only when to wait."""
        files = stored.files
        try:
            order = msgspec.json.decode(files[ORDER], type=LastOrder) if ORDER in files else LastOrder()
        except msgspec.MsgspecError:
            order = LastOrder()
        return cls(files.get(CERTIFICATE, b""), files.get(KEY, b""), order)

    @property
    def files(self) -> dict[str, bytes]:
        found = {ORDER: msgspec.json.encode(self.order)}
        if self.certificate:
            found |= {CERTIFICATE: self.certificate, KEY: self.private_key}
        return found

    @property
    def leaf(self) -> x509.Certificate | None:
        try:
            return x509.load_pem_x509_certificates(self.certificate)[0]
        except ValueError:
            return None

    def due_at(self, wanted: WantedCertificate) -> datetime | None:
        """When the next order is due; None: at once."""
        found = self._due_at(wanted)
        pending = self.order.pending_until
        return max(found, pending) if found is not None and pending is not None else found or pending

    def _due_at(self, wanted: WantedCertificate) -> datetime | None:
        order = self.order
        is_same = (order.directory, order.hosts) == (wanted.issuer.directory, wanted.hosts)
        retry_at = order.retry_at if is_same else None
        leaf = self.leaf
        if leaf is None or not is_same or not covers(leaf, wanted.hosts):
            return retry_at
        return max(renewal_of(leaf), retry_at) if retry_at is not None else renewal_of(leaf)


def hosts_of(leaf: x509.Certificate) -> tuple[str, ...]:
    """The DNS names of a certificate, sorted."""
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    return tuple(sorted(name.lower() for name in names.get_values_for_type(x509.DNSName)))


def covers(leaf: x509.Certificate, hosts: tuple[str, ...]) -> bool:
    """True if a certificate is for all of these hosts. An issuer may add some."""
    return set(hosts) <= set(hosts_of(leaf))


def renewal_of(leaf: x509.Certificate) -> datetime:
    """When a certificate is renewed. Every replica, and every run, comes to the same time."""
    begins, ends = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    spread = leaf.serial_number % 1000 / 1000
    return begins + (ends - begins) * (EARLIEST + (LATEST - EARLIEST) * spread)


def pause_after(leaf: x509.Certificate) -> timedelta:
    """The time after an order that succeeded in which none is made, whatever the clock says of the certificate."""
    return min((leaf.not_valid_after_utc - leaf.not_valid_before_utc) / 2, LONGEST_PAUSE)


def retry_after(failures: int, told: timedelta | None, is_limited: bool, random: float) -> timedelta:
    """The wait after so many orders that failed in a row. ``told``: what the issuer asks for; it counts if longer."""
    wait = min(FIRST_RETRY * float(RETRY_FACTOR) ** min(failures - 1, 16), LAST_RETRY) * (0.75 + random / 2)
    asked = told if told is not None else RATE_LIMITED if is_limited else timedelta(0)
    return max(wait, asked)


async def read_account(store: MaterialStore, directory: str) -> Account | None:
    """The account at an issuer; None before the first. Raises StoreError."""
    files = (await store.read()).files
    if ACCOUNT_KEY not in files:
        return None
    try:
        found = msgspec.json.decode(files.get(ACCOUNT, b"{}"), type=_AccountRow)
    except msgspec.MsgspecError:
        found = _AccountRow()
    own = found if found.directory == directory else _AccountRow()
    return Account(files[ACCOUNT_KEY], directory, own.uri, own.contacts)


async def write_account(store: MaterialStore, account: Account) -> None:
    """Keep an account. Raises StoreError."""
    row = _AccountRow(account.directory, account.uri, account.contacts)
    await replace(store, {ACCOUNT_KEY: account.key, ACCOUNT: msgspec.json.encode(row)})


async def replace(store: MaterialStore, files: Mapping[str, bytes]) -> None:
    """Write files, whatever is there. Raises StoreError."""
    while True:
        try:
            await store.write(files, (await store.read()).version)
        except StoreConflict:
            continue
        return


@attrs.frozen
class _AccountRow:
    directory: str = ""
    uri: str = ""
    contacts: tuple[str, ...] = ()
