"""The identity of the workload: obtained once, kept on disk, renewed before it ends.

Three things meet here, which come at different times: the certificate (of a ``CertificateSource``), the roots that came
with it, and what control planes say of whom to trust. Envoy is shown all that is there; a secret that is missing holds
Envoy back, one that is wrong breaks its connections. So roots are only ever replaced by ones that can be loaded, and
the control plane's secret, which keeps foreign roots to their trust domains, gives way to the certificate's own roots
while it does not know them: after a change of CA, peers would refuse us otherwise.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import structlog
import trio

from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.identity.certificate_files import CertificateWatcher
from mesh_pilot.agent.identity.credentials import TokenError, is_reusable, serves_secrets, token_metadata
from mesh_pilot.agent.identity.external_secrets import ExternalSecrets
from mesh_pilot.agent.identity.folder import CertificateFolder
from mesh_pilot.agent.identity.material import IdentityMaterial, certificates_in, joined_roots
from mesh_pilot.agent.identity.renewal import Proof
from mesh_pilot.agent.identity.rotator import CertificateRotator
from mesh_pilot.agent.identity.secret_service import SecretService
from mesh_pilot.agent.identity.secret_stream import Secrets
from mesh_pilot.agent.identity.secrets import (
    AgentSecret,
    can_be_trusted,
    certificate_secret,
    has_roots,
    is_roots_secret,
    own_roots,
    revocation_lists,
    roots_secret_of,
)
from mesh_pilot.agent.identity.source import CertificateSource
from mesh_pilot.agent.settings import AgentError, AgentFolders, CredentialSettings, PlaneSettings
from mesh_pilot.identity.trust.private_files import replace
from mesh_pilot.model.resource import TRUST_SECRET
from mesh_pilot.model.spiffe import SCHEME
from mesh_pilot.net.rpc import (
    CertificatePem,
    Servable,
    TlsError,
    TlsSource,
    client_tls_in_memory,
    http_client_tls_in_memory,
    server_tls_in_memory,
)

__all__ = ["IdentityMaterial", "IdentityStatistics", "WorkloadIdentity"]

log = structlog.get_logger(scope="agent.identity")

FOLDER = "identity"
ROOTS_SECRET, BUNDLE = "roots-secret.bin", "bundle.pem"
"""Files in the folder with what control planes said of whom to trust."""

WARNED_AT = 0.85
"""The part of its life after which a certificate that was not renewed is warned of."""
LONG = timedelta(hours=1)
LOOK_SECONDS = 30.0


@attrs.frozen
class IdentityStatistics:
    """How the identity is doing."""

    identity: str
    """SPIFFE id; empty without a certificate."""
    ends: float
    """End of the certificate in Unix time; 0 without one."""
    is_kept: bool
    """False while the certificate in force is not on disk though it should be."""
    renewals: int
    """Certificates since the start."""
    failures: int
    last_failure: str
    """Empty once it has succeeded again."""
    secrets_sent: int
    secrets_accepted: int
    secrets_refused: int
    """Secrets that Envoy has refused."""


class WorkloadIdentity:
    """Keeps ``material`` in force. ``run`` needs no control plane to be up while a certificate on disk is in force."""

    def __init__(
        self,
        credentials: CredentialSettings,
        planes: PlaneSettings,
        folders: AgentFolders,
        *,
        node_id: str = "",
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``node_id`` is for an external SDS server. Raises AgentError for settings that cannot be used."""
        self.material: Observable[IdentityMaterial | None] = Observable(None)
        self._credentials = credentials
        self._planes = planes
        self._folder = CertificateFolder(folders.state / FOLDER)
        self._wall = wall
        self._node_id = node_id
        self._secrets: Observable[Secrets] = Observable({})
        self._service = SecretService(self._secrets)
        self._roots_secret: AgentSecret | None = None
        self._bundle = b""
        self._to_keep: Observable[Mapping[str, bytes]] = Observable({})
        try:
            self._own_tls, self._token_tls = (self._tls_source(shown) for shown in (self._shown, lambda: None))
        except TlsError as error:
            raise AgentError(f"{error}; it holds the roots of the control plane, of: mesh-pilot ca root") from None
        self._source = self._make_source()
        self.settled = self._source.settled

    def __repr__(self) -> str:
        return f"<WorkloadIdentity {self.statistics()}>"

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Obtain and renew, forever; started once what is on disk was read."""
        if serves_secrets(self._credentials):
            await trio.to_thread.run_sync(self._load_bundle)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.material.follow, self._show)
            nursery.start_soon(self._warn_of_end)
            nursery.start_soon(self._keep_bundle)
            await nursery.start(self._source.run)
            self._show()
            task_status.started()
            await trio.sleep_forever()

    def tls(self) -> TlsSource | None:
        """TLS towards the control plane, with our certificate once there is one; None for plaintext."""
        return self._own_tls

    def server_tls(self) -> TlsSource:
        """TLS as a server that admits workloads of the mesh: with a certificate of the same roots, not revoked.

        Roots and certificate may change. Raises TlsError while there is no certificate.
        """

        def shown() -> CertificatePem:
            held = self.material.value
            if held is None:
                raise TlsError("there is no certificate yet")
            return CertificatePem(certificate=held.chain, key=held.key)

        return server_tls_in_memory(shown, roots=self._client_roots)

    def http_client_tls(self, trusted: Path | None) -> ssl.SSLContext:
        """TLS as a client of HTTP outside the mesh, which shows our certificate if it is asked for one.

        ``trusted``: a file of roots; None: the system's. Those of the mesh are trusted, too. Raises TlsError.
        """

        def shown() -> CertificatePem | None:
            held = self.material.value
            return CertificatePem(certificate=held.chain, key=held.key) if held is not None else None

        return http_client_tls_in_memory(shown, trusted=trusted, roots=self._roots)

    def call_metadata(self) -> Mapping[str, str]:
        """gRPC metadata that prove who calls while there is no certificate: a token.

        A join token is not shown: each time would be a use. It is for having a certificate signed.
        """
        if self._shown() is not None:
            return {}
        try:
            metadata = token_metadata(self._credentials)
        except TokenError:
            return {}  # said by the rotator
        return metadata if is_reusable(metadata) else {}

    def secret_service(self) -> Servable:
        """Envoy's SecretDiscoveryService (SotW and Delta) with ``default`` and ``ROOTCA``."""
        return self._service

    def set_trust_bundle(self, roots: tuple[str, ...]) -> None:
        """Trust the roots that the control plane distributes (PCDS), too, each in PEM; none is not a news."""
        bundle = joined_roots(*(root.encode() for root in roots))
        if bundle and bundle != self._bundle:
            if not can_be_trusted(bundle):
                self._refuse("the control plane's trust bundle cannot be used")
                return
            had, self._bundle = self._bundle, bundle
            self._roots_changed({BUNDLE: bundle}, others=bool(had))

    def set_root_secret(self, body: bytes | None) -> None:
        """Give Envoy this ``Secret`` of the control plane as ``ROOTCA``: it has borders of trust domains, and CRLs."""
        if body is None or (self._roots_secret is not None and self._roots_secret.body == body):
            return
        if not is_roots_secret(body):
            self._refuse(f"the control plane's secret {TRUST_SECRET} cannot be used")
            return
        had, self._roots_secret = self._roots_secret, AgentSecret(TRUST_SECRET, body)
        self._roots_changed({ROOTS_SECRET: body}, others=had is not None)

    def statistics(self) -> IdentityStatistics:
        held, source, counts = self.material.value, self._source, self._service.counts
        return IdentityStatistics(
            identity=held.identity if held else "",
            ends=held.ends.timestamp() if held else 0.0,
            is_kept=source.is_kept,
            renewals=source.renewals,
            failures=source.failures,
            last_failure=source.last_failure,
            secrets_sent=counts.sent,
            secrets_accepted=counts.accepted,
            secrets_refused=counts.refused,
        )

    def _make_source(self) -> CertificateSource:
        given = self._credentials
        if given.sds_socket is not None:
            return ExternalSecrets(given.sds_socket, self._node_id, self.material)
        if given.certificate is not None:
            if given.key is None or given.roots is None:
                raise AgentError("a certificate needs its key and the mesh's roots: give all three files")
            return CertificateWatcher(given.certificate, given.key, given.roots, self.material)
        if not serves_secrets(given) and not (self._folder.path / "cert-chain.pem").exists():
            return CertificateSource()
        return CertificateRotator(given, self._planes, self._folder, self.material, self._tls_for, wall=self._wall)

    def _tls_source(self, shown: Callable[[], CertificatePem | None]) -> TlsSource | None:
        if self._planes.plaintext:
            return None
        return client_tls_in_memory(shown, trusted=self._planes.ca, roots=self._roots)

    def _tls_for(self, proof: Proof) -> TlsSource | None:
        return self._own_tls if proof is Proof.CERTIFICATE else self._token_tls

    def _shown(self) -> CertificatePem | None:
        """The certificate that proves who calls; None while another proof is better."""
        held = self.material.value
        if held is None or self._source.proof is not Proof.CERTIFICATE:
            return None
        return CertificatePem(certificate=held.chain, key=held.key)

    def _roots(self) -> bytes:
        """The roots of the mesh, by which control planes are known besides the file's."""
        held = self.material.value
        if held is None:
            return b""
        known = self._roots_secret
        trust_domain = held.identity.removeprefix(SCHEME).partition("/")[0]
        return joined_roots(held.roots, own_roots(known.body, trust_domain) if known is not None else b"")

    def _client_roots(self) -> bytes:
        """The roots of the mesh's workloads, and what is revoked under them."""
        roots, known = self._roots(), self._roots_secret
        return roots + revocation_lists(known.body) if known is not None else roots

    def _refuse(self, reason: str) -> None:
        log.warning("roots refused", reason=reason, advice="the previous roots are kept")

    def _roots_changed(self, files: Mapping[str, bytes], *, others: bool) -> None:
        """Show roots and keep them; ``others`` were there before, so perhaps another CA signs from now on."""
        self._to_keep.set({**self._to_keep.value, **files})
        self._show()
        if others:
            self._source.hasten()

    def _show(self, _: object = None) -> None:
        """Tell Envoy what there is."""
        held = self.material.value
        shown: dict[str, AgentSecret] = {}
        if held is not None:
            own = certificate_secret(held)
            shown[own.name] = own
        if (roots := self._shown_roots(held)) is not None:
            shown[roots.name] = roots
        self._secrets.set(shown)

    def _shown_roots(self, held: IdentityMaterial | None) -> AgentSecret | None:
        """The secret ``ROOTCA``: the control plane's own, unless it is older than the certificate."""
        own = held.roots if held is not None else b""
        if self._roots_secret is None:
            known = joined_roots(self._bundle, own)
        elif held is None or has_roots(self._roots_secret.body, own):
            return self._roots_secret
        else:
            known = joined_roots(own)  # without foreign ones: what kept them to their trust domains is not there yet
        return roots_secret_of(known) if known else None

    async def _warn_of_end(self) -> None:
        async for held in self.material.changes():
            if held is not None:
                await self._watch_end(held)

    async def _watch_end(self, held: IdentityMaterial) -> None:
        """Say that a certificate is about to end, and that it ended, unless there is another."""
        said = 0
        # Short ones are signed as from a minute ago: much of their life is over at the start.
        now = datetime.fromtimestamp(self._wall(), UTC)
        begins = held.begins if held.lifetime > LONG else max(held.begins, min(now, held.ends))
        while self.material.value is held and said < 2:
            now = datetime.fromtimestamp(self._wall(), UTC)
            if now >= held.ends:
                said = 2
                log.error(
                    "certificate ended",
                    identity=held.identity,
                    ended=f"{held.ends:%F %T}",
                    advice="peers refuse it; see why it is not renewed",
                )
            elif now >= begins + (held.ends - begins) * WARNED_AT and not said:
                said = 1
                log.warning(
                    "certificate ends soon",
                    identity=held.identity,
                    ends=f"{held.ends:%F %T}",
                    advice="see why it is not renewed",
                )
            with trio.move_on_after(min(LOOK_SECONDS, held.lifetime.total_seconds() / 20)):
                await self.material.wait_for(lambda value: value is not held)

    def _load_bundle(self) -> None:
        """Read what was kept. What cannot be read is asked for again; the rotator says what is wrong."""
        with contextlib.suppress(OSError):
            body = (self._folder.path / ROOTS_SECRET).read_bytes()
            if is_roots_secret(body):
                self._roots_secret = AgentSecret(TRUST_SECRET, body)
        with contextlib.suppress(OSError):
            self._bundle = b"".join(certificates_in((self._folder.path / BUNDLE).read_bytes()))

    async def _keep_bundle(self) -> None:
        """Write what control planes say of whom to trust, so that a restart without any has it."""
        async for files in self._to_keep.changes():
            for name, content in files.items():
                try:
                    await trio.to_thread.run_sync(self._folder.create)
                    await trio.to_thread.run_sync(replace, self._folder.path / name, content)
                except OSError as error:
                    log.warning(
                        "roots not kept",
                        reason=f"{error.filename or self._folder.path}: {error.strerror}",
                        advice="they are in force; a restart without a control plane has older ones",
                    )
