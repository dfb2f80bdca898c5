"""The keeper of the memory of traffic, for a worker."""

from __future__ import annotations

from collections.abc import Mapping

from mesh_pilot.app.serving import ControlPlane
from mesh_pilot.replicas.workers.questions import MinutesQuestion
from mesh_pilot.replicas.workers.supervisor import WorkerSupervisor
from mesh_pilot.traffic.keeper import Ask, TrafficKeeper
from mesh_pilot.traffic.memory import MeshTraffic


def keeper_of(plane: ControlPlane, traffic: MeshTraffic) -> TrafficKeeper:
    """The keeper of a worker: the first keeps all minutes, in the folder of the state if there is one."""
    state = plane.settings.state
    return TrafficKeeper(
        traffic,
        state.folder if state is not None else None,
        ask=_asks(plane.workers) if plane.workers is not None else None,
        leads=plane.slot is None,
    )


def _asks(others: WorkerSupervisor) -> Ask:
    async def ask(had: Mapping[str, int]) -> Mapping[int, object]:
        return await others.ask(MinutesQuestion(had))

    return ask
