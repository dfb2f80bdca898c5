"""Identity, assembled: the CA, the roots that workloads trust, who signs, and who is believed to be whom.

identities = open_identities(settings, world)
xds = XdsServer(..., authenticate=identities.authenticate)
await serve([..., identities.certificates], ...)
nursery.start_soon(identities.run)
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import attrs
import structlog
import trio

from mesh_pilot.app.settings import Settings, StartError
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.rpc import GRPCError, ServerStream, Status
from mesh_pilot.rpc.rate_limits import LogLimiter
from mesh_pilot.security.authentication import NOBODY, Authentication, admission
from mesh_pilot.security.authenticators.client_certificate import ClientCertificate
from mesh_pilot.security.authenticators.foreign_tokens import foreign_token_authenticators
from mesh_pilot.security.authenticators.join_token import JoinToken
from mesh_pilot.security.authenticators.token_issuers import TokenIssuerError
from mesh_pilot.security.authenticators.xfcc import ForwardedCertificate
from mesh_pilot.security.ca import AuthorityError, CertificateAuthority
from mesh_pilot.security.callers import (
    AuthenticationError,
    Authenticator,
    AuthenticatorUnavailable,
    Caller,
    Credentials,
    TrustDomains,
    TrustDomainsNow,
    host_of,
    is_local,
)
from mesh_pilot.security.certificate_service import CertificateService
from mesh_pilot.security.denials import MAX_TEXT
from mesh_pilot.security.join_tokens import JoinTokens
from mesh_pilot.security.secrets import Issuer
from mesh_pilot.security.signers.local import LocalSigner
from mesh_pilot.security.trust import OWN_CA, Bundle, TrustStore
from mesh_pilot.sources.base import SourceError
from mesh_pilot.world import World

log = structlog.get_logger(scope="security")

AUTHORITY_NAME = "mesh-pilot"
"""The name of a root certificate that this program makes."""


@attrs.frozen(eq=False)
class Identities:
    """The parts that know who is who, over one World."""

    settings: Settings
    world: World
    trust: TrustStore
    """The roots that workloads trust."""
    issuer: Issuer
    """Keeps the certificates of proxies whose keys are made here."""
    authentication: Authentication
    certificates: CertificateService
    """Signs the certificates of workloads that keep their keys."""
    _logged: LogLimiter = attrs.field(factory=LogLimiter)

    async def run(self) -> None:
        """Keep everything in force: give proxies new certificates before their old ones end."""
        await self.issuer.run()

    async def authenticate(self, call: ServerStream[Any, Any]) -> Callable[[Proxy], Proxy]:
        """Find out who makes a call; the result gives a proxy the identity that this proves.

        Raises AuthenticationError and AuthenticatorUnavailable; the result raises AuthenticationError.
        """
        caller = await self.authentication.caller(credentials_of(call))
        return partial(self._admit, caller, call.peer.address)

    async def may_read(self, call: ServerStream[Any, Any]) -> bool:
        """True if configuration is served to the caller: see ``Settings.serve_config``.

        Raises GRPCError if nobody can tell now who calls.
        """
        if self.settings.serve_config:
            return True
        try:
            caller = await self.authentication.caller(credentials_of(call))
        except AuthenticationError as error:
            peer = call.peer.address
            if self._logged.admit((host_of(peer), error.reason), trio.current_time()) is not None:
                log.warning("configuration refused", peer=peer, code=error.reason, reason=str(error)[:MAX_TEXT])
            return False
        except AuthenticatorUnavailable as error:
            raise GRPCError(Status.UNAVAILABLE, str(error)) from None
        return caller is not None or is_local(call.peer.address)

    def _admit(self, caller: Caller | None, address: str, proxy: Proxy) -> Proxy:
        try:
            found = admission(
                proxy,
                caller,
                address,
                trust_local=self.settings.trust_local,
                trust_domain=trust_domains(self.world).own,
            )
        except AuthenticationError as error:
            vouching = caller.authenticator if caller else NOBODY
            self.authentication.denials.note(address, vouching, error.reason, str(error))
            raise
        if not found.identity:
            self._log_nobody(proxy, address, found.reason)
        return attrs.evolve(proxy, identity=found.identity)

    def _log_nobody(self, proxy: Proxy, address: str, reason: str) -> None:
        suppressed = self._logged.admit((host_of(address), proxy.id), trio.current_time())
        if suppressed is not None:
            log.warning(
                "no certificate of the mesh and no credentialName for this proxy: nothing vouches for who it is; "
                "let it connect to --secure-grpc-addr with a certificate or token of its own",
                proxy=proxy.id,
                peer=address,
                reason=reason,
                **({"suppressed": suppressed} if suppressed else {}),
            )


def open_identities(settings: Settings, world: World) -> Identities:
    """The parts, built from the settings. Raises StartError."""
    authority, trust = _authority(settings), TrustStore()
    trust.put(OWN_CA, Bundle((authority.root,)))
    signer = LocalSigner(authority, _now)
    issuer = Issuer(signer, trust, now=_now, failures=world.failed)
    domains = partial(trust_domains, world)
    gateways = settings.callers.trusted_gateways
    authentication = Authentication(
        [
            ForwardedCertificate(gateways, domains, ClientCertificate(domains, _now)),
            ClientCertificate(domains, _now, gateways=gateways.identities),
            JoinToken(_join_tokens(settings), domains),
            *_foreign_tokens(settings, domains),
        ]
    )
    certificates = CertificateService(
        lambda call: authentication.caller(credentials_of(call)),
        signer,
        roots=lambda: trust.own().roots,
        trust_domains=domains,
        denials=authentication.denials,
        rate=settings.callers.certificates_per_second,
    )
    return Identities(settings, world, trust, issuer, authentication, certificates)


def trust_domains(world: World) -> TrustDomains:
    """The trust domains as MeshConfig has them now."""
    mesh = world.mesh.peek(())
    return TrustDomains(mesh.trust_domain, frozenset(mesh.trust_domain_aliases))


def credentials_of(call: ServerStream[Any, Any]) -> Credentials:
    """The evidence that a call shows."""
    headers: dict[str, list[str]] = {}
    for name, value in call.metadata.items():
        if isinstance(value, str):
            headers.setdefault(name, []).append(value)
    return Credentials(call.peer.address, call.peer.tls, call.peer.certificate, headers)


def _authority(settings: Settings) -> CertificateAuthority:
    """The CA of the operator's folder, or one for as long as this process lives."""
    if settings.ca_dir is None:
        return CertificateAuthority.ephemeral(AUTHORITY_NAME, _now())
    try:
        return CertificateAuthority.open(settings.ca_dir, AUTHORITY_NAME, _now())
    except AuthorityError as error:
        raise StartError(str(error)) from error


def _join_tokens(settings: Settings) -> JoinTokens | None:
    folder = settings.join_tokens.within(settings.ca_dir)
    return None if folder is None else JoinTokens(folder, now=_now)


def _foreign_tokens(settings: Settings, known: TrustDomainsNow) -> tuple[Authenticator, ...]:
    try:
        return foreign_token_authenticators(settings.foreign_tokens, known)
    except (TokenIssuerError, SourceError) as error:
        raise StartError(str(error)) from error


def _now() -> datetime:
    return datetime.now(UTC)
