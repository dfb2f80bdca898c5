"""A worker other than the first, built: its World follows that of the first, and it has neither sources nor pages."""

from __future__ import annotations

from mesh_pilot.app.core import Core, core_of, election_of, reducer_of, serve_debug_types
from mesh_pilot.app.identity import open_identities
from mesh_pilot.app.serving import ControlPlane
from mesh_pilot.app.settings import Settings
from mesh_pilot.app.sockets import shared_sockets
from mesh_pilot.ops.app import debug_app
from mesh_pilot.ops.plane.state import PlaneProgress
from mesh_pilot.ops.workers import about_this_worker
from mesh_pilot.replicas.workers.effects import telling_effects
from mesh_pilot.replicas.workers.slot import WorkerSlot
from mesh_pilot.world.intake import Intake


async def other_worker(settings: Settings, slot: WorkerSlot) -> tuple[ControlPlane, Core]:
    """Build a worker that has this slot. Raises StartError."""
    sockets, world = shared_sockets(slot), slot.world
    identities = await open_identities(settings, world, [sockets.addresses().secure_grpc])
    reducer = reducer_of(settings, world, Intake(world), follows=True)
    core = core_of(settings, sockets.addresses(), identities, world, reducer, slot.link.put, leads=False)
    state = core.state(election_of(settings, sockets.addresses()), PlaneProgress())
    answer = telling_effects(about_this_worker(state, debug_app(state)), core.xds.status)
    serve_debug_types(settings, core, slot.link.ask)
    return ControlPlane(settings, state, sockets, answer, slot=slot), core
