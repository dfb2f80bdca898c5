"""Instances of a service that get no traffic, with their registry's reason: no endpoint says so."""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.model.service import Service
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.sources.base.contract import LeavesOut


def left_out(state: PlaneState, service: Service) -> Iterator[str]:
    """A line for each: which, where, in what state, and why."""
    for supervisor in state.supervisors:
        if isinstance(supervisor.source, LeavesOut):
            yield from supervisor.source.left_out(service.host)
    for each in state.world.unlisted_endpoints(service.key):
        which = f"{each.workload} on {each.node}" if each.node else each.workload or "an address"
        yield f"{which}, {each.address}:{each.port}: its Pod is not ready, or it terminates"
