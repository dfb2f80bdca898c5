"""The state over restarts, assembled: the store is opened, the World restored from it, and its recorder run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import structlog
import trio

from mesh_pilot.app.settings import Settings
from mesh_pilot.safety.state.database import StateError, StateFault
from mesh_pilot.safety.state.reader import HistoryError, HistoryReader
from mesh_pilot.safety.state.recorder import Recorded, Recorder
from mesh_pilot.safety.state.store import Store
from mesh_pilot.sources.base.contract import Placed, Seeded
from mesh_pilot.world import Reducer, World
from mesh_pilot.xds.ads.known_proxies import MAX_GONE, GoneProxy

log = structlog.get_logger(scope="state")


async def past_proxies(recorder: Recorder | None) -> dict[str, GoneProxy]:
    """The proxies that the history knows, by node id; before the recorder runs. The ones that were connected when the
    last run ended count as gone since now: that they are back will show."""
    if recorder is None or recorder.history is None:
        return {}
    folder, now = recorder.store.settings.folder, datetime.now(UTC)

    def read() -> dict[str, GoneProxy]:
        with HistoryReader.open(folder) as history:
            return {
                each.proxy.id: GoneProxy(each.proxy, now if each.is_connected else each.seen, each.revision)
                for each in history.proxies()[:MAX_GONE]
            }

    try:
        return await trio.to_thread.run_sync(read)
    except HistoryError:  # the first run, or an unreadable file, of which the log tells
        return {}


async def restore(settings: Settings, sources: Sequence[Recorded], world: World, reducer: Reducer) -> Recorder | None:
    """Put the pictures of the last run in force. Returns the recorder to run; None without a state folder."""
    if settings.state is None:
        return None
    places = {source.name: source.place for source in sources if isinstance(source, Placed)}
    if unknown := sorted(settings.state.max_ages.keys() - places.keys()):
        log.warning("--state-max-age names sources that have no picture", sources=unknown, known=sorted(places))
    store = Store(settings.state, places)
    recorder = Recorder(store, world, reducer, sources)
    reducer.on_publish(recorder.published)
    try:
        pictures = await trio.to_thread.run_sync(store.pictures)
    except StateError as error:
        recorder.unusable(error)
        if not isinstance(error, StateFault):
            return recorder
        try:
            pictures = await trio.to_thread.run_sync(store.pictures_of_copy)
        except StateError:  # there is no file, or it is unreadable: that was said
            return recorder
    by_name = {source.name: source for source in sources}
    now = datetime.now(UTC)
    for picture in pictures:
        source = by_name[picture.source]
        if isinstance(source, Seeded):
            source.seed(picture.items)
        age = round((now - picture.confirmed_at).total_seconds())
        if picture.items:
            log.info("last picture restored", source=picture.source, items=len(picture.items), age_seconds=age)
    world.revision = store.revision
    reducer.restore([(picture.source, picture.items, picture.confirmed_at) for picture in pictures])
    return recorder
