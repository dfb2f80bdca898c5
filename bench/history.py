"""The cost of the history, in this process: a burst of endpoint changes, written with and without it.

    python -m bench.history --services 1000 --clients 100

Two planes without sockets take the same burst in turns. Both write the state; one also keeps the history, and counts
what the streams are sent. CPU seconds of this thread, medians. Compare with the burst of ``python -m bench run``.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import attrs

from bench.mesh import Mesh
from mesh_pilot.istio.reading import yaml
from mesh_pilot.istio.reading.decode import decode_document
from mesh_pilot.model.config import Config, ConfigError, Origin
from mesh_pilot.model.events import Replace, Synced, Upsert
from mesh_pilot.safety.state.revision_log import NO_HISTORY, RevisionLog
from mesh_pilot.safety.state.settings import StateSettings
from mesh_pilot.safety.state.store import Batch, Store
from mesh_pilot.world import World
from mesh_pilot.world.intake import Intake
from mesh_pilot.world.reducer import Published
from mesh_pilot.xds.ads.revisions import Revisions

SOURCE = "files"


def decoded(files: Mapping[str, str]) -> list[Config]:
    """The objects of a mesh's files."""
    found = []
    for name, text in files.items():
        for document in yaml.load(text, Origin(SOURCE, name)):
            assert not isinstance(document, ConfigError)
            found.append(decode_document(document, origin=Origin(SOURCE, name), default_namespace="default"))
    return found


@attrs.define
class Spent:
    """CPU seconds of a burst, by what they went into."""

    writing: list[float] = attrs.Factory(list)
    counting: list[float] = attrs.Factory(list)


class Plane:
    """What of a control plane writes the state, with or without history."""

    def __init__(self, folder: Path, clients: int, *, has_history: bool) -> None:
        self.world = World()
        self.world.expect(SOURCE)
        self.intake = Intake(self.world)
        self.store = Store(StateSettings(folder=folder), {SOURCE: "bench"})
        self.store.pictures()
        self.log = RevisionLog(self.world.settings) if has_history else None
        self.revisions = Revisions()
        self.followers = [self.revisions.follow() for _ in range(clients)]
        for follower in self.followers:
            follower.settled(0.0)
        self.now = 0.0
        self.spent = Spent()

    def publish(self, *events: Replace | Upsert | Synced) -> None:
        """A revision, written and counted."""
        self.now += 60.0
        admitted = self.intake.admit(events, self.now)
        published = Published(self.world.apply(admitted.events), self.now, self.now, admitted.changes)
        whole = frozenset({SOURCE}) - self.store.current
        keys = self.world.items_of(SOURCE) if whole else dict.fromkeys(change.key for change in admitted.changes)
        items = [(SOURCE, key, self.world.item_of(SOURCE, key)) for key in keys]
        self.spent.counting.append(_cpu(lambda: self._count(published)) if self.log is not None else 0.0)
        self.spent.writing.append(_cpu(lambda: self._write(published, items, whole)))

    def _count(self, published: Published) -> None:
        for follower in self.followers:
            follower.woken()
        self.revisions.published(published.revision.number, self.now)
        for follower in self.followers:
            follower.noted()
            follower.sent(1000)
            follower.accepted("endpoints")
            follower.settled(self.now)

    def _write(self, published: Published, items: list[tuple[str, tuple[str, ...], object]], whole: object) -> None:
        history = NO_HISTORY
        if self.log is not None:
            self.log.published(published)
            history = attrs.evolve(self.log.take(self.now), outcomes=self.revisions.take())
        confirmed = {SOURCE: datetime.now(UTC)}
        self.store.write(Batch(published.revision.number, items, confirmed, whole, history))  # type: ignore[arg-type]


def _cpu(work: Callable[[], None]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--endpoints", type=int, default=5)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--bursts", type=int, default=21)
    options = parser.parse_args()
    mesh = Mesh(services=options.services, endpoints=options.endpoints, virtual_services=options.services)
    before = decoded(mesh.files())
    edits = [[Upsert(SOURCE, item) for item in edited(mesh, edit)] for edit in (1, 2)]
    with tempfile.TemporaryDirectory() as name:
        planes = [Plane(Path(name) / str(has), options.clients, has_history=has) for has in (False, True)]
        for plane in planes:
            plane.publish(Replace(SOURCE, (), tuple(before)), Synced(SOURCE))
            plane.spent = Spent()
        for burst in range(options.bursts):
            for plane in planes[:: 1 if burst % 2 else -1]:
                plane.publish(*edits[burst % 2])
        plain, kept = (statistics.median(plane.spent.writing) for plane in planes)
        counted = statistics.median(planes[1].spent.counting)
        for plane in planes:
            plane.store.close()
    print(f"burst of {len(edits[0])}, {options.clients} clients, median of {options.bursts}, CPU in ms:")
    print(f"  write the state, without history   {plain * 1e3:6.1f}")
    print(f"  write the state and the history    {kept * 1e3:6.1f}")
    print(f"  count what clients are sent        {counted * 1e3:6.1f}")
    print(f"  the history in all                 {(kept - plain + counted) * 1e3:6.1f}")


def edited(mesh: Mesh, edit: int) -> list[Config]:
    """All services but the first, with other endpoints."""
    return decoded({str(number): mesh.service_file(group, edit) for number, group in enumerate(mesh.groups())})


if __name__ == "__main__":
    main()
