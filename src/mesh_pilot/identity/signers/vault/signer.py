"""Certificates from Vault's PKI secrets engine, and what workloads trust because of it.

    signer = VaultSigner(settings, trust, now)
    nursery.start_soon(signer.run)         # keeps roots and revocation lists in the trust store
    signed = await signer.sign(request)

What is asked for: our CSR with the identity beside it (``pki/sign/<role>`` with ``uri_sans``). What comes back is
verified before anybody sees it, since the role is configured by somebody else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import attrs
import structlog
import trio
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from mesh_pilot.base.reading import as_list
from mesh_pilot.identity.signers.signing import SignedCertificate, SigningError, SigningRequest
from mesh_pilot.identity.signers.vault.client import NOT_FOUND, VaultClient, VaultError
from mesh_pilot.identity.signers.vault.settings import VaultSettings
from mesh_pilot.identity.signers.verification import is_address, verified
from mesh_pilot.identity.trust.bundles import OWN_CA, Bundle, TrustStore
from mesh_pilot.net.rpc.rate_limits import LogLimiter

log = structlog.get_logger(scope="security")

REREAD_SECONDS = 60.0
"""The interval at which roots and revocation lists are read."""

RETRY_SECONDS = 5.0
"""The interval while they cannot be read."""

CRL_MARGIN = timedelta(hours=1)
"""A revocation list is withdrawn so long before it ends: Envoy refuses everybody by one that has ended."""

MAX_ISSUERS = 50
"""Issuers of a PKI engine that are looked at."""

NONE = timedelta()

PEM = serialization.Encoding.PEM

_SIGN, _ROOTS = "sign", "roots"


@attrs.frozen
class VaultStatistics:
    signed: int
    """Certificates since the start."""
    failed: Mapping[str, int]
    """Requests for one that gave none, by reason: one of ``VaultError``, or ``wrong`` for one that was not as asked."""
    trouble: str
    """The reason why the last certificate was not signed, or the roots not read; empty if all is well."""


class VaultSigner:
    """Signs with a role of a PKI engine.

    Mutable state: the roots and revocation lists that were read last, counts, and what went wrong last.
    """

    def __init__(
        self,
        settings: VaultSettings,
        trust: TrustStore,
        now: Callable[[], datetime],
        *,
        client: VaultClient | None = None,
    ) -> None:
        """``now`` gives the wall clock."""
        self._settings = settings
        self._mount = settings.mount.strip("/")
        self._trust = trust
        self._now = now
        self._client = client or VaultClient(settings)
        self._roots: tuple[x509.Certificate, ...] = ()
        self._crls: tuple[x509.CertificateRevocationList, ...] = ()
        self._read_at = -math.inf
        """When those were read, in seconds of Trio's clock."""
        self._limiter = LogLimiter()
        self._signed = 0
        self._failed: Counter[str] = Counter()
        self._begins_early = NONE
        """The time by which the last certificate began before it was signed: the role's ``not_before_duration``."""
        self._trouble: dict[str, str] = {}
        """The last failures, by what was tried; gone once that works."""

    def __repr__(self) -> str:
        state = self.statistics().trouble or "well"
        return f"<VaultSigner {self._settings.address} {self._mount}/{self._settings.role} {state}>"

    def statistics(self) -> VaultStatistics:
        return VaultStatistics(self._signed, dict(self._failed), next(iter(self._trouble.values()), ""))

    async def run(self) -> None:
        """Keep the roots and revocation lists in the trust store. What was read last stays while the server is away."""
        try:
            while True:
                try:
                    await self._read()
                    await trio.sleep(REREAD_SECONDS)
                except SigningError as error:
                    self._note(_ROOTS, "roots", error)
                    self._publish()
                    await trio.sleep(RETRY_SECONDS)
        finally:
            with trio.CancelScope(shield=True):
                await self._client.aclose()

    async def sign(self, request: SigningRequest) -> SignedCertificate:
        """See ``Signer``."""
        try:
            signed = await self._sign(request)
        except VaultError as error:
            self._note(_SIGN, error.reason, error)
            raise
        except SigningError as error:
            where = f"{self._mount}/roles/{self._settings.role}"
            told = SigningError(f"Vault at {self._settings.address} did not sign what was asked for ({where}): {error}")
            self._note(_SIGN, "wrong", told)
            raise told from None
        self._signed += 1
        self._trouble.pop(_SIGN, None)
        return signed

    async def _sign(self, request: SigningRequest) -> SignedCertificate:
        chain = await self._asked(request)
        if request.longest is not None and _whole(chain[0]) > request.longest:
            chain = await self._asked(request)  # by how much the role lets certificates begin early is known now
        if not self._roots:
            await self._read()
        try:
            return verified(chain, request, self._roots, self._now())
        except SigningError:
            if trio.current_time() < self._read_at + RETRY_SECONDS:
                raise
        await self._read()  # the engine may have another root by now
        return verified(chain, request, self._roots, self._now())

    async def _asked(self, request: SigningRequest) -> list[x509.Certificate]:
        """The answer, unverified, leaf first.

        A renewal asks for less by what the role lets certificates begin early, so that it does not grow by that.
        """
        lifetime = request.lifetime
        if request.longest is not None:
            left = request.longest - self._begins_early
            lifetime = min(lifetime, left if left > NONE else request.longest)
        question = _question(attrs.evolve(request, lifetime=lifetime))
        answer = await self._client.post(f"{self._mount}/sign/{self._settings.role}", question)
        chain = _chain_of(answer)
        self._begins_early = max(_whole(chain[0]) - lifetime, NONE)
        return chain

    def _note(self, tried: str, reason: str, error: SigningError) -> None:
        self._failed[reason] += 1
        self._trouble[tried] = str(error)
        suppressed = self._limiter.admit(reason, trio.current_time())
        if suppressed is not None:
            log.warning("Vault does not sign; certificates in force stay", reason=reason, error=str(error))

    # -- roots and revocation lists

    async def _read(self) -> None:
        """Read what the engine's issuers are, and publish it. Raises SigningError."""
        issuers = [await self._issuer(name) for name in await self._issuer_names()]
        certificates = dict.fromkeys(certificate for chain, _ in issuers for certificate in chain)
        roots = tuple(c for c in (*self._named_roots(), *certificates) if _is_root(c))
        if not roots:
            raise SigningError(
                f"the PKI engine {self._mount} of Vault has no root at the end of its chain: "
                "put the root into the chain of its issuer, or name its file with --vault-roots"
            )
        self._read_at = trio.current_time()
        self._trouble.pop(_ROOTS, None)
        self._roots = tuple(dict.fromkeys(roots))
        found = [crl for _, crl in issuers]
        self._crls = tuple(crl for crl in found if crl is not None) if None not in found else ()
        self._publish()

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

    async def _issuer_names(self) -> list[str]:
        try:
            keys = (await self._client.get(f"{self._mount}/issuers", method="LIST")).get("keys")
        except VaultError as error:
            if error.status == NOT_FOUND:
                raise SigningError(
                    f"the PKI engine {self._mount} of Vault at {self._settings.address} does not exist or has no "
                    f"issuer: {error}"
                ) from None
            raise
        names = as_list(keys)
        if len(names) > MAX_ISSUERS:
            raise SigningError(f"the PKI engine {self._mount} of Vault has {len(names)} issuers, more than we look at")
        return [str(name) for name in names]

    async def _issuer(self, name: str) -> tuple[list[x509.Certificate], x509.CertificateRevocationList | None]:
        """The chain of an issuer, and its revocation list if it has one that can be read."""
        data = await self._client.get(f"{self._mount}/issuer/{name}/json")
        chain = _certificates([data.get("certificate"), *as_list(data, "ca_chain")])
        try:
            text = (await self._client.get(f"{self._mount}/issuer/{name}/crl")).get("crl")
            return chain, x509.load_pem_x509_crl(str(text).encode())
        except (VaultError, ValueError):
            return chain, None

    def _named_roots(self) -> list[x509.Certificate]:
        path = self._settings.roots_file
        if path is None:
            return []
        try:
            return x509.load_pem_x509_certificates(path.read_bytes())
        except (OSError, ValueError) as error:
            raise SigningError(f"{path}: cannot be read as PEM certificates: {error}") from None


def _whole(certificate: x509.Certificate) -> timedelta:
    return certificate.not_valid_after_utc - certificate.not_valid_before_utc


def _question(request: SigningRequest) -> dict[str, Any]:
    addresses = [name for name in request.dns_names if is_address(name)]
    hosts = [name for name in request.dns_names if not is_address(name)]
    return {
        "csr": request.csr.public_bytes(PEM).decode(),
        "ttl": f"{int(request.lifetime.total_seconds())}s",
        "format": "pem",
        "exclude_cn_from_sans": True,
        **({"uri_sans": str(request.identity)} if request.identity is not None else {}),
        **({"alt_names": ",".join(hosts)} if hosts else {}),
        **({"ip_sans": ",".join(addresses)} if addresses else {}),
    }


def _chain_of(answer: Mapping[str, Any]) -> list[x509.Certificate]:
    """The certificates of an answer, leaf first. Raises SigningError."""
    return _certificates([answer.get("certificate"), *as_list(answer, "ca_chain"), answer.get("issuing_ca")])


def _certificates(texts: Iterable[object]) -> list[x509.Certificate]:
    """PEM of one certificate or several in each text; each certificate once. Raises SigningError."""
    found: dict[x509.Certificate, None] = {}
    for text in texts:
        if isinstance(text, str) and text.strip():
            try:
                found.update(dict.fromkeys(x509.load_pem_x509_certificates(text.encode())))
            except ValueError as error:
                raise SigningError(f"Vault answers with a certificate that cannot be read: {error}") from None
    if not found:
        raise SigningError("Vault answers without a certificate")
    return list(found)


def _is_root(certificate: x509.Certificate) -> bool:
    if certificate.issuer != certificate.subject:
        return False
    try:
        certificate.verify_directly_issued_by(certificate)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True
