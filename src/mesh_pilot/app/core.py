"""The core of every worker: the World and its reducer, who may call, and the servers of configuration.

The first worker adds sources and pages (`first_worker`), another one follows the first (`other_worker`).
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import attrs
import trio

from mesh_pilot import __version__
from mesh_pilot.app.identity import Identities
from mesh_pilot.app.registration import admission_of
from mesh_pilot.app.settings import Settings, start_errors
from mesh_pilot.app.sockets import Addresses
from mesh_pilot.base.later import load
from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.identity.trust.roots import AgentRoots
from mesh_pilot.model.events import Event
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.net.rpc import ServerStream
from mesh_pilot.ops.istiod.debug_types import DEBUG_TYPES
from mesh_pilot.ops.observers.changes import Changes
from mesh_pilot.ops.observers.revision_memory import RevisionMemory
from mesh_pilot.ops.plane.state import CallersState, PlaneProgress, PlaneState
from mesh_pilot.replicas.election.base import Election, Replica
from mesh_pilot.replicas.election.elections import Alone
from mesh_pilot.replicas.registration.registrar import Message
from mesh_pilot.replicas.workers.questions import Answer
from mesh_pilot.safety.quarantine.controller import QuarantineController
from mesh_pilot.safety.rollout.controller import RolloutController
from mesh_pilot.traffic.memory import MeshTraffic, TrafficMemory
from mesh_pilot.traffic.server import TrafficServer
from mesh_pilot.traffic.table import TrafficTable
from mesh_pilot.world import Reducer, World
from mesh_pilot.world.intake import Intake
from mesh_pilot.world.reducer import Published
from mesh_pilot.xds.ads.context import XdsOptions
from mesh_pilot.xds.ads.messages import Variant
from mesh_pilot.xds.ads.observers import NO_ANSWER_OBSERVER
from mesh_pilot.xds.ads.server import ReplayedCall, XdsServer
from mesh_pilot.xds.ads.status import StatusRegistry
from mesh_pilot.xds.config_api.served_collections import WorldCollections
from mesh_pilot.xds.config_api.server import McpService
from mesh_pilot.xds.mcp.identity import plane_id_of
from mesh_pilot.xds.mcp.wire import API_GENERATOR

if TYPE_CHECKING:
    from mesh_pilot.ops.istiod.streams import DebugStreams
    from mesh_pilot.ops.tracing.otlp import TraceExporter


@attrs.frozen(kw_only=True, eq=False)
class Core:
    """The parts of a worker that lead from events to proxies, in that order."""

    world: World
    identities: Identities
    reducer: Reducer
    changes: Changes
    catalog: WorldCatalog
    quarantine: QuarantineController | None
    """Quarantine; None if it is off."""
    rollouts: RolloutController | None
    """None with several workers."""
    xds: XdsServer
    mcp: McpService
    traffic: MeshTraffic | None
    """None if traffic is not counted."""
    reports: TrafficServer | None
    """The server of proxies' reports of traffic; None without those."""
    traces: TraceExporter | None
    revisions: RevisionMemory
    """The latest revisions."""
    events: trio.MemorySendChannel[Event]
    """The events of sources, quarantine and rollouts."""
    inbox: trio.MemoryReceiveChannel[Event]
    """The other end, which the reducer reads."""

    def state(self, election: Election, progress: PlaneProgress) -> PlaneState:
        """These parts, for those who only read them."""
        own = self.identities
        return PlaneState(
            world=self.world,
            reducer=self.reducer,
            catalog=self.catalog,
            changes=self.changes,
            xds=self.xds,
            mcp=self.mcp,
            callers=CallersState(
                own.authentication, own.certificates, own.issuer, own.authority, own.validity, own.periods
            ),
            trust=own.trust,
            signer=own.remote,
            election=election,
            quarantine=self.quarantine,
            rollouts=self.rollouts,
            traffic=self.traffic,
            reports=self.reports,
            traces=self.traces,
            revisions=self.revisions,
            progress=progress,
        )


def reducer_of(settings: Settings, world: World, intake: Intake, *, follows: bool) -> Reducer:
    """The reducer of a World. ``follows``: it takes revisions of the first worker."""
    return Reducer(
        world,
        debounce_after=settings.debounce_after,
        debounce_max=settings.debounce_max,
        intake=intake,
        follows=follows,
    )


def core_of(
    settings: Settings,
    addresses: Addresses,
    identities: Identities,
    world: World,
    reducer: Reducer,
    tell: Callable[[Message], None],
    *,
    leads: bool,
) -> Core:
    """The core over a reducer. ``tell`` takes what streams say of workloads; ``leads``: in the first worker."""
    events, inbox = trio.open_memory_channel[Event](1000)
    changes = Changes(world)
    reducer.on_publish(changes.published)
    reducer.on_publish(lambda published: identities.revised(published.revision.changed))
    roots = AgentRoots(identities.trust)
    catalog = WorldCatalog(world, identities.issuer, roots=roots)
    collections = WorldCollections(world, plane_id_of(addresses.grpc))
    mcp = McpService(collections, identities.config_callers().admit_reader)
    if settings.serve_config is not False:
        reducer.on_publish(lambda published: collections.published(published.revision))
    # The order of hooks is that of the data: identities and collections first, as streams that wake ask for them.
    quarantine = (
        QuarantineController(world, catalog.scope_of, settings.quarantine) if settings.quarantine is not None else None
    )
    answers = quarantine or NO_ANSWER_OBSERVER
    traffic, reports = _traffic(settings, identities)
    rollouts = None
    if leads and settings.workers.count == 1:
        rollouts = RolloutController(
            world,
            answers,
            settings.rollout,
            is_synced=lambda: reducer.synced,
            table=traffic.table if traffic is not None else None,
        )
        reducer.gates.append(rollouts.admit)
        reducer.on_publish(partial(_tell, rollouts))
    xds = XdsServer(
        catalog,
        identifier=f"mesh-pilot {__version__}",
        authenticate=partial(_authenticate, identities),
        handlers={API_GENERATOR: partial(_serve_api, mcp)} if settings.serve_config is not False else {},
        options=XdsOptions(bounds=settings.client_bounds),
        scope_of=catalog.scope_of,
        answers=rollouts or answers,
        workloads=admission_of(settings, world, tell),
    )
    identities.certificates.give_way(lambda: xds.status.pushed_at)
    if quarantine is not None:
        reducer.on_publish(partial(_tell, quarantine))
    reducer.on_publish(partial(_tell_status, xds.status))
    traces = None
    if settings.traces:
        from mesh_pilot.ops.tracing.otlp import TraceExporter

        traces = TraceExporter(settings.traces, xds.status, leads=leads)
        xds.status.observer = traces.traces
        reducer.on_publish(traces.published)
    revisions = RevisionMemory()
    reducer.on_publish(revisions.published)
    return Core(
        world=world,
        identities=identities,
        reducer=reducer,
        changes=changes,
        catalog=catalog,
        quarantine=quarantine,
        rollouts=rollouts,
        xds=xds,
        mcp=mcp,
        traffic=traffic,
        reports=reports,
        traces=traces,
        revisions=revisions,
        events=events,
        inbox=inbox,
    )


async def _authenticate(identities: Identities, call: ServerStream[Any, Any]) -> Callable[[Proxy], Proxy]:
    """See `Identities.authenticate`. The first proxy waits until translators are loaded: no other plane needs them."""
    await load("mesh_pilot.envoy.catalog.generators")
    return await identities.authenticate(call)


def _traffic(settings: Settings, identities: Identities) -> tuple[MeshTraffic | None, TrafficServer | None]:
    """The traffic that proxies report, and the server of their reports; None if that is off."""
    if settings.traffic_reports is None:
        return None, None
    traffic = MeshTraffic(TrafficTable(), TrafficMemory())
    bounds, seconds = settings.client_bounds, settings.traffic_reports
    return traffic, TrafficServer(traffic.table, authenticate=identities.authenticate, bounds=bounds, seconds=seconds)


def election_of(settings: Settings, addresses: Addresses) -> Election:
    """This process's election, under a unique name. Raises StartError."""
    host = socket.gethostname()
    name = f"{host.split('.')[0] or 'mesh-pilot'}-{secrets.token_hex(4)}"
    replica = Replica(name, host, addresses.secure_grpc or addresses.grpc, __version__)
    if settings.election is None:
        return Alone(replica)
    with start_errors():
        return settings.election.election(replica)


def serve_debug_types(settings: Settings, core: Core, ask: Answer) -> None:
    """Answer Istio's debug types on ADS. ``ask`` asks this worker and all others."""

    @cache
    def streams() -> DebugStreams:
        from mesh_pilot.ops.istiod.streams import DebugStreams

        bounds, authenticate = settings.client_bounds, core.identities.authenticate
        return DebugStreams(ask, authenticate, lambda: core.world.mesh.peek(()).root_namespace, bounds, __version__)

    async def serve(call: ReplayedCall, peer: str, variant: Variant) -> None:
        await load("mesh_pilot.ops.istiod.streams")
        await streams().serve(call, peer, variant)

    for type_url in DEBUG_TYPES:
        core.xds.hand_over(type_url, serve)


def _tell(controller: QuarantineController | RolloutController, published: Published) -> None:
    """A revision of the World."""
    controller.revised(published.revision.changed)


def _tell_status(status: StatusRegistry, published: Published) -> None:
    """A revision of the World, or events that changed nothing in it."""
    revision = published.revision
    status.published(published.published_at, revision.number if revision.changed else 0)


async def _serve_api(mcp: McpService, call: ReplayedCall, peer: str, variant: Variant) -> None:
    """A stream on ADS for configuration."""
    await mcp.serve_xds(call, call.call, delta=variant is Variant.DELTA)
