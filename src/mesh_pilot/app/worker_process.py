"""The life of a worker other than the first: a control plane in a slot, from its fork to the end of its drain."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial

import trio

# Loaded before the fork, so that workers share the memory of both.
import mesh_pilot.app.other_worker
import mesh_pilot.envoy.catalog.generators  # noqa: F401
from mesh_pilot.app.control_plane import ControlPlane, control_plane
from mesh_pilot.app.settings import Settings
from mesh_pilot.replicas.workers.frames import Serving
from mesh_pilot.replicas.workers.slot import WorkerSlot
from mesh_pilot.replicas.workers.worker import Worker


async def run_worker(slot: WorkerSlot, settings: Settings, log_statistics: Callable[[ControlPlane], None]) -> None:
    """Serve proxies until the first worker says so or is gone, or SIGTERM comes; then drain. Raises StartError."""
    # Open until the drain is over: the signal comes to all processes of a service, and to some of them twice.
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            async with control_plane(settings, slot=slot) as plane:
                state = plane.state
                worker = Worker(slot, state.reducer, state.trust, plane.answer, partial(log_statistics, plane))
                nursery.start_soon(worker.follow)
                nursery.start_soon(worker.end_on_signal, signals)
                await plane.wait_ready()
                slot.link.put(Serving(os.getpid()))
                await worker.over.wait()
            nursery.cancel_scope.cancel()
