"""A running control plane: it serves proxies once its sources have synced, until it drains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING

import attrs
import structlog
import trio

from mesh_pilot.app.settings import Settings
from mesh_pilot.app.sockets import Sockets
from mesh_pilot.model.bounds import Bounds
from mesh_pilot.net.http.server import HttpServer
from mesh_pilot.net.rpc import HealthService, Servable, TlsSource, connection_shares, serve, with_reflection
from mesh_pilot.net.rpc.server import NOT_GRPC
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.replicas.registration.registrar import Registrar
from mesh_pilot.replicas.workers.questions import Answer

if TYPE_CHECKING:
    from mesh_pilot.replicas.workers.slot import WorkerSlot
    from mesh_pilot.replicas.workers.supervisor import WorkerSupervisor

log = structlog.get_logger(scope="bootstrap")

HTTP_GRACE_SECONDS = 0.5
"""The grace period of HTTP requests at the end of the drain."""


class ControlPlane:
    """A running control plane. State: that of its parts, and how far its start or end has come."""

    def __init__(
        self,
        settings: Settings,
        state: PlaneState,
        sockets: Sockets,
        answer: Answer,
        *,
        registrar: Registrar | None = None,
        workers: WorkerSupervisor | None = None,
        slot: WorkerSlot | None = None,
    ) -> None:
        self.settings = settings
        self.state = state
        self.sockets = sockets
        self.addresses = sockets.addresses() if slot is None else attrs.evolve(sockets.addresses(), http=slot.http)
        self.answer = answer
        """Answers the questions of other workers."""
        self.registrar = registrar
        """The registrar of this control plane; None in workers other than the first."""
        self.workers = workers
        """The other workers; None if there are none, or this is not the first."""
        self.slot = slot
        """The place of another worker than the first; None: this is the first."""
        self.health = HealthService()
        """gRPC's own health service."""
        self.connections = connection_shares(settings.grpc_limits)
        """The shares of the connections to all gRPC ports."""
        self.pages_over = trio.Event()
        """Set when the drain is over: people's requests end, too."""
        self._ready = trio.Event()

    def __repr__(self) -> str:
        waiting = self.state.not_ready()
        return f"<ControlPlane {self.addresses.grpc} {f'not ready: {waiting}' if waiting else 'ready'}>"

    async def wait_ready(self) -> None:
        """Wait until every source has synced, or the wait for them is over, and proxies are served."""
        await self._ready.wait()


async def serve_when_synced(plane: ControlPlane, tls: TlsSource) -> None:
    """Serve proxies once the sources have synced, or the wait for them is over."""
    if plane.slot is None:
        await _wait_for_sources(plane)
    else:
        await plane.slot.told.wait()
    if plane.workers is not None:
        await plane.workers.begin()
    config = [plane.state.mcp] if plane.settings.serve_config is not False else []
    reports = [plane.state.reports] if plane.state.reports is not None else []
    served = [*plane.state.xds.services(), *reports, plane.state.callers.certificates, *config, plane.health]
    services = with_reflection(served, resources.files("mesh_pilot.api").joinpath("descriptors.pb").read_bytes)
    async with trio.open_nursery() as nursery:
        await nursery.start(_serve_grpc, plane, services, plane.sockets.grpc, None)
        await nursery.start(_serve_grpc, plane, services, plane.sockets.secure_grpc, tls)
        addresses = attrs.asdict(plane.addresses)
        log.info("ready", **{name: where for name, where in addresses.items() if where or name != "webhooks"})
        plane._ready.set()


async def serve_port(plane: ControlPlane, server: HttpServer, listeners: Sequence[trio.SocketListener]) -> None:
    """Answer people until the drain is over."""
    await server.serve(listeners, plane.pages_over, grace_seconds=HTTP_GRACE_SECONDS)


async def _wait_for_sources(plane: ControlPlane) -> None:
    timeout = plane.settings.sync_timeout
    with trio.move_on_after(math.inf if timeout is None else timeout) as waiting:
        await plane.state.reducer.wait_synced()
    if waiting.cancelled_caught:
        plane.state.progress.is_overdue = True
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
        start = partial(serve, services, listeners, tls=tls, limits=limits, not_grpc=not_grpc, shares=plane.connections)
        server = await nursery.start(start)
        plane.state.rpc_servers.append(server)
        task_status.started()


def _message_size(bounds: Bounds) -> dict[str, int]:
    """The limit that refuses a request by its head, before it is received."""
    return {"max_message_size": bounds.max_request_bytes} if bounds.max_request_bytes else {}


async def drain(plane: ControlPlane) -> None:
    """Send proxies elsewhere, and let calls end within the drain time."""
    plane.state.progress.is_draining = True
    plane.state.election.resign()
    seconds = plane.settings.shutdown_seconds
    log.info("draining", within_seconds=seconds)
    plane.health.set("", False)
    if plane.registrar is not None:
        plane.registrar.retire()
    plane.state.xds.drain()
    plane.state.mcp.drain()
    if plane.state.reports is not None:
        plane.state.reports.drain()
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            if plane.workers is not None:
                nursery.start_soon(plane.workers.drain)
            for server in plane.state.rpc_servers:
                nursery.start_soon(server.drain, seconds - min(1.0, seconds / 2))
    plane.pages_over.set()
