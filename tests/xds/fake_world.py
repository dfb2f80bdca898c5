"""An engine small enough to trust: sets of resources in memory, with the contract of ``xds.ads.resources``."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView

from mesh_pilot.engine.snapshots import EMPTY, Selection, Snapshot, SnapshotStore, snapshot_of
from mesh_pilot.envoy.clusters.outbound import no_endpoints, placeholder
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import RESOURCE_TYPES, VIRTUAL_HOST, Resource, make_resource
from mesh_pilot.xds.ads.messages import Node

NODE = Node("sidecar~10.1.1.1~web-1.shop~shop.svc.cluster.local", {"GENERATOR": "test"}, version="1.40.0")


def node(number: int) -> Node:
    return Node(f"sidecar~10.1.{number // 250}.{number % 250 + 1}~web-{number}.shop~shop.svc.cluster.local")


class Walked(dict[str, Resource]):
    """A mapping that counts how often somebody walks through all of it."""

    walks = 0

    def __iter__(self) -> Iterator[str]:
        Walked.walks += 1
        return super().__iter__()

    def items(self) -> ItemsView[str, Resource]:
        Walked.walks += 1
        return super().items()

    def values(self) -> ValuesView[Resource]:
        Walked.walks += 1
        return super().values()

    def keys(self) -> KeysView[str]:
        Walked.walks += 1
        return super().keys()


class FakeSet:
    """The resources of one type, and a count of what readers cost."""

    def __init__(self, type_url: str, world: FakeWorld) -> None:
        self.type_url = type_url
        self._world = world
        self._snapshot = EMPTY
        self.on_demand: dict[str, Resource] = {}
        """By name only: no wildcard gives them."""
        self.coming: set[str] = set()
        """Names that do not exist yet but will."""
        self._selections: dict[frozenset[str], Selection] = {}
        self.ever_written = False
        self.gets = 0

    def snapshot(self) -> Snapshot:
        self._world.fresh(self.type_url)
        return self._snapshot

    def select(self, names: frozenset[str]) -> Snapshot:
        store, table = self._world.snapshots, self.snapshot()
        if self.on_demand:
            table = store.edit(table, [r for name, r in self.on_demand.items() if name not in table.entries])
        return self._selections.setdefault(names, Selection(store)).of(table, names)

    def awaited(self) -> frozenset[str]:
        return frozenset(name for name in self.coming if name not in self._snapshot.entries)

    def work(self, names: frozenset[str]) -> Iterator[None]:
        return iter(())

    def all(self) -> Mapping[str, Resource]:
        return self._snapshot.entries

    def get(self, name: str) -> Resource | None:
        self.gets += 1
        return self._snapshot.entries.get(name) or self.on_demand.get(name)

    def write(self, name: str, resource: Resource | None, *, on_demand: bool = False) -> None:
        self.ever_written = True
        target = self.on_demand if on_demand else Walked(self._snapshot.entries)
        if resource is None:
            target.pop(name, None)
        else:
            target[name] = resource
        if isinstance(target, Walked):
            digest = snapshot_of(target.values()).digest
            history = self._snapshot.history_with(frozenset((name,)))
            self._snapshot = self._world.snapshots.add(Snapshot(digest, target, history))

    def forget_history(self) -> None:
        self._snapshot = Snapshot(self._snapshot.digest, self._snapshot.entries)

    def copy(self) -> FakeSet:
        """The same resources as another set, as after a change of scope."""
        twin = FakeSet(self.type_url, self._world)
        twin._snapshot, twin.on_demand, twin.ever_written = self._snapshot, self.on_demand, self.ever_written
        twin.forget_history()
        return twin


class FakeWorld:
    """The world and its catalog. All proxies share its sets."""

    def __init__(self) -> None:
        self.snapshots = SnapshotStore()
        self.sets = {type_url: FakeSet(type_url, self) for type_url in RESOURCE_TYPES}
        self.open_resources: list[FakeResources] = []

    def open(
        self, proxy: Proxy, wake: Callable[[str], None], requested: Callable[[str], frozenset[str]]
    ) -> FakeResources:
        opened = FakeResources(self, wake)
        self.open_resources.append(opened)
        return opened

    def placeholder_cluster(self, name: str) -> Resource:
        return placeholder(name)

    def no_endpoints(self, cluster: str) -> Resource:
        return no_endpoints(cluster)

    def put(
        self, type_url: str, name: str, text: str = "", *, configs: tuple[ConfigKey, ...] = (), on_demand: bool = False
    ) -> Resource:
        resource = make_resource(name, type_url, (text or name).encode(), configs)
        self.sets[type_url].write(name, resource, on_demand=on_demand)
        self._wake(type_url)
        return resource

    def remove(self, type_url: str, name: str) -> None:
        self.sets[type_url].write(name, None)
        self._wake(type_url)

    def replace_set(self, type_url: str) -> None:
        """The scope of the proxies changed: they get another set."""
        self.sets[type_url] = self.sets[type_url].copy()
        self._wake("")

    def fresh(self, type_url: str) -> None:
        for resources in self.open_resources:
            resources.woken -= {type_url, ""}

    def _wake(self, type_url: str) -> None:
        for resources in self.open_resources:
            resources.wake_once(type_url)


class FakeResources:
    def __init__(self, world: FakeWorld, wake: Callable[[str], None]) -> None:
        self._world = world
        self._wake = wake
        self.woken: set[str] = set()
        """The types that were read by nobody since they changed."""
        self.closed = False

    is_known = True

    def set(self, type_url: str) -> FakeSet | None:
        """Virtual hosts are served only where there are any."""
        found = self._world.sets.get(type_url)
        return None if found is None or (type_url == VIRTUAL_HOST and not found.ever_written) else found

    def explained(self, held: Mapping[str, Resource], *_: object) -> Mapping[str, Resource]:
        return held

    def wake_once(self, type_url: str) -> None:
        if type_url not in self.woken:
            self.woken.add(type_url)
            self._wake(type_url)

    def close(self) -> None:
        self.closed = True
        self._world.open_resources.remove(self)
