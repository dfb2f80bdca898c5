"""The state over restarts, assembled: the store is opened, the World restored from it, and its recorder run."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
import trio

from mesh_pilot.app.settings import Settings
from mesh_pilot.sources.base import Placed, Seeded, Source
from mesh_pilot.state.recorder import Recorder
from mesh_pilot.state.store import StateError, Store
from mesh_pilot.world import Reducer, World

log = structlog.get_logger(scope="state")


async def restore(settings: Settings, sources: Sequence[Source], world: World, reducer: Reducer) -> Recorder | None:
    """Put the pictures of the last run in force.

    Returns the recorder to run; None without a state folder, or with one that cannot be used, which is logged.
    """
    if settings.state is None:
        return None
    places = {source.name: source.place for source in sources if isinstance(source, Placed)}
    try:
        store = await trio.to_thread.run_sync(Store.open, settings.state, places)
    except StateError as error:
        log.error("state is not kept in this run", reason=str(error))
        return None
    pictures = await trio.to_thread.run_sync(store.pictures)
    by_name = {source.name: source for source in sources}
    for picture in pictures:
        source = by_name[picture.source]
        if isinstance(source, Seeded):
            source.seed(picture.items)
    if pictures:
        world.revision = max(0, store.revision - 1)
        reducer.restore([(picture.source, picture.items, picture.confirmed_at) for picture in pictures])
    recorder = Recorder(store, world)
    reducer.on_publish(recorder.published)
    return recorder
