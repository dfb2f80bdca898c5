"""Rollouts: objects that not all proxies have."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from mesh_pilot.model.counts import counted
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.safety.quarantine.verdicts import name_of
from mesh_pilot.safety.rollout.progress import RolloutPhase

ORDERS = "mesh-pilot rollout status"


def ready_lines(state: PlaneState) -> Iterator[str]:
    """A line of ``/ready`` while not all proxies have the same objects."""
    own = state.rollouts.progress.state if state.rollouts is not None else None
    if own is None or not own.changes or state.rollouts is None:
        return
    phase = state.rollouts.progress.phase
    if phase is RolloutPhase.TAKEN_BACK:
        yield f"rollout: {counted(len(own.changes), 'object')} taken back from all proxies; see {ORDERS}"
    else:
        objects = counted(len(own.changes), "object")
        yield f"rollout: {objects} at step {own.step + 1} of {len(own.plan.steps)}; see {ORDERS}"


@attrs.frozen
class TakenBack:
    """An object that a rollout has taken back from all proxies."""

    object: str
    where: str
    reason: str


def taken_back(state: PlaneState) -> list[TakenBack]:
    own = state.rollouts.progress.state if state.rollouts is not None else None
    return [TakenBack(name_of(each.key), each.origin, own.reason) for each in own.held] if own is not None else []
