"""A World with rollouts, quarantine, and clients that refuse whatever holds a mark: in one thread, without a clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from mesh_pilot.model.events import Event, Item, RolloutPlan, RolloutState
from mesh_pilot.safety.quarantine.controller import QuarantineController
from mesh_pilot.safety.rollout.controller import SOURCE as ROLLOUT
from mesh_pilot.safety.rollout.controller import RolloutController
from mesh_pilot.safety.rollout.progress import RolloutPhase
from mesh_pilot.traffic.table import TrafficTable
from mesh_pilot.world.intake import Intake
from tests.quarantine.fleet import Fleet, RefusingClient

_OBSERVED = frozenset(
    ("joining", "joined", "sent", "accepted", "refused", "warms", "is_interested", "settled", "trial_of", "left")
)


class _Keepers:
    """What a fleet takes for its keeper: answers go to rollouts, and from there to quarantine."""

    def __init__(self, rollouts: RolloutController, quarantine: QuarantineController) -> None:
        self._rollouts, self._quarantine = rollouts, quarantine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rollouts if name in _OBSERVED else self._quarantine, name)


class RolloutFleet(Fleet):
    """A fleet whose changes pass the gate of rollouts."""

    def __init__(self, always: RolloutPlan | None = None) -> None:
        super().__init__()
        self.table = TrafficTable(clock=lambda: self.time)
        quarantine = self.quarantine
        self.rollouts = RolloutController(self.world, quarantine, always, table=self.table, clock=lambda: self.time)
        self.quarantine = cast(QuarantineController, _Keepers(self.rollouts, quarantine))
        self.intake = Intake(self.world)

    def apply(self, *events: Event) -> None:
        admitted = self.rollouts.admit(self.intake.admit(events, self.time))
        revision = self.world.apply(admitted.events)
        self.rollouts.revised(revision.changed)
        self.quarantine.revised(revision.changed)

    def step(self) -> bool:
        happened = super().step()
        return self.carry_on() or happened

    def carry_on(self) -> bool:
        """As the keeper's task does; True if there was anything to do."""
        for _ in self.rollouts.looking():
            pass
        self.rollouts.tick()
        if not self.rollouts._is_behind:
            return False
        self.apply(*self.rollouts._events())
        return True

    def arm(self, plan: RolloutPlan) -> None:
        self.rollouts.order(lambda progress: progress.arm(plan, self.time), "start")
        self.settle()

    def later(self, seconds: float) -> None:
        """The same, so many seconds later."""
        self.time += seconds
        self.settle()

    @property
    def phase(self) -> RolloutPhase:
        return self.rollouts.progress.phase

    @property
    def state(self) -> RolloutState:
        state = self.rollouts.progress.state
        assert state is not None
        return state

    @property
    def reason(self) -> str:
        """Why the rollout was taken back."""
        return self.state.reason

    def canary(self) -> Sequence[RefusingClient]:
        return [client for client in self.clients if self.rollouts.progress.has_new(client.proxy.id)]

    def picture(self, source: str) -> tuple[Item, ...]:
        return tuple(self.world.items_of(source).values())


assert ROLLOUT
