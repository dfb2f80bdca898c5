"""A worker other than the first: a control plane without sources, whose World follows that of the first worker."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence

import structlog
import trio

from mesh_pilot.app.control_plane import ControlPlane, control_plane
from mesh_pilot.app.settings import Settings
from mesh_pilot.identity.trust.bundles import TrustStore
from mesh_pilot.replicas.workers.frames import Applied, Drain, LogStatistics, Roots, Serving
from mesh_pilot.replicas.workers.link import Link
from mesh_pilot.replicas.workers.seat import Seat, listeners
from mesh_pilot.world import World

log = structlog.get_logger(scope="bootstrap")

LogNow = Callable[[ControlPlane], None]
"""Logs statistics."""


async def run_worker(
    number: int,
    world: World,
    settings: Settings,
    link_socket: socket.socket,
    grpc: Sequence[socket.socket],
    secure_grpc: Sequence[socket.socket],
    http: str,
    log_statistics: LogNow,
) -> None:
    """Serve proxies until the first worker says so or is gone, or SIGTERM comes; then drain."""
    link = Link(link_socket)
    seat = Seat(number, world, link, listeners(grpc), listeners(secure_grpc), http)
    # Open until the drain is over: the signal comes to all processes of a service, and to some of them twice.
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            async with control_plane(settings, seat=seat) as plane:
                worker = Worker(plane, seat, log_statistics)
                nursery.start_soon(worker.follow)
                nursery.start_soon(worker.end_on_signal, signals)
                await plane.wait_ready()
                link.put(Serving(os.getpid()))
                await worker.over.wait()
            nursery.cancel_scope.cancel()


class Worker:
    """The tasks of a worker besides serving proxies. State: whether it is to end."""

    def __init__(self, plane: ControlPlane, seat: Seat, log_statistics: LogNow) -> None:
        self.over = trio.Event()
        self._plane = plane
        self._link = seat.link
        self._told = seat.told
        self._log_statistics = log_statistics

    def __repr__(self) -> str:
        return f"<Worker{' ends' if self.over.is_set() else ''}>"

    async def follow(self) -> None:
        """Do as the first worker says, until it is gone."""
        await self._link.run(self._take, self._plane.answer)
        if not self.over.is_set():
            log.warning("the first worker is gone, this one ends", reason=self._link.reason or "its socket is closed")
        self.over.set()
        self._told.set()

    async def end_on_signal(self, signals: AsyncIterator[int]) -> None:
        async for _ in signals:
            self._link.put(Drain())
            self.over.set()

    def _take(self, message: object) -> None:
        match message:
            case Applied(revision=revision, events=events):
                shift = trio.current_time() - time.monotonic()
                self._plane.state.reducer.replay(
                    events, revision, message.first_event_at + shift, message.published_at + shift
                )
            case Roots():
                take_roots(self._plane.state.trust, message)
                self._told.set()
            case LogStatistics():
                self._log_statistics(self._plane)
            case Drain():
                self.over.set()
            case _:
                log.error("a message to a worker is not understood", kind=type(message).__name__)


def take_roots(trust: TrustStore, found: Roots) -> None:
    """Trust what the first worker does."""
    trust.set_domains(found.domains)
    trust.replace_foreign(found.bundles)
