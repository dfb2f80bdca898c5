"""A World whose hosts have owners, as the reducer's gates give them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from mesh_pilot.model.events import Delete, Event, Item, Synced, Upsert
from mesh_pilot.world import World
from mesh_pilot.world.host_admission import HostAdmission
from mesh_pilot.world.host_ownership import SOURCE as OWNERS
from mesh_pilot.world.host_ownership import HostOwnership
from mesh_pilot.world.intake import Intake
from mesh_pilot.world.shared_order import Orders
from mesh_pilot.world.world import Revision
from tests.support.worlds import SOURCE, configs

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class OwnedWorld:
    """Applies events as the reducer does. Its clock stands still but for ``pass_time``."""

    def __init__(
        self,
        text: str = "",
        *,
        kept: Iterable[Item] = (),
        objects: Iterable[Item] = (),
        shared: Orders | None = None,
    ) -> None:
        """``text`` and ``objects`` are seen together at the start; ``kept``: the owners of an earlier run; ``shared``:
        those that replicas share."""
        self.world = World()
        self.world.expect(SOURCE)
        self.now = BEGIN
        self._intake = Intake(self.world, guard=None)
        self._door = HostAdmission(self.world)
        self.quarantine = HostOwnership(self.world, is_synced=lambda: not self.world.unsynced(), now=lambda: self.now)
        kept = [*kept]
        self.quarantine.seed(kept)
        every = [*configs(text), *objects]
        # The pictures of an earlier run are in force before anything is said: nothing in them is new.
        self.world.apply([*(Upsert(SOURCE, item) for item in every), *(Upsert(OWNERS, item) for item in kept)])
        if shared is not None:
            self.quarantine.take(shared)
            self.apply([])
            assert self.quarantine.orders() is None
        self.apply([Synced(SOURCE)])

    def apply(self, events: Iterable[Event]) -> Revision:
        revision = self.world.apply(self.quarantine.admit(self._door.admit(self._intake.admit(events, 0.0))).events)
        self.quarantine.revised()
        if self.quarantine._pending:  # what the keeper's task wakes the reducer for
            revision = self.world.apply(self.quarantine.admit(self._intake.admit([], 0.0)).events)
        return revision

    def put(self, text: str) -> None:
        """Objects come or change, in one revision."""
        self.apply([Upsert(SOURCE, config) for config in configs(text)])

    def remove(self, *keys: tuple[str, str, str]) -> None:
        self.apply([Delete(SOURCE, ("config", *key)) for key in keys])

    def pass_time(self, **spans: float) -> None:
        self.now += timedelta(**spans)

    def owners(self) -> list[Item]:
        """The items that say who owns what."""
        return [*self.world.items_of(OWNERS).values()]

    def restarted(self) -> OwnedWorld:
        """The World after a restart with state."""
        again = OwnedWorld(kept=self.owners(), objects=self.world.items_of(SOURCE).values())
        again.now = self.now
        return again
