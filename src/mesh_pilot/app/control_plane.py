"""The control plane: everything built from settings and run in one tree of nurseries. Nothing else knows all parts.

    async with control_plane(Settings(config_dirs=(Path("config"),))) as plane:
        await plane.wait_ready()
        print(plane.addresses.grpc)

Leaving the block drains.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial

import attrs
import trio

from mesh_pilot import __version__
from mesh_pilot.app.access import gate_of, tls_of
from mesh_pilot.app.config_cluster import cluster_source, follow_mesh, own_cluster_id, tell_mesh
from mesh_pilot.app.config_store import config_store_of, http_limits
from mesh_pilot.app.faults import excuse, known_mesh
from mesh_pilot.app.identity import Identities, federation_of, open_identities
from mesh_pilot.app.orders import serve_orders
from mesh_pilot.app.proxy_accounts import ProxyAccounts
from mesh_pilot.app.registration.assembly import door_of, registrar_of
from mesh_pilot.app.registration.registrar import Message, Registrar
from mesh_pilot.app.serving import ControlPlane, drain, serve_when_synced
from mesh_pilot.app.settings import Settings, start_errors
from mesh_pilot.app.shared_owners import share_owners
from mesh_pilot.app.sockets import Addresses, Sockets, open_sockets, shared_sockets
from mesh_pilot.app.sources import (
    ConfigSourcesWatch,
    ExtensionModules,
    NetworkGatewayHosts,
    PolicyKeySets,
    check_settings,
    module_folder,
    short_name_domain,
    sink_server,
    source_list,
)
from mesh_pilot.app.state import restore
from mesh_pilot.app.status import live_objects, write_status
from mesh_pilot.app.upkeep import end_revoked_connections, look_after, report
from mesh_pilot.app.workers.crew import Crew, with_shared_root
from mesh_pilot.app.workers.effects import EffectsOfAll, telling_effects
from mesh_pilot.app.workers.seat import Seat
from mesh_pilot.config_api.served_collections import WorldCollections
from mesh_pilot.config_api.server import McpService
from mesh_pilot.election.base import Election, Replica
from mesh_pilot.election.elections import Alone
from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.http.server import HttpServer
from mesh_pilot.mcp.identity import plane_id_of
from mesh_pilot.mcp.wire import API_GENERATOR
from mesh_pilot.model.events import Event
from mesh_pilot.ops.api.app import api_routes
from mesh_pilot.ops.app import debug_app, monitoring_app
from mesh_pilot.ops.changes import Changes
from mesh_pilot.ops.debug_streams import DEBUG_TYPES, DebugStreams
from mesh_pilot.ops.metrics import Metrics
from mesh_pilot.ops.object_conditions import ConditionLog
from mesh_pilot.ops.state import CallersState, PlaneState
from mesh_pilot.ops.tracing.otlp import TraceExporter
from mesh_pilot.ops.workers import WorkersApp, about_all, about_this_worker
from mesh_pilot.quarantine.keeper import Keeper
from mesh_pilot.rollout.keeper import RolloutKeeper
from mesh_pilot.rpc.net import address_of
from mesh_pilot.security.trusted_roots import AgentRoots
from mesh_pilot.sources.base import Source
from mesh_pilot.sources.files.source import FileSource
from mesh_pilot.sources.gateway_hosts import GatewayHosts
from mesh_pilot.sources.jwks import KeySource
from mesh_pilot.sources.supervisor import Supervising, Supervisor
from mesh_pilot.sources.wasm import ModuleSource
from mesh_pilot.state.recorder import Recorded
from mesh_pilot.upkeep import Upkeep
from mesh_pilot.world import Reducer, World
from mesh_pilot.world.host_door import HostDoor
from mesh_pilot.world.intake import Intake
from mesh_pilot.world.owner_keeper import OwnerKeeper
from mesh_pilot.world.reducer import Published
from mesh_pilot.xds.answers import NO_ANSWER_OBSERVER
from mesh_pilot.xds.messages import Variant
from mesh_pilot.xds.server import ReplayedCall, XdsServer
from mesh_pilot.xds.session import XdsOptions
from mesh_pilot.xds.status import StatusRegistry

__all__ = ["ControlPlane", "control_plane"]

HTTP_GRACE_SECONDS = 0.5
"""The grace period of HTTP requests at the end of the drain."""


@asynccontextmanager
async def control_plane(
    settings: Settings, *, more_sources: Sequence[Source] = (), seat: Seat | None = None
) -> AsyncIterator[ControlPlane]:
    """Run a control plane for the length of the block; it is serving HTTP at once and xDS when it is ready.

    ``more_sources`` come after those of the settings, which win over them. ``seat``: this is another worker than the
    first, and has neither sources nor pages.

    Leaving the block drains within ``shutdown_seconds``; being cancelled, or an exception, ends it at once. Either way
    no task, socket or file watch is left. Raises StartError.
    """
    faults = check_settings(settings)
    config_store = config_store_of(settings) if seat is None else None
    mesh = await known_mesh(settings, faults)
    sockets = await open_sockets(settings) if seat is None else shared_sockets(seat)
    if settings.workers.count > 1:
        settings = with_shared_root(settings)
    stack = ExitStack()
    try:
        events, inbox = trio.open_memory_channel[Event](1000)
        sources: list[Source] = []
        live = live_objects(settings) if seat is None else None
        accounts = ProxyAccounts()
        if seat is None:
            cluster = cluster_source(settings, live, accounts.rulings)
            sources = [*source_list(settings, mesh, sockets.addresses().grpc, cluster), *more_sources]
            tell_mesh(sources, mesh)
        short_names_in = short_name_domain(settings, sources)
        world = (
            seat.world
            if seat is not None
            else World(
                domain=settings.domain,
                root_namespace=settings.namespace,
                short_names_in=short_names_in,
                cluster_id=own_cluster_id(settings),
            )
        )
        identities = await open_identities(settings, world, [sockets.addresses().secure_grpc])
        sink = sink_server(settings, mesh, sockets.addresses().grpc, identities) if seat is None else None
        if sink is not None:
            sources.insert(len(sources) - len(more_sources), sink)
        guarded = [source.name for source in sources]
        in_files = [source.name for source in sources if isinstance(source, FileSource)]
        key_source = KeySource(PolicyKeySets(world))
        gateway_hosts = GatewayHosts(NetworkGatewayHosts(world))
        modules = ModuleSource(ExtensionModules(world), module_folder(settings, stack), settings.wasm)
        election = _election(settings, sockets.addresses())
        federation = federation_of(settings, world, identities.trust)
        registrar: Registrar | None = None
        tell: Callable[[Message], None]
        if seat is None:
            registrar = registrar_of(settings, election)
            sources += [key_source, gateway_hosts, modules, federation, registrar]
            tell = registrar.tell
        else:
            tell = seat.link.put
        for source in sources:
            world.expect(source.name)
        reducer = Reducer(
            world,
            debounce_after=settings.debounce_after,
            debounce_max=settings.debounce_max,
            intake=Intake(world, guarded=guarded, in_files=in_files, guard=settings.guard),
            follows=seat is not None,
        )
        watch = ConfigSourcesWatch(settings, mesh)
        reducer.on_publish(lambda published: watch.published(world, published.revision.changed))
        reducer.on_publish(lambda published: follow_mesh(sources, world, published.revision.changed))
        changes = Changes(world)
        reducer.on_publish(changes.published)
        if seat is None:
            reducer.on_publish(ConditionLog(world).published)
        reducer.on_publish(lambda _: key_source.wake())
        reducer.on_publish(lambda published: modules.revised(published.revision.changed))
        reducer.on_publish(lambda _: federation.wake())
        reducer.on_publish(lambda published: identities.revised(published.revision.changed))
        reducer.on_publish(lambda published: gateway_hosts.revised(published.revision.changed))
        roots = AgentRoots(identities.trust)
        catalog = WorldCatalog(world, identities.issuer, roots=roots, split=settings.split_virtual_hosts)
        collections = WorldCollections(world, plane_id_of(sockets.addresses().grpc))
        mcp = McpService(collections, identities.config_callers().admit_reader)
        if settings.serve_config is not False:
            reducer.on_publish(lambda published: collections.published(published.revision))
        keeper = Keeper(world, catalog.scope_of, settings.quarantine) if settings.quarantine is not None else None
        owners = shared_owners = None
        if seat is None:
            owners = OwnerKeeper(world, is_synced=lambda: reducer.synced)
            reducer.gates += [HostDoor(world).admit, owners.admit]
            reducer.on_publish(lambda _: owners.revised())
            shared_owners = share_owners(settings, election, owners)
        rollouts = None
        if settings.workers.count == 1 and seat is None:
            answers = keeper or NO_ANSWER_OBSERVER
            rollouts = RolloutKeeper(world, answers, settings.rollout, is_synced=lambda: reducer.synced)
            reducer.gates.append(rollouts.admit)
            reducer.on_publish(partial(_tell, rollouts))
        xds = XdsServer(
            catalog,
            identifier=f"mesh-pilot {__version__}",
            authenticate=identities.authenticate,
            handlers={API_GENERATOR: partial(_serve_api, mcp)} if settings.serve_config is not False else {},
            options=XdsOptions(bounds=settings.client_bounds),
            scope_of=catalog.scope_of,
            answers=rollouts or keeper or NO_ANSWER_OBSERVER,
            workloads=door_of(settings, world, tell),
        )
        identities.certificates.give_way(lambda: xds.status.pushed_at)
        if keeper is not None:
            reducer.on_publish(partial(_tell, keeper))
        reducer.on_publish(partial(_tell_status, xds.status))
        traces = TraceExporter(settings.traces, xds.status, leads=seat is None) if settings.traces else None
        if traces is not None:
            xds.status.observer = traces.traces
            reducer.on_publish(traces.published)
        supervisors = [Supervisor(source, events) for source in sources]
        callers = CallersState(
            identities.authentication,
            identities.certificates,
            identities.issuer,
            identities.authority,
            identities.validity,
        )
        state = PlaneState(
            world,
            reducer,
            supervisors,
            catalog,
            changes,
            xds,
            mcp,
            callers,
            identities.trust,
            election,
            keeper,
            identities.vault,
        )
        state.rollouts = rollouts
        state.config_store = config_store
        webhooks = None
        if seat is None and settings.webhooks is not None:
            from mesh_pilot.app.webhooks import webhooks_of  # with it come templates, a few megabytes

            webhooks = webhooks_of(
                settings, identities, world, election, is_ready=lambda: state.overdue or not state.unsynced()
            )
            state.webhooks = webhooks
        state.events = events if seat is None else None
        state.traces = traces
        if settings.state is not None:
            state.max_age_of = settings.state.max_age_of
        web, monitoring = debug_app(state), monitoring_app(state)
        answer = answer_all = about_this_worker(state, web)
        crew = None
        if seat is not None:
            answer, answer_all = telling_effects(answer, xds.status), seat.link.ask
        elif settings.workers.count > 1:
            crew = state.others = _crew(settings, world, identities, short_names_in, sockets)
            crew.registrar = registrar
            reducer.on_publish(crew.published)
            everyone = WorkersApp(web, monitoring, crew, Metrics(state), api_routes(state))
            web, monitoring = everyone.web(), everyone.monitoring()
            answer_all = about_all(answer, web, crew)
        web_addresses = [address_of(each.socket) for each in sockets.http]
        gate = web if seat is not None else gate_of(settings.access, web, state, web_addresses)
        web_tls = tls_of(settings.access) if seat is None else None
        debug = DebugStreams(
            answer_all,
            identities.authenticate,
            lambda: world.mesh.peek(()).root_namespace,
            settings.client_bounds,
            __version__,
        )
        for type_url in DEBUG_TYPES:
            xds.hand_over(type_url, debug.serve)
        addresses = sockets.addresses() if seat is None else attrs.evolve(sockets.addresses(), http=seat.http)
        plane = ControlPlane(settings, state, addresses, answer)
        plane.crew, plane.registrar = crew, registrar
        state.registrations = registrar
        stop_http = trio.Event()
        kept: list[Recorded] = [*sources, *(each for each in (keeper, rollouts, owners) if each)]
        if accounts.rulings.is_used:
            accounts.follow(xds.status, _effects_of_all(crew, xds.status))
        if live is not None:
            state.status_writer = write_status(settings, live, state, _effects_of_all(crew, xds.status))
        state.recorder = recorder = await restore(settings, kept, world, reducer)
        await excuse(faults, reducer.intake.stale(), recorder)
        for source in sources:
            if isinstance(source, Supervising):
                source.keeper = recorder
        upkeep = Upkeep("the control plane")  # of what serves nobody: an error of the rest ends the process
        async with trio.open_nursery() as nursery:
            if recorder is not None:
                if recorder.history is not None:
                    recorder.history.effects = xds.status
                    if crew is not None:
                        recorder.history.effects = _effects_of_all(crew, xds.status)
                nursery.start_soon(upkeep.keep, "state", recorder.run)
            nursery.start_soon(reducer.run, inbox)
            if keeper is not None:
                nursery.start_soon(keeper.run, events)
            if rollouts is not None:
                nursery.start_soon(rollouts.run, events)
            if owners is not None:
                nursery.start_soon(owners.run, events)
            if shared_owners is not None:
                nursery.start_soon(upkeep.keep, "owners that replicas share", shared_owners.run)
            for supervisor in supervisors:
                nursery.start_soon(supervisor.run)
            for port, app, listeners, tls in (
                ("web", gate, sockets.http, web_tls),
                ("metrics", monitoring, sockets.monitoring, None),
            ):
                if not listeners:
                    continue
                limits = http_limits(settings) if port == "web" else None
                server = HttpServer(app, port=port, right_port=plane.addresses.grpc, tls=tls, limits=limits)
                state.http_servers.append(server)
                await nursery.start(partial(server.serve, listeners, stop_http, grace_seconds=HTTP_GRACE_SECONDS))
            if webhooks is not None:
                state.http_servers.append(webhooks.server)
                nursery.start_soon(webhooks.run)
                serve_webhooks = partial(webhooks.server.serve, grace_seconds=HTTP_GRACE_SECONDS)
                await nursery.start(serve_webhooks, sockets.webhooks, stop_http)
            nursery.start_soon(serve_orders, settings, state, web)
            nursery.start_soon(upkeep.keep, "memory", partial(look_after, catalog, xds, state.rpc_servers))
            nursery.start_soon(upkeep.keep, "reports", partial(report, world, catalog))
            if traces is not None:
                nursery.start_soon(upkeep.keep, "traces", traces.run)
            nursery.start_soon(identities.run)
            revocations = partial(end_revoked_connections, identities, state.rpc_servers, sink)
            nursery.start_soon(upkeep.keep, "revocations", revocations)
            if seat is None:  # duties are the first worker's: the others lead nothing
                nursery.start_soon(election.run)
            if crew is not None:
                nursery.start_soon(crew.run, answer_all)
            nursery.start_soon(serve_when_synced, plane, sockets, identities.server_tls(), nursery, seat)
            yield plane
            await drain(plane)
            stop_http.set()
            nursery.cancel_scope.cancel()
    finally:
        stack.close()
        sockets.close()


def _election(settings: Settings, addresses: Addresses) -> Election:
    """The election in which this process takes part, under a name of its own."""
    host = socket.gethostname()
    name = f"{host.split('.')[0] or 'mesh-pilot'}-{secrets.token_hex(4)}"
    replica = Replica(name, host, addresses.secure_grpc or addresses.grpc, __version__)
    if settings.election is None:
        return Alone(replica)
    with start_errors():
        return settings.election.election(replica)


def _crew(settings: Settings, world: World, identities: Identities, short_names_in: str, sockets: Sockets) -> Crew:
    http = sockets.addresses().http
    return Crew(settings, world, identities.trust, short_names_in, sockets.grpc, sockets.secure_grpc, http)


def _effects_of_all(crew: Crew | None, own: StatusRegistry) -> EffectsOfAll | None:
    """The effects of revisions on the proxies of all workers; None: there is one."""
    if crew is not None and crew.effects is None:
        crew.effects = EffectsOfAll(own)
    return crew.effects if crew is not None else None


def _tell(keeper: Keeper | RolloutKeeper, published: Published) -> None:
    """A revision of the World."""
    keeper.revised(published.revision.changed)


def _tell_status(status: StatusRegistry, published: Published) -> None:
    """A revision of the World, or events that changed nothing in it."""
    revision = published.revision
    status.published(published.published_at, revision.number if revision.changed else 0)


async def _serve_api(mcp: McpService, call: ReplayedCall, peer: str, variant: Variant) -> None:
    """A stream on ADS for configuration."""
    await mcp.serve_xds(call, call.call, delta=variant is Variant.DELTA)
