"""The task that writes what the World becomes. It is told of each revision, and writes when it gets to it."""

from __future__ import annotations

from mesh_pilot.state.store import Store
from mesh_pilot.world import World
from mesh_pilot.world.reducer import Published


class Recorder:
    """Writes revisions into a store, off the reducer's path.

    State: the keys that have changed since the last write, by source; whether writing works, and since when not.
    """

    def __init__(self, store: Store, world: World) -> None:
        raise NotImplementedError

    def published(self, published: Published) -> None:
        """A revision of the World: for `Reducer.on_publish`."""

    async def run(self) -> None:
        """Write until cancelled; what is left is written then, within `seconds`."""
