"""The control plane: everything built from settings and run in one tree of nurseries. Nothing else knows all parts.

    async with control_plane(Settings(config_dirs=(Path("config"),))) as plane:
        await plane.wait_ready()
        print(plane.addresses.grpc)

Each source has a task, in which its supervisor runs it, and says what it finds as events on one channel. At the other
end one task, the reducer, applies them to the World and publishes revisions. The xDS server has a task for each stream,
which sends what a revision changes for its proxy. All tasks are parts, listed below; who builds them is in
`first_worker`, `other_worker` and `core`.

With several workers, the first one has all parts, and the others only those of every worker: their reducers take the
revisions of the first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import trio

from mesh_pilot.app.core import Core
from mesh_pilot.app.first_worker import FirstWorker, first_worker
from mesh_pilot.app.orders import serve_orders
from mesh_pilot.app.parts import PlanePart, start
from mesh_pilot.app.serving import ControlPlane, drain, serve_port, serve_when_synced
from mesh_pilot.app.settings import Settings
from mesh_pilot.app.traffic_memory import keeper_of
from mesh_pilot.app.upkeep import end_revoked_connections, look_after, look_for_causes, report
from mesh_pilot.sources.base.contract import Source

if TYPE_CHECKING:
    from mesh_pilot.replicas.workers.slot import WorkerSlot
    from mesh_pilot.sources.mcp.sink_server import SinkServer

__all__ = ["ControlPlane", "control_plane"]


@asynccontextmanager
async def control_plane(
    settings: Settings, *, more_sources: Sequence[Source] = (), slot: WorkerSlot | None = None
) -> AsyncIterator[ControlPlane]:
    """Run a control plane for the length of the block; it is serving HTTP at once and xDS when it is ready.

    ``more_sources`` come after those of the settings, which win over them. ``slot``: this is another worker than the
    first, and has neither sources nor pages.

    Leaving the block drains within ``shutdown_seconds``; being cancelled, or an exception, ends it at once. Either way
    no task, socket or file watch is left. Raises StartError.
    """
    with ExitStack() as stack:
        if slot is None:
            plane, core, first = await first_worker(settings, more_sources, stack)
            parts = [*parts_of_the_first(plane, core, first), *parts_of_every_worker(plane, core, first.sink)]
        else:
            from mesh_pilot.app.other_worker import other_worker

            plane, core = await other_worker(settings, slot)
            parts = parts_of_every_worker(plane, core)
        async with trio.open_nursery() as nursery:
            start(parts, nursery)
            yield plane
            await drain(plane)
            nursery.cancel_scope.cancel()


def parts_of_every_worker(plane: ControlPlane, core: Core, sink: SinkServer | None = None) -> list[PlanePart]:
    """The parts that serve proxies. ``sink``: a source whose callers may be revoked, too."""
    servers = plane.state.rpc_servers
    table = core.traffic.table if core.traffic is not None else None
    parts = [
        PlanePart("reducer", partial(core.reducer.run, core.inbox)),
        PlanePart("proxies", partial(serve_when_synced, plane, core.identities.server_tls())),
        PlanePart("identities", core.identities.run),
        PlanePart("memory", partial(look_after, core.catalog, core.xds, servers, table), is_vital=False),
        PlanePart("reports", partial(report, core.world, core.catalog), is_vital=False),
        PlanePart("causes", partial(look_for_causes, plane.state), is_vital=False),
        PlanePart("revocations", partial(end_revoked_connections, core.identities, servers, sink), is_vital=False),
    ]
    if core.quarantine is not None:
        parts.append(PlanePart("quarantine", partial(core.quarantine.run, core.events)))
    if core.traffic is not None:
        parts.append(PlanePart("traffic memory", keeper_of(plane, core.traffic).run, is_vital=False))
    if core.traces is not None:
        parts.append(PlanePart("traces", core.traces.run, is_vital=False))
    return parts


def parts_of_the_first(plane: ControlPlane, core: Core, first: FirstWorker) -> list[PlanePart]:
    """The parts that feed the World, keep it, and answer people."""
    parts = [PlanePart(f"source {each.source.name}", each.run) for each in first.supervisors]
    parts += [PlanePart(name, partial(serve_port, plane, *port)) for name, port in first.ports.items()]
    parts += [
        PlanePart("owners", partial(first.owners.run, core.events)),
        PlanePart("election", first.election.run),
        PlanePart("orders", partial(serve_orders, plane.settings, plane.state, first.web)),
    ]
    if core.rollouts is not None:
        parts.append(PlanePart("rollouts", partial(core.rollouts.run, core.events)))
    if first.recorder is not None:
        parts.append(PlanePart("state", first.recorder.run, is_vital=False))
    if first.outcomes is not None:
        parts.append(PlanePart("outcomes", first.outcomes.run, is_vital=False))
    if first.shared_owners is not None:
        parts.append(PlanePart("owners that replicas share", first.shared_owners.run, is_vital=False))
    if first.metrics_push is not None:
        parts.append(PlanePart("metrics push", first.metrics_push.run, is_vital=False))
    if first.webhooks is not None:
        parts.append(PlanePart("webhooks", first.webhooks.run))
    if first.workers is not None:
        parts.append(PlanePart("workers", partial(first.workers.run, first.ask)))
    return parts
