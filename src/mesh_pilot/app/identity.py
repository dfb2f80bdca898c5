"""Identity, assembled: the CA, the roots that workloads trust, who signs, and who is believed to be whom.

identities = await open_identities(settings, world, addresses)
xds = XdsServer(..., authenticate=identities.authenticate)
await serve([..., identities.certificates], ...)
nursery.start_soon(identities.run)

Why it is one object: the parts need each other in a circle. The CA signs the server's certificate, whose roots are what
callers are verified by; callers are believed by trust domains that the mesh config names, which is read by sources that
connect with that certificate. `open_identities` builds them in the one order that works, with functions in place of
values that come later; afterwards nothing but the files and the mesh config changes them. Alternatives that lose: a
registry of parts that look each other up, as the order would be a matter of luck; two phases, as each part would have a
state in which it is not usable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import structlog
import trio

from mesh_pilot.app import known_ca
from mesh_pilot.app.config_callers import ConfigCallers
from mesh_pilot.app.settings import Settings, StartError
from mesh_pilot.identity.authenticators.authentication import NOBODY, Authentication, admission
from mesh_pilot.identity.authenticators.client_certificate import ClientCertificate, read_certificate
from mesh_pilot.identity.authenticators.join_token import JoinToken
from mesh_pilot.identity.authenticators.token_issuers import TokenIssuerError
from mesh_pilot.identity.authenticators.xfcc import ForwardedCertificate
from mesh_pilot.identity.authority.authority import Authority
from mesh_pilot.identity.authority.folder import FolderStore
from mesh_pilot.identity.authority.material import AuthorityError
from mesh_pilot.identity.authority.revocation import Revocations
from mesh_pilot.identity.authority.revoked_identities import RevokedIdentities, read_identities
from mesh_pilot.identity.authority.store import MaterialStore, StoreError
from mesh_pilot.identity.certificates.secrets import Issuer
from mesh_pilot.identity.certificates.server_certificate import ServerCertificate, default_names
from mesh_pilot.identity.certificates.service import CertificateService
from mesh_pilot.identity.signers.signing import AuditedSigner, SignedPeriods, Signer, SigningError
from mesh_pilot.identity.tokens.join_tokens import JoinTokens
from mesh_pilot.identity.trust.bundles import TrustStore
from mesh_pilot.identity.trust.callers import (
    AuthenticationError,
    Authenticator,
    Caller,
    Credentials,
    TrustDomains,
    TrustDomainsNow,
    host_of,
)
from mesh_pilot.identity.trust.federation import Federation, fetching
from mesh_pilot.identity.trust.validity import ValidityPeriod, ValidityWatch
from mesh_pilot.kubernetes.identity.foreign_tokens import foreign_token_authenticators
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.spiffe import parse_identity
from mesh_pilot.net.rpc import (
    CertificateFiles,
    Peer,
    ServerStream,
    TlsSource,
    server_tls,
    server_tls_in_memory,
)
from mesh_pilot.net.rpc.rate_limits import LogLimiter
from mesh_pilot.sources.acme.source import AcmeSource
from mesh_pilot.sources.base.contract import SourceError
from mesh_pilot.sources.gateway_hosts.source import GatewayHosts
from mesh_pilot.sources.jwks import KeySource
from mesh_pilot.sources.wasm.source import ModuleSource
from mesh_pilot.world import World

if TYPE_CHECKING:
    from mesh_pilot.identity.signers.remote import RemoteSigner

log = structlog.get_logger(scope="security")

SIGNER_ROOTS = "signer-roots.pem"
"""The file in the state folder with the roots of a CA elsewhere."""

RENEWED_WITHIN = timedelta(seconds=10)
"""The time in which proxies get new certificates when another CA certificate signs."""

NOBODY_RATE, NOBODY_BURST = 2.0, 20.0
"""Log lines about proxies that nothing vouches for, one each, per second and at once: a fleet without certificates."""


@attrs.frozen(eq=False)
class Identities:
    """The parts that know who is who, over one World."""

    settings: Settings
    world: World
    trust: TrustStore
    """The roots that workloads trust."""
    remote: RemoteSigner | None
    """The signer; None if that is our own CA."""
    issuer: Issuer
    """Keeps the certificates of proxies whose keys are made here."""
    authentication: Authentication
    certificates: CertificateService
    """Signs the certificates of workloads that keep their keys."""
    revocations: Revocations
    revoked: RevokedIdentities
    authority: Authority | None
    """The built-in CA; None if one elsewhere signs."""
    store: MaterialStore | None
    """The files of the CA; None if its root is for this run."""
    server: ServerCertificate | None
    """The certificate of the TLS port; None if it is in files."""
    webhook_server: ServerCertificate | None
    """That of the webhooks; None if there are none."""
    periods: SignedPeriods
    """The lives of the certificates that were signed."""
    signer_files: CertificateFiles | None
    """The files for TLS with the CA elsewhere."""
    validity: ValidityWatch = attrs.field(init=False)
    """Looks at all of these by the clock."""
    _logged: LogLimiter = attrs.field(
        factory=lambda: LogLimiter(seconds=math.inf, rate=NOBODY_RATE, burst=NOBODY_BURST)
    )

    @validity.default
    def _watched(self) -> ValidityWatch:
        given = {
            "the certificate of --tls-cert": self.settings.tls,
            "the certificate of --api-tls-cert": self.settings.access.tls,
            "the clientCertificate of --ca-signer": self.signer_files,
        }
        files = {name: each.certificate for name, each in given.items() if each is not None and each.certificate}
        return ValidityWatch(self._validities, _now, files=files)

    def _validities(self) -> dict[str, ValidityPeriod]:
        """The lives of all that is shown, and signed with."""
        servers = {"this server's certificate": self.server, "that of the webhooks": self.webhook_server}
        shown = {name: each.validity for name, each in servers.items() if each is not None}
        return {**(self.authority.validities() if self.authority is not None else {}), **shown}

    def revised(self, changed: Collection[tuple[str, ...]]) -> None:
        """A revision of the World: the MeshConfig may tell clients another address of this server."""
        if self.server is not None and ("mesh",) in changed:
            self.server.follow_names()

    async def run(self) -> None:
        """Keep everything in force: follow the CA's files, and renew certificates before they end."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.validity.run)
            if self.remote is not None:
                nursery.start_soon(self.remote.run)
            if self.authority is not None and self.store is not None:
                nursery.start_soon(self.authority.run, self.store)
            elif self.store is not None:
                nursery.start_soon(self.revoked.follow, self.store, self.revocations.look)
            for server in (self.server, self.webhook_server):
                if server is not None:
                    nursery.start_soon(server.run)
            nursery.start_soon(self.issuer.run)

    def server_tls(self) -> TlsSource:
        """TLS for the secure port: clients may show a certificate that leads to our roots. Raises TlsError."""
        files = self.settings.tls or CertificateFiles()
        if self.server is None:
            return server_tls(files, roots=self._roots, require_client_certificate=False)
        return server_tls_in_memory(
            self.server.shown, trusted=files.trusted, roots=self._roots, require_client_certificate=False
        )

    def _roots(self) -> bytes:
        return b"".join(self.trust.own().roots)

    async def authenticate(self, call: ServerStream[Any, Any]) -> Callable[[Proxy], Proxy]:
        """Find out who makes a call; the result gives a proxy the identity that this proves.

        Raises AuthenticationError and AuthenticatorUnavailable; the result raises AuthenticationError.
        """
        caller = await caller_of(self.authentication, call)
        return partial(self._admit, caller, call.peer)

    def is_revoked(self, peer: Peer) -> bool:
        """True if a connection's certificate is revoked, or cannot be read, or an identity that it has proven is."""
        try:
            if peer.certificate is not None and self.revocations.is_revoked(read_certificate(peer.certificate)):
                return True
        except AuthenticationError:
            return True
        return any(
            self.revoked.until(each)
            for each in map(parse_identity, (*peer.proven, *peer.spiffe_ids))
            if each is not None
        )

    def config_callers(self) -> ConfigCallers:
        """The admission of those that read and write configuration over MCP and xDS."""
        return ConfigCallers(
            partial(caller_of, self.authentication),
            lambda: self.world.mesh.peek(()),
            serve_config=self.settings.serve_config is True,
        )

    def _admit(self, caller: Caller | None, peer: Peer, proxy: Proxy) -> Proxy:
        address = peer.address
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
        if caller is None and (local := parse_identity(found.identity)) is not None:
            self.authentication.check_revoked(local, address, NOBODY)
            peer.proven.add(found.identity)
        if not found.identity:
            self._log_nobody(proxy, address, found.reason)
        return attrs.evolve(proxy, identity=found.identity)

    def _log_nobody(self, proxy: Proxy, address: str, reason: str) -> None:
        if self._logged.admit((host_of(address), proxy.id), trio.current_time()) is not None:
            log.warning("a proxy without identity gets no certificates", proxy=proxy.id, peer=address, reason=reason)


async def open_identities(settings: Settings, world: World, listening: Iterable[str]) -> Identities:
    """The parts, built from the settings; ``listening``: addresses of the TLS port. Raises StartError."""
    trust = TrustStore()
    store = _store(settings)
    lifetime = settings.authority.workload_cert_ttl
    domains = partial(trust_domains, world)
    foreign_tokens = _foreign_tokens(settings, domains)  # before a CA is made: a mistake here ends the start
    authority, remote, signer_files, server, webhook_server = None, None, None, None, None
    revoked = RevokedIdentities(_now)
    try:
        if settings.ca_signer is not None:
            from mesh_pilot.app.signers import named_ca
            from mesh_pilot.identity.signers.remote import RemoteSigner

            named = named_ca(settings.ca_signer)
            kept = settings.state.folder / SIGNER_ROOTS if settings.state is not None else None
            longest = settings.authority.max_workload_cert_ttl
            remote = RemoteSigner(named.ca, trust, _now, roots_file=named.roots, kept=kept, longest=longest)
            signer_files = named.files
            unaudited: Signer = remote
            if store is not None:
                revoked.untils = read_identities((await store.read()).files, store.place)
        elif store is None:
            unaudited = authority = Authority.ephemeral(
                now=_now, trust=trust, settings=settings.authority, files=settings.ca_files
            )
        else:
            await known_ca.refuse_lost(settings, store)
            unaudited = authority = await Authority.open(store, trust, now=_now, settings=settings.authority)
            known_ca.remember(settings, authority)
        signer = AuditedSigner(unaudited)
        if authority is not None:
            revoked = authority.revoked
        if settings.tls is None or settings.tls.certificate is None:
            addresses = tuple(listening)
            server = ServerCertificate(signer, lambda: server_names(settings, world, addresses), lifetime, _now)
            await server.renew()
        if settings.webhooks is not None:
            webhook_server = ServerCertificate(signer, lambda: webhook_names(settings), lifetime, _now)
            await webhook_server.renew()
    except (AuthorityError, StoreError) as error:
        raise StartError(str(error)) from error
    except SigningError as error:
        advice = "start again once it signs, or name a certificate with --tls-cert, which needs no signer"
        raise StartError(f"no certificate for this server's TLS port: {error}; {advice}") from error
    issuer = Issuer(signer, trust, now=_now, lifetime=lifetime, failures=world.failed)
    if authority is not None:
        authority.on_new_issuer(partial(issuer.renew_all, min(RENEWED_WITHIN, lifetime / 4)))
        for each in (server, webhook_server):
            if each is not None:
                authority.on_new_chain(each.renew_soon)
    revocations = Revocations(
        lambda: (*(authority.material.crls_pem if authority else ()), *trust.own().crls), lambda: revoked.untils
    )
    trust.on_change(revocations.look)
    if authority is not None:
        authority.on_change(revocations.look)
    gateways = settings.callers.trusted_gateways
    authentication = Authentication(
        [
            ForwardedCertificate(
                gateways, domains, ClientCertificate(domains, _now, revocations.is_revoked), revoked.until
            ),
            ClientCertificate(domains, _now, revocations.is_revoked, gateways=gateways.identities),
            JoinToken(_join_tokens(settings), domains),
            *foreign_tokens,
        ],
        revoked_until=revoked.until,
    )
    certificates = CertificateService(
        partial(caller_of, authentication),
        signer,
        roots=lambda: trust.own().roots,
        trust_domains=domains,
        denials=authentication.denials,
        lifetime=lifetime,
        rate=settings.callers.certificates_per_second,
    )
    return Identities(
        settings,
        world,
        trust,
        remote,
        issuer,
        authentication,
        certificates,
        revocations,
        revoked,
        authority,
        store,
        server,
        webhook_server,
        signer.periods,
        signer_files,
    )


def federation_of(settings: Settings, world: World, trust: TrustStore) -> Federation:
    """The source of foreign roots, as the MeshConfig names them."""

    def others_synced() -> bool:
        followers = {Federation.name, KeySource.name, GatewayHosts.name, ModuleSource.name, AcmeSource.name}
        return set(world.unsynced()) <= followers

    return Federation(trust, lambda: world.mesh.peek(()), others_synced, fetch=fetching(settings.trust_bundle_ca))


def server_names(settings: Settings, world: World, listening: Iterable[str]) -> tuple[str, ...]:
    """The names in the certificate of the TLS port: those that are set, else those that clients know it by now."""
    if settings.tls_dns_names:
        return settings.tls_dns_names
    config = world.mesh.peek(()).default_config
    told = config.discovery_address if config is not None else ""
    return default_names(settings.namespace, listening, revision=_revision(settings), discovery_address=told)


def webhook_names(settings: Settings) -> tuple[str, ...]:
    """The names in the certificate of the webhooks: those by which an API server calls a Service."""
    own = settings.webhooks
    if own is None or own.dns_names:
        return own.dns_names if own is not None else ()
    return default_names(settings.namespace, [own.address], revision=_revision(settings))


def _revision(settings: Settings) -> str:
    return settings.webhooks.revision if settings.webhooks is not None else ""


def trust_domains(world: World) -> TrustDomains:
    """The trust domains as MeshConfig has them now."""
    mesh = world.mesh.peek(())
    return TrustDomains(mesh.trust_domain, frozenset(mesh.trust_domain_aliases))


async def caller_of(authentication: Authentication, call: ServerStream[Any, Any]) -> Caller | None:
    """See `Authentication.caller`. The connection is known by the identity from now on, and ends if that is revoked."""
    caller = await authentication.caller(credentials_of(call))
    if caller is not None:
        call.peer.proven.add(str(caller.identity))
    return caller


def credentials_of(call: ServerStream[Any, Any]) -> Credentials:
    """The evidence that a call shows."""
    headers: dict[str, list[str]] = {}
    for name, value in call.metadata.items():
        if isinstance(value, str):
            headers.setdefault(name, []).append(value)
    return Credentials(call.peer.address, call.peer.tls, call.peer.certificate, headers)


def _store(settings: Settings) -> MaterialStore | None:
    """The store of the CA; None for a root for this run, or where somebody else signs."""
    if settings.ca_store is not None:
        from mesh_pilot.consul.identity.ca_store import ConsulStore

        return ConsulStore(settings.ca_store)
    return FolderStore(settings.ca_dir) if settings.ca_dir is not None else None


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
