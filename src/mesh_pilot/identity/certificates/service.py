"""``istio.v1.auth.IstioCertificateService``: workloads that keep their key have certificates signed, as at istiod.

The request is read, its caller authenticated, its claims are checked (``identity.signers.requests``), and a certificate
for the caller's identity is signed. Source: the client in Istio's agents, ``citadel``.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache

import attrs
import structlog
import trio
from cryptography import x509

from mesh_pilot.api.istio.v1.auth import IstioCertificateResponse
from mesh_pilot.base.protowire import LEN, VARINT, WireError, fields, read_varint
from mesh_pilot.identity.authenticators.authentication import NOBODY
from mesh_pilot.identity.authenticators.denials import MAX_TEXT, Denials
from mesh_pilot.identity.authenticators.settings import DEFAULT_RATE
from mesh_pilot.identity.authenticators.xfcc import ForwardedCertificate
from mesh_pilot.identity.signers.requests import CLAIMS, SigningRequestError, check_claims, read_request
from mesh_pilot.identity.signers.signing import Signer, SigningError, SigningRequest
from mesh_pilot.identity.trust.callers import (
    AuthenticationError,
    AuthenticatorUnavailable,
    Caller,
    TrustDomainsNow,
    host_of,
)
from mesh_pilot.net.rpc import Cardinality, GRPCError, Handler, ServerStream, Status
from mesh_pilot.net.rpc.rate_limits import KeyedBuckets, LogLimiter

log = structlog.get_logger(scope="security")

PATH = "/istio.v1.auth.IstioCertificateService/CreateCertificate"

Call = ServerStream[bytes, IstioCertificateResponse]

CSR = "csr"
"""The word for signing requests among the authenticators of denials."""

DEFAULT_LIFETIME = timedelta(hours=24)
"""The lifetime that is asked for on behalf of callers that name none."""
LONGEST_LIFETIME = timedelta(days=3650)
SIGN_SECONDS = 30.0
"""The longest wait for a signer."""
BURST_SECONDS = 10.0
"""The seconds whose certificates a caller may have at once."""

QUIET_SECONDS = 0.01
"""The time without a response to any proxy after which a push is over."""
PATIENCE_SECONDS = 0.1
"""The longest wait for pushes to be over. After it, requests do not wait for as long."""

_END = "-----END CERTIFICATE-----"
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n?", re.DOTALL)


@attrs.frozen
class CertificateServiceStatistics:
    requests: int
    """Calls since the start."""
    authentication_failures: int
    parsing_errors: int
    """Requests that could not be read, or had an unfit key or a wrong signature."""
    claim_errors: int
    """Requests that claimed what is not their caller's."""
    sign_errors: Mapping[str, int]
    """Requests that were not signed, by reason."""
    issued: int


@attrs.frozen
class _Request:
    csr: x509.CertificateSigningRequest
    lifetime: timedelta


class CertificateService:
    """Serves the service. Mutable state: counters, the rate of each caller, the limiter of log lines, and for
    how long requests need not wait for pushes.

    Requests are checked one at a time, between pushes.
    """

    def __init__(
        self,
        authenticate: Callable[[ServerStream[bytes, IstioCertificateResponse]], Awaitable[Caller | None]],
        signer: Signer,
        *,
        roots: Callable[[], Sequence[bytes]],
        trust_domains: TrustDomainsNow,
        denials: Denials,
        lifetime: timedelta = DEFAULT_LIFETIME,
        rate: float = DEFAULT_RATE,
    ) -> None:
        """``authenticate`` raises AuthenticationError and AuthenticatorUnavailable. ``roots`` gives those of the mesh's
        own trust domain, each in PEM. ``rate``: certificates a second for an identity at an address; 0: no limit.
        """
        self._authenticate = authenticate
        self._signer = signer
        self._roots = roots
        self._trust_domains = trust_domains
        self._denials = denials
        self._lifetime = lifetime
        self._rates = KeyedBuckets(rate, max(1.0, rate * BURST_SECONDS))
        self._log = LogLimiter()
        self._turn = trio.Lock()
        self._free_until = -math.inf
        self._pushed_at: Callable[[], float] = lambda: -math.inf
        self._counts: Counter[str] = Counter()
        self._sign_errors: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<CertificateService {self._counts['issued']} issued>"

    def __mapping__(self) -> Mapping[str, Handler]:
        return {PATH: Handler(self._create, Cardinality.UNARY_UNARY, bytes, IstioCertificateResponse)}

    def statistics(self) -> CertificateServiceStatistics:
        return CertificateServiceStatistics(
            self._counts["requests"],
            self._counts["authentication"],
            self._counts["parsing"],
            self._counts["claims"],
            dict(self._sign_errors),
            self._counts["issued"],
        )

    def give_way(self, pushed_at: Callable[[], float]) -> None:
        """Let pushes go first: ``pushed_at`` tells when one last began or continued, by Trio's clock."""
        self._pushed_at = pushed_at

    async def _create(self, call: Call) -> None:
        """Answer one call. Raises GRPCError."""
        self._counts["requests"] += 1
        message = await call.recv_message()
        try:
            # Before the caller is known: a request that nobody could have signed costs no use of a token.
            request = _read(message or b"", self._lifetime)
            caller = await self._caller(call)
            if not self._rates.take((caller.identity, host_of(call.peer.address)), trio.current_time()):
                raise SigningRequestError("csr_rate", f"{caller.identity} asks for too many certificates; try later")
            async with self._turn:
                await self._wait_for_pushes()
                check_claims(request.csr, caller.identity, self._trust_domains())
        except SigningRequestError as error:
            self._counts["claims" if error.reason in CLAIMS else "parsing"] += 1
            self._denials.note(call.peer.address, CSR, error.reason, str(error))
            raise self._refusal(call, _STATUS.get(error.reason, Status.INVALID_ARGUMENT), error.reason, error) from None
        lifetime = request.lifetime
        if caller.authenticator == ForwardedCertificate.name:
            # The header does not say for how long the certificate is: no longer than where nobody asks for more.
            lifetime = min(lifetime, self._lifetime)
        asked = SigningRequest(
            request.csr,
            lifetime,
            caller.identity,
            evidence=f"{caller.authenticator} {caller.evidence}".rstrip(),
            peer=call.peer.address,
            renews=caller.certificate,
        )
        await call.send_message(await self._signed(call, asked))
        self._counts["issued"] += 1

    async def _wait_for_pushes(self) -> None:
        """Wait while a push continues, though not for long: pushes may follow each other without end."""
        now = trio.current_time()
        patient_until = now + PATIENCE_SECONDS
        while self._free_until <= now < (quiet_at := self._pushed_at() + QUIET_SECONDS):
            await trio.sleep_until(min(quiet_at, patient_until))
            now = trio.current_time()
            if now >= patient_until:
                self._free_until = now + PATIENCE_SECONDS

    async def _caller(self, call: Call) -> Caller:
        try:
            caller = await self._authenticate(call)
        except AuthenticationError as error:
            self._counts["authentication"] += 1
            raise self._refusal(call, Status.UNAUTHENTICATED, error.reason, error) from None
        except AuthenticatorUnavailable as error:
            self._counts["authentication"] += 1
            raise self._refusal(call, Status.UNAVAILABLE, "unavailable", error) from None
        if caller is None:
            self._counts["authentication"] += 1
            missing = AuthenticationError("no_evidence", "certificates are for callers that prove who they are")
            self._denials.note(call.peer.address, NOBODY, missing.reason, str(missing))
            raise self._refusal(call, Status.UNAUTHENTICATED, missing.reason, missing)
        return caller

    async def _signed(self, call: Call, request: SigningRequest) -> IstioCertificateResponse:
        try:
            with trio.fail_after(SIGN_SECONDS):
                signed = await self._signer.sign(request)
        except SigningError as error:
            self._sign_errors["signer"] += 1
            raise self._refusal(call, Status.UNAVAILABLE, "signer", error) from None
        except trio.TooSlowError:
            self._sign_errors["timeout"] += 1
            late = SigningError(f"the signer has not answered within {SIGN_SECONDS:g} s")
            raise self._refusal(call, Status.UNAVAILABLE, "timeout", late) from None
        return IstioCertificateResponse(cert_chain=answered_chain(signed.chain, self._roots()))

    def _refusal(self, call: Call, status: Status, reason: str, error: Exception) -> GRPCError:
        """The status for a caller, written to the log."""
        peer = call.peer.address
        suppressed = self._log.admit((host_of(peer), reason), trio.current_time())
        if suppressed is not None:
            more = {"suppressed": suppressed} if suppressed else {}
            text = str(error)[:MAX_TEXT]
            log.warning("certificate refused", peer=peer, status=status.name, code=reason, reason=text, **more)
        return GRPCError(status, str(error))


_STATUS = {
    "csr_identity": Status.PERMISSION_DENIED,
    "csr_impersonation": Status.PERMISSION_DENIED,
    "csr_rate": Status.RESOURCE_EXHAUSTED,
}


def answered_chain(chain: bytes, roots: Sequence[bytes]) -> list[str]:
    """The answer that agents expect: leaf, intermediates, and last the roots, those of the mesh as one text.

    Agents trust the last element, so it holds all roots while one is replaced by another, the signer's own first.
    """
    leaf, end, rest = chain.decode().partition(_END)
    return [leaf + end + "\n", *_following(rest.removeprefix("\n"), tuple(roots))]


@lru_cache(maxsize=8)
def _following(rest: str, roots: tuple[bytes, ...]) -> tuple[str, ...]:
    """The certificates behind a leaf: those of one signer are the same in all answers."""
    signed = _CERTIFICATE.findall(rest)
    known = tuple(text for root in roots for text in _CERTIFICATE.findall(root.decode()))
    own = [text for text in signed if text in known]
    return (*[text for text in signed if text not in own], *["".join(dict.fromkeys([*own, *known]))] * bool(known))


def _read(message: bytes, lifetime: timedelta) -> _Request:
    """Decode an ``IstioCertificateRequest``; ``lifetime`` is for those that name none. Raises SigningRequestError."""
    # By hand, as the generated class takes a message that is cut off for a whole one, and a CSR would be half there.
    csr, seconds, metadata = "", 0, dict[str, str]()
    try:
        for number, wire_type, start, end in fields(message):
            match number, wire_type:
                case 1, _ if wire_type == LEN:
                    csr = message[start:end].decode()
                case 3, _ if wire_type == VARINT:
                    seconds = read_varint(message, start)[0]
                case 4, _ if wire_type == LEN:
                    metadata |= _texts(message[start:end])
    except (WireError, UnicodeDecodeError):
        raise SigningRequestError("csr_form", "the request is not an IstioCertificateRequest") from None
    if 0 < seconds < 2**63:  # an int64: what is larger is negative
        lifetime = timedelta(seconds=min(seconds, LONGEST_LIFETIME.total_seconds()))
    _check_metadata(metadata)
    return _Request(read_request(csr), lifetime)


def _texts(struct: bytes) -> dict[str, str]:
    """The texts at the top of an encoded ``google.protobuf.Struct``. Raises WireError, UnicodeDecodeError."""
    found = {}
    for number, wire_type, start, end in fields(struct):
        if (number, wire_type) == (1, LEN):
            entry = {n: struct[start + a : start + b] for n, w, a, b in fields(struct[start:end]) if w == LEN}
            value = entry.get(2, b"")
            texts = [value[a:b] for n, w, a, b in fields(value) if (n, w) == (3, LEN)]
            found[entry.get(1, b"").decode()] = texts[-1].decode() if texts else ""
    return found


def _check_metadata(metadata: Mapping[str, str]) -> None:
    if impersonated := metadata.get("ImpersonatedIdentity"):
        text = f"a caller may not have a certificate for another identity ({impersonated[:MAX_TEXT]!r})"
        raise SigningRequestError("csr_impersonation", text)
    if signer := metadata.get("CertSigner"):
        text = f"there is no signer {signer[:MAX_TEXT]!r} here; leave metadata CertSigner out"
        raise SigningRequestError("csr_signer", text)
