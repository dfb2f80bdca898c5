"""Builds everything from settings and runs it: one tree of nurseries. Nothing else knows all the parts.

    async with control_plane(Settings(config_dirs=(Path("config"),))) as plane:
        await plane.wait_ready()
        print(plane.addresses.grpc)

Leaving the block drains. May import: ``ops`` and down.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import attrs
import structlog
import trio

from mesh_pilot import __version__
from mesh_pilot.api.istio.mesh.v1alpha1 import ConfigSource
from mesh_pilot.envoy.catalog import WorldCatalog
from mesh_pilot.model.config import ConfigError
from mesh_pilot.model.events import Event
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.ops.app import debug_app, monitoring_app
from mesh_pilot.ops.changes import Changes
from mesh_pilot.ops.http import serve_http
from mesh_pilot.ops.patches import PatchReports
from mesh_pilot.ops.state import State
from mesh_pilot.rpc import (
    CertificateFiles,
    Health,
    Peer,
    RpcError,
    Service,
    TlsSource,
    open_listeners,
    serve,
    server_tls,
    with_reflection,
)
from mesh_pilot.rpc.net import address_of
from mesh_pilot.security.authentication import Authentication
from mesh_pilot.security.ca import AuthorityError, CertificateAuthority
from mesh_pilot.security.secrets import Issuer
from mesh_pilot.sources.base import Source
from mesh_pilot.sources.consul import ConsulError, ConsulSettings, check_files, consul_sources
from mesh_pilot.sources.files import file_source
from mesh_pilot.sources.files.mesh import load_mesh_config, load_mesh_networks, mesh_source
from mesh_pilot.sources.mcp.config_sources import ConfigSourceError, SinkIdentity, source_of
from mesh_pilot.sources.mcp.server import McpService
from mesh_pilot.sources.mcp.shelf import WorldShelf
from mesh_pilot.sources.mcp.sink_server import SinkServer
from mesh_pilot.sources.mcp.xds import GENERATOR, decode_delta, decode_sotw, encode_delta, encode_sotw
from mesh_pilot.sources.supervisor import Supervisor
from mesh_pilot.world import Reducer, World
from mesh_pilot.xds.generators import Replayed
from mesh_pilot.xds.messages import Variant
from mesh_pilot.xds.server import XdsServer

log = structlog.get_logger(scope="bootstrap")

HTTP_GRACE_SECONDS = 0.5
"""What HTTP requests that run at the end of the drain have to finish."""

RENEW_SECONDS = 60.0
"""How often to look for certificates that are due; new proxies may have come meanwhile."""

AUTHORITY_NAME = "mesh-pilot"
"""What the root certificate of our own making is called."""

TRIM_SECONDS = 60.0
"""How often what was generated for proxies that are gone is let go."""


class StartError(Exception):
    """What keeps the control plane from starting, in one line for the operator."""


@attrs.frozen(kw_only=True)
class Settings:
    """All that can be set; see ``docs/configuration.md``. Times are in seconds, addresses as ``rpc.net`` reads them."""

    config_dirs: tuple[Path, ...] = ()
    mesh_config: Path | None = None
    networks_config: Path | None = None
    secrets_dir: Path | None = None
    consul: tuple[ConsulSettings, ...] = ()
    """Datacenters of Consul, the mesh's own first."""
    consul_short_names: bool | None = None
    """Whether bare names in Istio objects are services of Consul; None: unless there is Kubernetes."""
    mcp_servers: tuple[str, ...] = ()
    """Servers of configuration beside those of mesh config ``configSources``, written as there."""
    mcp_sink_addr: str | None = None
    """Where sources of MCP may dial us; None: nowhere."""
    serve_config: bool = True
    """Whether what the World holds is served over MCP and xDS beside what Envoys get; never secrets."""
    grpc_addr: str = "127.0.0.1:15010"
    secure_grpc_addr: str = "127.0.0.1:15012"
    """Served only where ``tls`` is given."""
    tls: CertificateFiles | None = None
    """The server's certificate, and the CA that signs those of clients."""
    http_addr: str = "127.0.0.1:8080"
    monitoring_addr: str = "127.0.0.1:15014"
    ca_dir: Path | None = None
    """Folder of the root certificate that signs those of proxies, made there if absent; None: a root for this run."""
    trust_local: bool = True
    """Whether plaintext peers on this machine are who they say, and get certificates."""
    domain: str = "cluster.local"
    namespace: str = "istio-system"
    """Where the control plane lives: the mesh's root namespace, unless its MeshConfig names another."""
    shutdown_seconds: float = 10.0
    debounce_after: float = 0.1
    debounce_max: float = 10.0
    sync_timeout: float | None = None
    """How long to wait for sources before serving with what there is; None: as long as it takes."""


@attrs.frozen
class Addresses:
    """Where it really listens, with the ports that 0 became; empty where a server is off."""

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

    def __init__(self, settings: Settings, state: State, addresses: Addresses, mcp: McpService) -> None:
        self.settings = settings
        self.mcp = mcp
        """The World served as a source of MCP."""
        self.state = state
        self.addresses = addresses
        self.health = Health()
        """gRPC's own health service, served beside xDS."""
        self._ready = trio.Event()

    def __repr__(self) -> str:
        waiting = self.state.not_ready()
        return f"<ControlPlane {self.addresses.grpc} {f'not ready: {waiting}' if waiting else 'ready'}>"

    async def wait_ready(self) -> None:
        """Until every source is in, or waiting for them was given up, and proxies are served."""
        await self._ready.wait()


@asynccontextmanager
async def control_plane(settings: Settings, *, more_sources: Sequence[Source] = ()) -> AsyncIterator[ControlPlane]:
    """Run a control plane for the length of the block; it is serving HTTP at once and xDS when it is ready.

    ``more_sources`` are sources beside those of the settings, which win over them.

    Leaving the block drains within ``shutdown_seconds``; being cancelled, or an exception, ends it at once. Either way
    no task, socket or file watch is left. Raises StartError.
    """
    _check(settings)
    sockets = await _open_sockets(settings)
    try:
        events, inbox = trio.open_memory_channel[Event](1000)
        sources = [*_sources(settings), *more_sources]
        world = World(
            domain=settings.domain,
            root_namespace=settings.namespace,
            short_names_in=_short_names_in(settings, sources),
        )
        for source in sources:
            world.expect(source.name)
        reducer = Reducer(world, debounce_after=settings.debounce_after, debounce_max=settings.debounce_max)
        changes = Changes(world)
        reducer.on_publish(changes.published)
        issuer = Issuer(_authority(settings), now=_now, advance=world.memo.advance)
        catalog = WorldCatalog(world, issuer)
        shelf = WorldShelf(world)
        mcp = McpService(shelf)
        if settings.serve_config:
            reducer.on_publish(lambda published: shelf.published(published.revision))
        xds = XdsServer(
            catalog,
            identifier=f"mesh-pilot {__version__}",
            admit=partial(_admit, world, Authentication(settings.trust_local)),
            generators={GENERATOR: partial(_serve_api, mcp)} if settings.serve_config else {},
        )
        reducer.on_publish(lambda published: xds.status.published(published.published_at))
        supervisors = [Supervisor(source, events) for source in sources]
        state = State(world, reducer, supervisors, catalog, changes, xds)
        plane = ControlPlane(settings, state, sockets.addresses(), mcp)
        stop_http = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reducer.run, inbox)
            for supervisor in supervisors:
                nursery.start_soon(supervisor.run)
            for app, listeners in ((debug_app(state), sockets.http), (monitoring_app(state), sockets.monitoring)):
                await nursery.start(partial(serve_http, app, listeners, stop_http, grace_seconds=HTTP_GRACE_SECONDS))
            nursery.start_soon(_look_after, catalog)
            nursery.start_soon(_renew, issuer)
            nursery.start_soon(_serve_when_synced, plane, sockets, nursery)
            yield plane
            await _drain(plane)
            stop_http.set()
            nursery.cancel_scope.cancel()
    finally:
        sockets.close()


async def _serve_when_synced(plane: ControlPlane, sockets: _Sockets, nursery: trio.Nursery) -> None:
    """Let proxies in once there is something true to tell them."""
    timeout = plane.settings.sync_timeout
    with trio.move_on_after(math.inf if timeout is None else timeout) as waiting:
        await plane.state.reducer.wait_synced()
    if waiting.cancelled_caught:
        plane.state.overdue = True
        log.warning("serving although sources have not synced in time", waiting_for=plane.state.unsynced())
    config = [plane.mcp] if plane.settings.serve_config else []
    services = with_reflection([*plane.state.xds.services(), *config, plane.health])
    await nursery.start(_serve_grpc, plane, services, sockets.grpc, None)
    if plane.settings.tls is not None:
        await nursery.start(_serve_grpc, plane, services, sockets.secure_grpc, server_tls(plane.settings.tls))
    log.info("ready", **attrs.asdict(plane.addresses))
    plane._ready.set()


async def _serve_grpc(
    plane: ControlPlane,
    services: Sequence[Service],
    listeners: list[trio.SocketListener],
    tls: TlsSource | None,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    async with trio.open_nursery() as nursery:
        server = await nursery.start(partial(serve, services, listeners, tls=tls))
        plane.state.rpc_servers.append(server)
        task_status.started()


async def _drain(plane: ControlPlane) -> None:
    """Send proxies elsewhere, and give what runs its time."""
    plane.state.draining = True
    seconds = plane.settings.shutdown_seconds
    log.info("draining", within_seconds=seconds)
    plane.health.set("", False)
    plane.state.xds.drain()
    plane.mcp.drain()
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for server in plane.state.rpc_servers:
                nursery.start_soon(server.drain, seconds - min(1.0, seconds / 2))


def _admit(world: World, rules: Authentication, proxy: Proxy, peer: Peer) -> Proxy:
    """A proxy with the identity that its connection gives it."""
    trust_domain = world.mesh.peek(()).trust_domain
    identity = rules.identity(proxy, trust_domain, address=peer.address, spiffe_ids=peer.spiffe_ids)
    if not identity:
        log.warning(
            "no certificate of the mesh for this proxy: nothing vouches for who it is; "
            "let it connect to --secure-grpc-addr with a certificate",
            proxy=proxy.id,
            peer=peer.address,
        )
    return attrs.evolve(proxy, identity=identity)


def _authority(settings: Settings) -> CertificateAuthority:
    """The CA of the operator's folder, or one for as long as this process lives."""
    if settings.ca_dir is None:
        return CertificateAuthority.ephemeral(AUTHORITY_NAME, _now())
    try:
        return CertificateAuthority.open(settings.ca_dir, AUTHORITY_NAME, _now())
    except AuthorityError as error:
        raise StartError(str(error)) from error


def _now() -> datetime:
    return datetime.now(UTC)


async def _renew(issuer: Issuer) -> None:
    """Give proxies new certificates before their old ones end."""
    while True:
        due = issuer.renew()
        seconds = RENEW_SECONDS if due is None else (due - _now()).total_seconds()
        await trio.sleep(min(max(seconds, 1.0), RENEW_SECONDS))


async def _look_after(catalog: WorldCatalog) -> None:
    """Let go of what was generated for proxies that are gone and have not come back; tell which patches fail."""
    reports = PatchReports(catalog)
    while True:
        await trio.sleep(TRIM_SECONDS)
        catalog.trim()
        reports.tell()


def _sources(settings: Settings) -> list[Source]:
    """The sources in the order in which they win."""
    files = (_text(settings.mesh_config), _text(settings.networks_config))
    sources: list[Source] = [mesh_source(*files, root_namespace=settings.namespace)]
    credentials = [str(settings.secrets_dir)] if settings.secrets_dir else []
    if settings.config_dirs or credentials:
        sources.append(file_source([str(folder) for folder in settings.config_dirs], credentials=credentials))
    if settings.consul:
        trust_domain = load_mesh_config(files[0]).trust_domain if files[0] else "cluster.local"
        sources += consul_sources(settings.consul, trust_domain)
    return [*sources, *_config_sources(settings)]


def _config_sources(settings: Settings) -> list[Source]:
    """The sources that mesh config and settings name. Raises StartError."""
    named = load_mesh_config(str(settings.mesh_config)).config_sources if settings.mesh_config else []
    configs = [*named, *(ConfigSource(address=address) for address in settings.mcp_servers)]
    identity = SinkIdentity(namespace=settings.namespace, domain=settings.domain)
    with _start_errors():
        sources = [source_of(config, identity) for config in configs]
        if settings.mcp_sink_addr:
            tls = server_tls(settings.tls) if settings.tls is not None else None
            sources.append(
                SinkServer(settings.mcp_sink_addr, identity.mcp_node(), tls=tls, root_namespace=settings.namespace)
            )
    twice = [name for name, count in Counter(source.name for source in sources).items() if count > 1]
    if twice:
        raise StartError(f"config source {twice[0]} is named twice")
    return sources


async def _serve_api(mcp: McpService, call: Replayed, peer: str, variant: Variant) -> None:
    """A stream on ADS for configuration."""
    if variant is Variant.SOTW:
        await mcp.serve_stream(call, peer, decode_sotw, encode_sotw)
    else:
        await mcp.serve_stream(call, peer, decode_delta, encode_delta)


def _short_names_in(settings: Settings, sources: Sequence[Source]) -> str:
    """The domain that bare names in Istio objects belong to; empty: that of their namespace's services."""
    wanted = settings.consul_short_names
    if wanted is None:
        wanted = not any(source.name.startswith("kubernetes") for source in sources)
    return f"service.{settings.consul[0].domain}" if settings.consul and wanted else ""


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _check(settings: Settings) -> None:
    """Raise StartError for what a source would wait for patiently, but which at start is a mistake."""
    for folder in (*settings.config_dirs, *filter(None, [settings.secrets_dir])):
        try:
            any(folder.iterdir())
        except OSError as error:
            raise StartError(f"cannot read the folder {folder}: {error.strerror}") from error
    with _start_errors():
        if settings.mesh_config is not None:
            load_mesh_config(str(settings.mesh_config))
        if settings.networks_config is not None:
            load_mesh_networks(str(settings.networks_config))
        if settings.tls is not None:
            server_tls(settings.tls)
        for datacenter in settings.consul:
            check_files(datacenter.agent)


async def _open_sockets(settings: Settings) -> _Sockets:
    """Listen everywhere; nothing stays open when one address can't be had."""
    sockets = _Sockets([], [], [], [])
    try:
        with _start_errors():
            sockets.grpc.extend(await open_listeners(settings.grpc_addr))
            if settings.tls is not None:
                sockets.secure_grpc.extend(await open_listeners(settings.secure_grpc_addr))
            sockets.http.extend(await open_listeners(settings.http_addr))
            sockets.monitoring.extend(await open_listeners(settings.monitoring_addr))
    except BaseException:
        sockets.close()
        raise
    return sockets


@contextmanager
def _start_errors() -> Iterator[None]:
    """Errors of the rooms below, which are one line already, as StartError."""
    try:
        yield
    except (ConfigError, ConfigSourceError, ConsulError, RpcError) as error:
        raise StartError(str(error)) from error
