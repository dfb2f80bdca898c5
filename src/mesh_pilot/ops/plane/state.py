"""The parts of a running control plane that ``ops`` reads, and its readiness."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import attrs
import trio

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.envoy.catalog.failing import StandingFailure
from mesh_pilot.identity.authenticators.authentication import Authentication
from mesh_pilot.identity.authority.authority import Authority
from mesh_pilot.identity.certificates.secrets import Issuer
from mesh_pilot.identity.certificates.service import CertificateService
from mesh_pilot.identity.signers.signing import SignedPeriods
from mesh_pilot.identity.trust.bundles import TrustStore
from mesh_pilot.identity.trust.validity import ValidityWatch
from mesh_pilot.model.events import EventSender
from mesh_pilot.net.fetching.refreshing import THE_OTHERS, RefreshStatistics
from mesh_pilot.net.http.server import HttpServer
from mesh_pilot.net.rpc.server import Server
from mesh_pilot.ops.observers.changes import Changes
from mesh_pilot.ops.observers.first_seen import FirstSeen
from mesh_pilot.ops.observers.revision_memory import RevisionMemory
from mesh_pilot.replicas.election.base import Election
from mesh_pilot.replicas.registration.registrar import Registrar
from mesh_pilot.replicas.workers.questions import WorkerState
from mesh_pilot.safety.quarantine.controller import QuarantineController
from mesh_pilot.safety.rollout.controller import RolloutController
from mesh_pilot.safety.state.recorder import Recorder
from mesh_pilot.sources.base.contract import Sighted, Staleness
from mesh_pilot.sources.base.supervisor import Supervising, Supervisor
from mesh_pilot.sources.config_store.base import ConfigStore
from mesh_pilot.traffic.memory import MeshTraffic
from mesh_pilot.traffic.server import TrafficServer
from mesh_pilot.world import Reducer, World
from mesh_pilot.xds.ads.known_proxies import GoneProxy
from mesh_pilot.xds.ads.server import XdsServer
from mesh_pilot.xds.config_api.server import McpService

if TYPE_CHECKING:
    from mesh_pilot.explain.truth.facts import PlaneFacts
    from mesh_pilot.identity.signers.remote import RemoteSigner
    from mesh_pilot.kubernetes.status.writer import StatusWriter
    from mesh_pilot.kubernetes.webhooks.counts import WebhookState
    from mesh_pilot.ops.tracing.otlp import TraceExporter
    from mesh_pilot.replicas.workers.supervisor import WorkerSupervisor

BLIND_SECONDS = 30.0
"""The longest time that a plane with nothing to serve is not ready because a source may see nothing."""


@attrs.frozen
class CallersState:
    """The parts that know who is who, and who has certificates."""

    authentication: Authentication
    certificates: CertificateService
    issuer: Issuer
    authority: Authority | None
    """The built-in CA; None if one elsewhere signs."""
    validity: ValidityWatch
    """Knows which certificates of the plane are not valid by the clock of now."""
    periods: SignedPeriods
    """The lives of the certificates that were signed here."""


@attrs.define
class PlaneProgress:
    """How far the start and the end of a control plane have come. Both fields are mutable."""

    is_overdue: bool = False
    """True after ``--sync-timeout``: proxies are served although sources have not synced."""
    is_draining: bool = False


@attrs.frozen(kw_only=True, eq=False)
class PlaneState:
    """The parts of a control plane, which ``ops`` only reads. The lists of servers grow while it starts."""

    world: World
    reducer: Reducer
    catalog: WorldCatalog
    changes: Changes
    xds: XdsServer
    mcp: McpService
    """The World served as a source of MCP."""
    callers: CallersState
    trust: TrustStore
    """The roots that workloads trust."""
    election: Election
    """The replica that does what must be done once."""
    progress: PlaneProgress
    quarantine: QuarantineController | None = None
    """Quarantine; None if it is off."""
    _supervisors: Sequence[Supervisor] = ()
    signer: RemoteSigner | None = None
    """The CA elsewhere that signs certificates; None if mesh-pilot's CA does."""
    login_troubles: list[Callable[[], str]] = attrs.field(factory=list)
    """Each tells why the issuer of people's logins cannot be asked, empty if all is well: one a gate."""
    recorder: Recorder | None = None
    """The task that keeps the state; None if none is kept."""
    rpc_servers: list[Server] = attrs.field(factory=list)
    """The gRPC servers once they serve."""
    http_servers: list[HttpServer] = attrs.field(factory=list)
    """The servers of the web and metrics ports."""
    max_age_of: Callable[[str], float] = lambda _: math.inf
    """The age of a source's picture, in seconds, beyond which the plane is not ready."""
    started: float = attrs.field(factory=time.time)
    """When the process began, in seconds since the epoch."""
    boot: str = attrs.field(factory=lambda: secrets.token_hex(4))
    """Another one after each start."""
    first_seen: FirstSeen = attrs.field(factory=FirstSeen)
    """Since when things are wrong that do not say so themselves."""
    gone_before: dict[str, GoneProxy] = attrs.field(factory=dict)
    """The proxies of an earlier run that have not come back, by node id."""
    revisions: RevisionMemory = attrs.field(factory=RevisionMemory)
    """The latest revisions of this run."""
    looked_at: trio.Event = attrs.field(factory=trio.Event)
    """Set once somebody wants a page that monitoring does not."""
    kept: dict[type, object] = attrs.field(factory=dict)
    """Values that parts above keep of this plane, by their class: one of each."""

    rollouts: RolloutController | None = None
    """Rollouts; None with several workers."""
    traffic: MeshTraffic | None = None
    """The traffic that proxies count; None if that is off."""
    reports: TrafficServer | None = None
    """The server of their reports; None if that is off."""
    traces: TraceExporter | None = None
    """The sender of traces; None if there are none."""
    registrations: Registrar | None = None
    """The workloads that registered themselves; None in another worker than the first."""
    config_store: ConfigStore | None = None
    """The store of configuration that can be written; None if there is none, and in another worker than the first."""
    webhooks: WebhookState | None = None
    """The webhooks; None if they are off, and in another worker than the first."""
    status_writer: StatusWriter | None = None
    """The writer of status to objects in Kubernetes; None if none is written."""
    events: EventSender | None = None
    """The reducer's inbox, for orders; None in another worker than the first."""
    others: WorkerSupervisor | None = None
    """The other workers; None if there are none, or this is not the first."""

    @property
    def supervisors(self) -> list[Supervisor]:
        """The supervisors of all sources, also of those that came later."""
        found = [*self._supervisors]
        for supervisor in self._supervisors:
            if isinstance(supervisor.source, Supervising):
                found += supervisor.source.supervisors
        return found

    def other_states(self) -> Iterable[WorkerState]:
        """The latest states of the other workers."""
        return self.others.states().values() if self.others is not None else ()

    def not_ready(self) -> dict[str, str]:
        """Reasons against sending proxies here, by source (or ``server``); empty if it is ready."""
        if self.progress.is_draining:
            return {"server": "shutting down"}
        if unborn := self.unborn():
            return unborn
        waiting = ({} if self.progress.is_overdue else self.unsynced()) or self.too_old()
        if not waiting and not self.rpc_servers:
            return {"server": "about to serve"}
        return waiting or self._blind()

    def _blind(self) -> dict[str, str]:
        """Sources that see nothing, with the reason, while there is nothing at all to serve; for a while only, as that
        may be how it is meant."""
        found: dict[str, str] = {}
        for supervisor in self.supervisors:
            own = supervisor.source.statistics()
            if isinstance(own, Sighted) and own.blindness and own.blind_seconds < BLIND_SECONDS:
                found[supervisor.source.name] = own.blindness
        world = self.world.statistics() if found else None
        return found if world is not None and not world.services and not any(world.configs.values()) else {}

    def unborn(self) -> dict[str, str]:
        """Certificates of the CA that have not begun, with what to do: peers refuse what they have signed."""
        if self.callers.authority is None:
            return {}
        now = self.callers.validity.now()
        every = self.callers.authority.validities().items()
        unborn = [f"{name} {validity.fault(now)}" for name, validity in every if not validity.has_begun(now)]
        advice = "set this machine's clock; if it was ahead when the CA was made, make another (docs/certificates.md)"
        return {"ca": f"{'; '.join(unborn)}; {advice}"} if unborn else {}

    def unsynced(self) -> dict[str, str]:
        """Sources whose first full state is not in the World yet, with the reason."""
        reasons: dict[str, str] = {}
        missing = set(self.world.unsynced())
        for supervisor in self.supervisors:
            if supervisor.source.name in missing:
                own = supervisor.statistics()
                reasons[own.name] = own.waiting_for or "the first objects are being taken in"
        named = {name: reason for name, reason in reasons.items() if reason != THE_OTHERS}
        return named or reasons

    def waiting_for(self, source: str) -> str:
        """The reason why a source has not synced; empty if it has."""
        for supervisor in self.supervisors:
            if supervisor.source.name == source:
                own = supervisor.statistics()
                return own.waiting_for
        return ""

    def ages(self) -> dict[str, float]:
        """The seconds for which sources have not stood by what is in force of them; those that do are left out."""
        return self._ages(of_documents=True)

    def _ages(self, *, of_documents: bool) -> dict[str, float]:
        """``of_documents``: as old as the oldest of several documents that are fetched each for itself."""
        now = datetime.now(UTC)
        found = {source: (now - at).total_seconds() for source, at in self.reducer.intake.stale().items()}
        for supervisor in self.supervisors:
            own = supervisor.source.statistics()
            counts = of_documents or not isinstance(own, RefreshStatistics)
            if counts and isinstance(own, Staleness) and own.stale_seconds > 0:
                found.setdefault(supervisor.source.name, own.stale_seconds)
        return found

    def too_old(self) -> dict[str, str]:
        """Sources whose picture is older than the operator wants, with the reason.

        A server that does not answer for one document, such as an issuer's keys, does not make other pictures old.
        """
        return {
            source: f"the picture is {_ago(age)} old, and may be {_ago(self.max_age_of(source))} old at most"
            for source, age in self._ages(of_documents=False).items()
            if age > self.max_age_of(source)
        }

    def failures(self) -> list[StandingFailure]:
        """All that cannot be made because of an internal error. Readiness is unaffected."""
        return self.catalog.failures()

    def facts(self) -> PlaneFacts:
        """All that decides which versions proxies have now."""
        from mesh_pilot.explain.truth.facts import gather

        progress = self.rollouts.progress if self.rollouts is not None else None
        held, stale = self.reducer.intake.held(), self.stale()
        return gather(self.world, self.quarantine, progress, held, stale, self.catalog.as_written)

    def stale(self) -> dict[str, str]:
        """Sources whose feed does not answer, a CA elsewhere that does not sign, and an issuer of logins that does not
        answer, with the reason.

        What they gave last, perhaps in an earlier run, is kept. Readiness is unaffected.
        """
        # It branches by what can be silent: each knows in its own way that it is.
        now = datetime.now(UTC)
        found: dict[str, str] = {}
        for source, at in self.reducer.intake.stale().items():
            reason = self.waiting_for(source)
            age = _ago((now - at).total_seconds())
            found[source] = f"stale: as it was {age} ago, before the restart{f': {reason}' if reason else ''}"
        for supervisor in self.supervisors:
            own = supervisor.source.statistics()
            if isinstance(own, Staleness) and own.stale_seconds > 0:
                silent = supervisor.source.name
                found.setdefault(silent, f"silent for {own.stale_seconds:.0f} s: {own.trouble}")
            elif isinstance(own, Sighted) and own.blindness:
                found.setdefault(supervisor.source.name, own.blindness)
        if self.signer is not None and (trouble := self.signer.statistics().trouble):
            found["signer"] = trouble
        if trouble := next(filter(None, (tell() for tell in self.login_troubles)), ""):
            found["logins"] = trouble
        if self.others is not None:
            for number, reason in self.others.missing().items():
                found[f"worker {number}"] = f"{reason}; the others serve its proxies"
        return found


def _ago(seconds: float) -> str:
    """A time for people: ``1:02:03``."""
    return str(timedelta(seconds=round(max(0.0, seconds))))
