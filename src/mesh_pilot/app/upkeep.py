"""Tasks that run next to serving: memory is given back, revoked callers are cut off, problems are reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from mesh_pilot.app.identity import Identities
from mesh_pilot.base.later import load
from mesh_pilot.net.rpc import Server
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.process.memory import MemoryRelease
from mesh_pilot.traffic.table import TrafficTable
from mesh_pilot.world import World
from mesh_pilot.xds.ads.server import XdsServer

if TYPE_CHECKING:
    from mesh_pilot.envoy.catalog.catalog import WorldCatalog
    from mesh_pilot.sources.mcp.sink_server import SinkServer

TRIM_SECONDS = 15.0
"""The interval at which resources of disconnected proxies are dropped: they stay for one to two intervals."""

REPORT_SECONDS = 60.0
"""The interval of reports on failures in proxies."""


async def look_after(
    catalog: WorldCatalog, xds: XdsServer, servers: Sequence[Server], traffic: TrafficTable | None = None
) -> None:
    """Drop what was made for proxies that are gone and have not come back, and release the memory that it took."""
    memory = MemoryRelease()
    while True:
        await trio.sleep(TRIM_SECONDS)
        freed = xds.trim()
        for forgotten in catalog.evict_idle_slowly():
            freed += forgotten
            await trio.lowlevel.checkpoint()
        if traffic is not None:
            traffic.forget()
        await memory.release(freed=freed, streams=max(xds.status.streams_ended, connections_ended(servers)))


async def end_revoked_connections(
    identities: Identities, servers: Sequence[Server], sink: SinkServer | None = None
) -> None:
    """End connections by certificates that have been revoked since they began."""
    while True:
        await identities.revocations.changed()
        of_sink = sink.server if sink is not None else None
        for server in (*servers, *([of_sink] if of_sink is not None else ())):
            await server.end_revoked(identities.is_revoked)


def connections_ended(servers: Sequence[Server]) -> int:
    """Connections that came and went. One without a stream, or without HTTP/2, leaves as much behind as any."""
    figures = [server.statistics() for server in servers]
    return sum(figure.connections_total - figure.connections_open for figure in figures)


async def report(world: World, catalog: WorldCatalog) -> None:
    """Log problems of connected proxies, and providers that cannot be used."""
    await trio.sleep(REPORT_SECONDS)
    await load("mesh_pilot.ops.observers.problem_log")
    from mesh_pilot.ops.observers.problem_log import ProblemLog

    problems = ProblemLog(catalog, world)
    while True:
        problems.log_new()
        await trio.sleep(REPORT_SECONDS)


async def look_for_causes(state: PlaneState) -> None:
    """Look for what is wrong now: from the first page that somebody wants, or from a minute after the start."""
    with trio.move_on_after(REPORT_SECONDS):
        await state.looked_at.wait()
    await load("mesh_pilot.ops.causes.now")
    from mesh_pilot.ops.causes.now import PlaneNow

    await PlaneNow.of(state).run()
