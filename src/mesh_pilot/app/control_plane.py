"""The control plane: everything built from settings and run in one tree of nurseries. Nothing else knows all parts.

    async with control_plane(Settings(config_dirs=(Path("config"),))) as plane:
        await plane.wait_ready()
        print(plane.addresses.grpc)

Leaving the block drains.
"""

from __future__ import annotations

import math
import secrets
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import attrs
import structlog
import trio

from mesh_pilot import __version__
from mesh_pilot.app.faults import excuse, known_mesh
from mesh_pilot.app.identity import Identities, federation_of, open_identities
from mesh_pilot.app.orders import serve_orders
from mesh_pilot.app.settings import Settings, start_errors
from mesh_pilot.app.sources import ConfigSourcesWatch, PolicyKeySets, check_settings, short_name_domain, source_list
from mesh_pilot.app.state import restore
from mesh_pilot.app.workers.crew import Crew, with_shared_root
from mesh_pilot.app.workers.seat import Seat
from mesh_pilot.config_api.served_collections import WorldCollections
from mesh_pilot.config_api.server import McpService
from mesh_pilot.election.base import Election, Replica
from mesh_pilot.election.elections import Alone
from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.mcp.identity import plane_id_of
from mesh_pilot.mcp.wire import API_GENERATOR
from mesh_pilot.model.bounds import Bounds
from mesh_pilot.model.events import Event
from mesh_pilot.ops.app import debug_app, monitoring_app
from mesh_pilot.ops.changes import Changes
from mesh_pilot.ops.debug_streams import DEBUG_TYPES, DebugStreams
from mesh_pilot.ops.http import HttpServer
from mesh_pilot.ops.memory import MemoryRelease
from mesh_pilot.ops.metrics import Metrics
from mesh_pilot.ops.questions import Answer
from mesh_pilot.ops.reports import ProblemLog
from mesh_pilot.ops.state import CallersState, PlaneState
from mesh_pilot.ops.workers import WorkersApp, about_all, about_this_worker
from mesh_pilot.quarantine.keeper import Keeper
from mesh_pilot.rpc import (
    HealthService,
    Servable,
    Server,
    TlsSource,
    open_listeners,
    serve,
    with_reflection,
)
from mesh_pilot.rpc.net import address_of
from mesh_pilot.rpc.server import NOT_GRPC
from mesh_pilot.security.trusted_roots import AgentRoots
from mesh_pilot.sources.base import Source
from mesh_pilot.sources.jwks import KeySource
from mesh_pilot.sources.supervisor import Supervisor
from mesh_pilot.state.recorder import Recorded
from mesh_pilot.world import Reducer, World
from mesh_pilot.world.intake import Intake
from mesh_pilot.world.reducer import Published
from mesh_pilot.xds.messages import Variant
from mesh_pilot.xds.server import ReplayedCall, XdsServer
from mesh_pilot.xds.session import NO_ANSWER_OBSERVER, XdsOptions
from mesh_pilot.xds.status import StatusRegistry

log = structlog.get_logger(scope="bootstrap")

HTTP_GRACE_SECONDS = 0.5
"""The grace period of HTTP requests at the end of the drain."""

TRIM_SECONDS = 15.0
"""The interval at which resources of disconnected proxies are dropped: they stay for one to two intervals."""

REPORT_SECONDS = 60.0
"""The interval of reports on failures in proxies."""


@attrs.frozen
class Addresses:
    """The addresses at which it listens, with the real ports for 0; empty if a server is off."""

    grpc: str
    secure_grpc: str
    http: str
    monitoring: str


@attrs.frozen
class _Sockets:
    """Everything that is listened on, opened before anything runs: a taken port is known at once."""

    grpc: list[trio.SocketListener]
    secure_grpc: list[trio.SocketListener]
    http: list[trio.SocketListener]
    monitoring: list[trio.SocketListener]

    def addresses(self) -> Addresses:
        groups = (self.grpc, self.secure_grpc, self.http, self.monitoring)
        return Addresses(*(address_of(group[0].socket) if group else "" for group in groups))

    def close(self) -> None:
        for group in (self.grpc, self.secure_grpc, self.http, self.monitoring):
            for listener in group:
                listener.socket.close()


class ControlPlane:
    """A running control plane. State: that of its parts, and how far its start or end has come."""

    def __init__(self, settings: Settings, state: PlaneState, addresses: Addresses, answer: Answer) -> None:
        self.settings = settings
        self.state = state
        self.addresses = addresses
        self.answer = answer
        """Answers the questions of other workers."""
        self.crew: Crew | None = None
        """The other workers; None if there are none, or this is not the first."""
        self.health = HealthService()
        """gRPC's own health service."""
        self._ready = trio.Event()

    def __repr__(self) -> str:
        waiting = self.state.not_ready()
        return f"<ControlPlane {self.addresses.grpc} {f'not ready: {waiting}' if waiting else 'ready'}>"

    async def wait_ready(self) -> None:
        """Wait until every source has synced, or the wait for them is over, and proxies are served."""
        await self._ready.wait()


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
    mesh = await known_mesh(settings, faults)
    sockets = await _open_sockets(settings) if seat is None else _shared_sockets(seat)
    if settings.workers.count > 1:
        settings = with_shared_root(settings)
    try:
        events, inbox = trio.open_memory_channel[Event](1000)
        sources = [*source_list(settings, mesh, sockets.addresses().grpc), *more_sources] if seat is None else []
        short_names_in = short_name_domain(settings, sources)
        world = (
            seat.world
            if seat is not None
            else World(domain=settings.domain, root_namespace=settings.namespace, short_names_in=short_names_in)
        )
        guarded = [source.name for source in sources]
        key_source = KeySource(PolicyKeySets(world))
        election = _election(settings, sockets.addresses())
        identities = await open_identities(settings, world, [sockets.addresses().secure_grpc])
        federation = federation_of(settings, world, identities.trust)
        if seat is None:
            sources += [key_source, federation]
        for source in sources:
            world.expect(source.name)
        reducer = Reducer(
            world,
            debounce_after=settings.debounce_after,
            debounce_max=settings.debounce_max,
            intake=Intake(world, guarded=guarded, guard=settings.guard),
        )
        watch = ConfigSourcesWatch(settings, mesh)
        reducer.on_publish(lambda published: watch.published(world, published.revision.changed))
        changes = Changes(world)
        reducer.on_publish(changes.published)
        reducer.on_publish(lambda _: key_source.wake())
        reducer.on_publish(lambda _: federation.wake())
        roots = AgentRoots(identities.trust)
        catalog = WorldCatalog(world, identities.issuer, roots=roots, split=settings.split_virtual_hosts)
        collections = WorldCollections(world, plane_id_of(sockets.addresses().grpc))
        mcp = McpService(collections, identities.may_read)
        if settings.serve_config is not False:
            reducer.on_publish(lambda published: collections.published(published.revision))
        keeper = Keeper(world, catalog.scope_of, settings.quarantine) if settings.quarantine is not None else None
        xds = XdsServer(
            catalog,
            identifier=f"mesh-pilot {__version__}",
            authenticate=identities.authenticate,
            handlers={API_GENERATOR: partial(_serve_api, mcp)} if settings.serve_config is not False else {},
            options=XdsOptions(bounds=settings.client_bounds),
            scope_of=catalog.scope_of,
            answers=keeper or NO_ANSWER_OBSERVER,
        )
        identities.certificates.give_way(lambda: xds.status.pushed_at)
        if keeper is not None:
            reducer.on_publish(partial(_tell, keeper))
        reducer.on_publish(partial(_tell_status, xds.status))
        supervisors = [Supervisor(source, events) for source in sources]
        callers = CallersState(
            identities.authentication, identities.certificates, identities.issuer, identities.authority
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
        if settings.state is not None:
            state.max_age_of = settings.state.max_age_of
        web, monitoring = debug_app(state), monitoring_app(state)
        answer = answer_all = about_this_worker(state, web)
        crew = None
        if seat is not None:
            answer_all = seat.link.ask
        elif settings.workers.count > 1:
            crew = state.others = _crew(settings, world, identities, short_names_in, sockets)
            reducer.on_publish(crew.published)
            everyone = WorkersApp(web, monitoring, crew, Metrics(state))
            web, monitoring = everyone.web(), everyone.monitoring()
            answer_all = about_all(answer, web, crew)
        debug = DebugStreams(
            answer_all,
            identities.authenticate,
            lambda: world.mesh.peek(()).root_namespace,
            settings.client_bounds,
        )
        for type_url in DEBUG_TYPES:
            xds.hand_over(type_url, debug.serve)
        addresses = sockets.addresses() if seat is None else attrs.evolve(sockets.addresses(), http=seat.http)
        plane = ControlPlane(settings, state, addresses, answer)
        plane.crew = crew
        stop_http = trio.Event()
        kept: list[Recorded] = [*sources, *filter(None, [keeper])]
        state.recorder = recorder = await restore(settings, kept, world, reducer)
        await excuse(faults, reducer.intake.stale(), recorder)
        async with trio.open_nursery() as nursery:
            if recorder is not None:
                if recorder.history is not None:
                    recorder.history.effects = xds.status
                nursery.start_soon(recorder.run)
            nursery.start_soon(reducer.run, inbox)
            if keeper is not None:
                nursery.start_soon(keeper.run, events)
            for supervisor in supervisors:
                nursery.start_soon(supervisor.run)
            for port, app, listeners in (
                ("web", web, sockets.http),
                ("metrics", monitoring, sockets.monitoring),
            ):
                if not listeners:
                    continue
                server = HttpServer(app, port=port, right_port=plane.addresses.grpc)
                state.http_servers.append(server)
                await nursery.start(partial(server.serve, listeners, stop_http, grace_seconds=HTTP_GRACE_SECONDS))
            nursery.start_soon(serve_orders, settings, state, events)
            nursery.start_soon(_look_after, catalog, xds, state.rpc_servers)
            nursery.start_soon(_report, world, catalog)
            nursery.start_soon(identities.run)
            nursery.start_soon(_end_revoked, identities, state.rpc_servers)
            if seat is None:  # duties are the first worker's: the others lead nothing
                nursery.start_soon(election.run)
            if crew is not None:
                nursery.start_soon(crew.run, answer_all)
            nursery.start_soon(_serve_when_synced, plane, sockets, identities.server_tls(), nursery, seat)
            yield plane
            await _drain(plane)
            stop_http.set()
            nursery.cancel_scope.cancel()
    finally:
        sockets.close()


async def _serve_when_synced(
    plane: ControlPlane, sockets: _Sockets, tls: TlsSource, nursery: trio.Nursery, seat: Seat | None
) -> None:
    """Serve proxies once the sources have synced, or the wait for them is over."""
    if seat is None:
        await _wait_for_sources(plane)
    if plane.crew is not None:
        await plane.crew.begin()
    config = [plane.state.mcp] if plane.settings.serve_config is not False else []
    services = with_reflection([*plane.state.xds.services(), plane.state.callers.certificates, *config, plane.health])
    await nursery.start(_serve_grpc, plane, services, sockets.grpc, None)
    await nursery.start(_serve_grpc, plane, services, sockets.secure_grpc, tls)
    log.info("ready", **attrs.asdict(plane.addresses))
    plane._ready.set()


async def _wait_for_sources(plane: ControlPlane) -> None:
    timeout = plane.settings.sync_timeout
    with trio.move_on_after(math.inf if timeout is None else timeout) as waiting:
        await plane.state.reducer.wait_synced()
    if waiting.cancelled_caught:
        plane.state.overdue = True
        log.warning("serving although sources have not synced in time", waiting_for=plane.state.unsynced())


async def _serve_grpc(
    plane: ControlPlane,
    services: Sequence[Servable],
    listeners: list[trio.SocketListener],
    tls: TlsSource | None,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    async with trio.open_nursery() as nursery:
        settings = plane.settings
        limits = attrs.evolve(settings.grpc_limits, **_message_size(settings.client_bounds))
        not_grpc = f"{NOT_GRPC}; the web pages are on {plane.addresses.http or 'no port'}"
        server = await nursery.start(partial(serve, services, listeners, tls=tls, limits=limits, not_grpc=not_grpc))
        plane.state.rpc_servers.append(server)
        task_status.started()


def _message_size(bounds: Bounds) -> dict[str, int]:
    """The limit that refuses a request by its head, before it is received."""
    return {"max_message_size": bounds.max_request_bytes} if bounds.max_request_bytes else {}


async def _drain(plane: ControlPlane) -> None:
    """Send proxies elsewhere, and let calls end within the drain time."""
    plane.state.draining = True
    plane.state.election.resign()
    seconds = plane.settings.shutdown_seconds
    log.info("draining", within_seconds=seconds)
    plane.health.set("", False)
    plane.state.xds.drain()
    plane.state.mcp.drain()
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            if plane.crew is not None:
                nursery.start_soon(plane.crew.drain)
            for server in plane.state.rpc_servers:
                nursery.start_soon(server.drain, seconds - min(1.0, seconds / 2))


def _election(settings: Settings, addresses: Addresses) -> Election:
    """The election in which this process takes part, under a name of its own."""
    host = socket.gethostname()
    name = f"{host.split('.')[0] or 'mesh-pilot'}-{secrets.token_hex(4)}"
    replica = Replica(name, host, addresses.secure_grpc or addresses.grpc, __version__)
    if settings.election is None:
        return Alone(replica)
    with start_errors():
        return settings.election.election(replica)


def _crew(settings: Settings, world: World, identities: Identities, short_names_in: str, sockets: _Sockets) -> Crew:
    http = sockets.addresses().http
    return Crew(settings, world, identities.trust, short_names_in, sockets.grpc, sockets.secure_grpc, http)


def _tell(keeper: Keeper, published: Published) -> None:
    """A revision of the World."""
    keeper.revised(published.revision.changed)


def _tell_status(status: StatusRegistry, published: Published) -> None:
    """A revision of the World, or events that changed nothing in it."""
    revision = published.revision
    status.published(published.published_at, revision.number if revision.changed else 0)


async def _look_after(catalog: WorldCatalog, xds: XdsServer, servers: Sequence[Server]) -> None:
    """Let go of what was made for proxies that are gone and have not come back, and of the memory that it took."""
    memory = MemoryRelease()
    while True:
        await trio.sleep(TRIM_SECONDS)
        freed = xds.trim()
        for forgotten in catalog.evict_idle_slowly():
            freed += forgotten
            await trio.lowlevel.checkpoint()
        await memory.release(freed=freed, streams=max(xds.status.streams_ended, connections_ended(servers)))


async def _end_revoked(identities: Identities, servers: Sequence[Server]) -> None:
    """End connections by certificates that are revoked meanwhile."""
    while True:
        await identities.revocations.changed()
        for server in list(servers):
            await server.end_revoked(identities.is_revoked)


def connections_ended(servers: Sequence[Server]) -> int:
    """Connections that came and went. One without a stream, or without HTTP/2, leaves as much behind as any."""
    figures = [server.statistics() for server in servers]
    return sum(figure.connections_total - figure.connections_open for figure in figures)


async def _report(world: World, catalog: WorldCatalog) -> None:
    """Log problems of connected proxies, and providers that cannot be used."""
    problems = ProblemLog(catalog, world)
    while True:
        await trio.sleep(REPORT_SECONDS)
        problems.log_new()


async def _serve_api(mcp: McpService, call: ReplayedCall, peer: str, variant: Variant) -> None:
    """A stream on ADS for configuration."""
    await mcp.serve_xds(call, call.call, delta=variant is Variant.DELTA)


def _shared_sockets(seat: Seat) -> _Sockets:
    return _Sockets([*seat.grpc], [*seat.secure_grpc], [], [])


async def _open_sockets(settings: Settings) -> _Sockets:
    """Listen everywhere; nothing stays open when one address can't be had."""
    sockets = _Sockets([], [], [], [])
    try:
        with start_errors():
            sockets.grpc.extend(await open_listeners(settings.grpc_addr))
            sockets.secure_grpc.extend(await open_listeners(settings.secure_grpc_addr))
            sockets.http.extend(await open_listeners(settings.http_addr))
            sockets.monitoring.extend(await open_listeners(settings.monitoring_addr))
    except BaseException:
        sockets.close()
        raise
    return sockets
