"""A CA elsewhere, and the signer that every kind of it shares.

    signer = RemoteSigner(settings.open(), trust, now, roots_file=settings.roots)
    nursery.start_soon(signer.run)         # keeps the CA's roots and revocation lists in the trust store
    signed = await signer.sign(request)

A kind of CA writes ``RemoteCa``: how a certificate is asked for, and what its roots are. All else is here, once: how
many requests there are at once, what is tried again, that the answer is what was asked for (the CA is configured by
somebody else), and that the roots follow the CA's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

import attrs
import structlog
import trio
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.identity.signers.requests import check_names
from mesh_pilot.identity.signers.signing import SignedCertificate, SigningError, SigningRequest
from mesh_pilot.identity.signers.verification import verified
from mesh_pilot.identity.trust.bundles import OWN_CA, Bundle, TrustStore
from mesh_pilot.identity.trust.private_files import replace
from mesh_pilot.net.rpc.rate_limits import LogLimiter

log = structlog.get_logger(scope="security")

REREAD_SECONDS = 60.0
"""The interval at which roots and revocation lists are read."""

RETRY_SECONDS = 5.0
"""The longest wait after the first time that they could not be read; it doubles with each, up to `REREAD_SECONDS`."""

ATTEMPTS = 3
"""Requests for a certificate before the caller is told: it asks again later."""

FIRST_WAIT_SECONDS = 0.5
"""The longest wait before the second attempt; before the third it is twice as long."""

SIGN_SECONDS = 28.0
"""The time for one certificate, waits included: those who ask give up after 30 s, and should learn why."""

MOST_AT_ONCE = 16
"""Certificates that the CA is asked for at the same time; others wait."""

CRL_MARGIN = timedelta(hours=1)
"""The time before its end at which a revocation list is withdrawn: with one that ended, Envoy refuses every peer."""

NONE = timedelta()

PEM = serialization.Encoding.PEM

_SIGN, _ROOTS = "sign", "roots"


class CaError(SigningError):
    """A request that failed. Its text is for the operator, and says what to do.

    ``reason`` is a stable code for metrics (docs/signers.md lists them), ``status`` that of HTTP, 0 without an answer.
    ``passes``: it may work a second later; ``wait_seconds``: as the CA says, when.
    """

    def __init__(
        self, reason: str, message: str, status: int = 0, *, passes: bool = False, wait_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status
        self.passes = passes
        self.wait_seconds = wait_seconds


@attrs.frozen
class CaRoots:
    """The certificates that a CA wants workloads to trust."""

    certificates: tuple[x509.Certificate, ...]
    """The self-signed ones count; intermediates may be among them."""
    crls: tuple[x509.CertificateRevocationList, ...] = ()
    """One for each CA that signs leaves, or none."""


class RemoteCa(Protocol):
    """A CA elsewhere: all that a kind of it has to say."""

    place: str
    """The CA for messages: ``Vault at https://vault:8200 (pki/roles/mesh)``. No secret."""
    names_from_csr: bool
    """True if the certificate gets the names of the CSR; False if they are asked for next to it."""

    async def ask(self, request: SigningRequest) -> list[x509.Certificate]:
        """The CA's answer as it is, leaf first. Raises CaError, or SigningError for an answer that makes no sense."""
        ...

    async def roots(self) -> CaRoots:
        """The CA's roots as they are now. Raises SigningError."""
        ...

    async def aclose(self) -> None:
        """End the connections."""
        ...


@attrs.frozen
class SignerStatistics:
    signed: int
    """Certificates since the start."""
    failed: Mapping[str, int]
    """Requests that failed, by reason: that of a ``CaError``, ``wrong`` for a certificate that was not as asked, and
    ``roots`` for roots that could not be read."""
    trouble: str
    """The reason why the last certificate was not signed, or the roots not read; empty if all is well."""


class RemoteSigner:
    """Signs by asking a CA elsewhere.

    Mutable state: the roots and revocation lists that were read last, counts, and what went wrong last.
    """

    def __init__(
        self,
        ca: RemoteCa,
        trust: TrustStore,
        now: Callable[[], datetime],
        *,
        roots_file: Path | None = None,
        kept: Path | None = None,
        longest: timedelta = timedelta.max,
        backoff: Callable[[float, float], Backoff] = Backoff,
    ) -> None:
        """``now`` gives the wall clock; ``roots_file``: the roots of workloads, instead of those that the CA names;
        ``kept``: the file in which roots outlive a restart; ``longest``: the most that a certificate is asked to live;
        ``backoff`` makes the waits, of the first's and of the longest's seconds."""
        self.ca = ca
        self._trust = trust
        self._now = now
        self._roots_file = roots_file
        self._kept = kept
        self._longest = longest
        self._backoff = backoff
        self._places = trio.CapacityLimiter(MOST_AT_ONCE)
        self._roots: tuple[x509.Certificate, ...] = ()
        self._crls: tuple[x509.CertificateRevocationList, ...] = ()
        self._read_at = -math.inf
        """When those were read, in seconds of Trio's clock."""
        self._limiter = LogLimiter()
        self._signed = 0
        self._failed: Counter[str] = Counter()
        self._begins_early = NONE
        """The time by which the last certificate began before it was signed, which the CA adds to the lifetime."""
        self._trouble: dict[str, str] = {}
        """The last failures, by what was tried; gone once that works."""
        self._take_kept()

    def __repr__(self) -> str:
        return f"<RemoteSigner {self.ca.place} {self.statistics().trouble or 'well'}>"

    def statistics(self) -> SignerStatistics:
        return SignerStatistics(self._signed, dict(self._failed), next(iter(self._trouble.values()), ""))

    async def run(self) -> None:
        """Keep the roots and revocation lists in the trust store. What was read last stays while the CA is away."""
        waits = self._backoff(RETRY_SECONDS, REREAD_SECONDS)
        try:
            while True:
                try:
                    await self._read()
                    waits.reset()
                    await trio.sleep(REREAD_SECONDS)
                except SigningError as error:
                    self._note(_ROOTS, "roots", error)
                    self._publish()
                    await trio.sleep(waits.next_seconds())
        finally:
            with trio.CancelScope(shield=True):
                await self.ca.aclose()

    async def sign(self, request: SigningRequest) -> SignedCertificate:
        """See ``Signer``. If cancelled, a certificate may have been signed that no one gets."""
        try:
            if self.ca.names_from_csr:
                check_names(request)
            signed = await self._sign(request)
        except CaError as error:
            self._note(_SIGN, error.reason, error)
            raise
        except (SigningError, ValueError, UnsupportedAlgorithm) as error:  # the latter two of what a CA answers
            told = SigningError(f"{self.ca.place} did not sign what was asked for: {error}")
            self._note(_SIGN, "wrong", told)
            raise told from None
        self._signed += 1
        self._trouble.pop(_SIGN, None)
        return signed

    async def _sign(self, request: SigningRequest) -> SignedCertificate:
        last: CaError | None = None
        was_asked = False
        waits = self._backoff(FIRST_WAIT_SECONDS, SIGN_SECONDS)
        with trio.move_on_after(SIGN_SECONDS) as within:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    async with self._places:
                        was_asked = True
                        return await self._signed_once(request)
                except CaError as error:
                    last = error
                    if not error.passes or attempt == ATTEMPTS:
                        raise
                    wait = max(waits.next_seconds(), error.wait_seconds or 0.0)
                    if trio.current_time() + wait >= within.deadline:
                        raise
                await trio.sleep(wait)
        if last is not None:
            raise last
        reason = "unreachable" if was_asked else "busy"
        raise CaError(reason, f"{self.ca.place}: it has not answered all requests within {SIGN_SECONDS:g} s")

    async def _signed_once(self, request: SigningRequest) -> SignedCertificate:
        chain = await self._asked(request)
        if request.longest is not None and _whole(chain[0]) > request.longest:
            chain = await self._asked(request)  # by how much the CA lets certificates begin early is known now
        if not self._roots:
            await self._read()
        try:
            return verified(chain, request, self._roots, self._now())
        except SigningError:
            if trio.current_time() < self._read_at + RETRY_SECONDS:
                raise
        await self._read()  # the CA may have another root by now
        return verified(chain, request, self._roots, self._now())

    async def _asked(self, request: SigningRequest) -> list[x509.Certificate]:
        """The answer, unverified, leaf first.

        A renewal asks for less by what the CA lets certificates begin early, so that it does not grow by that.
        """
        lifetime = min(request.lifetime, self._longest)
        if request.longest is not None:
            left = request.longest - self._begins_early
            lifetime = min(lifetime, left if left > NONE else request.longest)
        chain = await self.ca.ask(attrs.evolve(request, lifetime=lifetime))
        self._begins_early = max(_whole(chain[0]) - lifetime, NONE)
        return chain

    def _note(self, tried: str, reason: str, error: SigningError) -> None:
        self._failed[reason] += 1
        self._trouble[tried] = str(error)
        suppressed = self._limiter.admit(reason, trio.current_time())
        if suppressed is not None:
            log.warning("the CA does not sign; certificates in force stay", reason=reason, error=str(error))

    # -- roots and revocation lists

    async def _read(self) -> None:
        """Read the CA's roots, or those of the file, and publish them. Raises SigningError."""
        found = await self.ca.roots()
        named = self._named_roots()
        roots = tuple(c for c in dict.fromkeys(named or found.certificates) if is_root(c))
        if not roots:
            advice = "put the root there, or name a file with roots in the file of --ca-signer"
            raise CaError("roots", f"{self.ca.place} has no root at the end of its chain: {advice}")
        self._read_at = trio.current_time()
        self._trouble.pop(_ROOTS, None)
        if roots != self._roots:
            self._keep(roots)
        self._roots, self._crls = roots, found.crls
        self._publish()

    def _take_kept(self) -> None:
        """Trust what an earlier run read, if this CA said it: clients with certificates come before the CA answers."""
        try:
            text = self._kept.read_bytes() if self._kept is not None else b""
            if text.startswith(self._kept_header()):
                self._roots = tuple(x509.load_pem_x509_certificates(text))
                self._publish()
        except (OSError, ValueError):
            return  # the CA is asked anyhow

    def _keep(self, roots: Iterable[x509.Certificate]) -> None:
        if self._kept is None:
            return
        content = self._kept_header() + b"".join(root.public_bytes(PEM) for root in roots)
        try:
            self._kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace(self._kept, content, 0o644)
        except OSError as error:
            log.warning("the roots cannot be kept in the state", file=str(self._kept), reason=error.strerror)

    def _kept_header(self) -> bytes:
        return f"# {self.ca.place}\n".encode()

    def _publish(self) -> None:
        """Put into the trust store what is in force. Lists go there all or none: a proxy needs one for each issuer."""
        soonest = self._now() + CRL_MARGIN
        crls = self._crls
        is_in_force = all(crl.next_update_utc is None or crl.next_update_utc > soonest for crl in crls)
        if not any(len(crl) for crl in crls) or not is_in_force:
            crls = ()
        if not self._roots:
            return
        roots = tuple(sorted(root.public_bytes(PEM) for root in self._roots))
        self._trust.put(OWN_CA, Bundle(roots, tuple(sorted(crl.public_bytes(PEM) for crl in crls))))

    def _named_roots(self) -> list[x509.Certificate]:
        path = self._roots_file
        if path is None:
            return []
        try:
            return x509.load_pem_x509_certificates(path.read_bytes())
        except (OSError, ValueError) as error:
            raise CaError("roots", f"{path}: cannot be read as PEM certificates: {error}") from None


def pem_certificates(texts: Iterable[object], whose: str) -> list[x509.Certificate]:
    """PEM of one certificate or several in each text; each certificate once. ``whose`` begins errors.

    Raises SigningError, also without any.
    """
    found: dict[x509.Certificate, None] = {}
    for text in texts:
        if isinstance(text, str) and text.strip():
            try:
                found.update(dict.fromkeys(x509.load_pem_x509_certificates(text.encode())))
            except ValueError as error:
                raise SigningError(f"{whose} answers with a certificate that cannot be read: {error}") from None
    if not found:
        raise SigningError(f"{whose} answers without a certificate")
    return list(found)


def is_root(certificate: x509.Certificate) -> bool:
    """True for a certificate that its own key has signed."""
    if certificate.issuer != certificate.subject:
        return False
    try:
        certificate.verify_directly_issued_by(certificate)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _whole(certificate: x509.Certificate) -> timedelta:
    return certificate.not_valid_after_utc - certificate.not_valid_before_utc
