"""An engine small enough to trust: sets of resources in memory, with the contract of ``xds.sets``."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Set, ValuesView

from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import TYPES, VIRTUAL_HOST, Resource, make_resource
from mesh_pilot.xds.messages import Node

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
    """The resources of one type, a log of what was touched, and a count of what readers cost."""

    def __init__(self, type_url: str, world: FakeWorld) -> None:
        self.type_url = type_url
        self._world = world
        self._resources = Walked()
        self.on_demand: dict[str, Resource] = {}
        """By name only: no wildcard gives them."""
        self._log: list[tuple[int, str]] = []
        self._log_from = world.revision
        self._revision = world.revision
        self.gets = 0

    @property
    def parts(self) -> tuple[FakeSet, ...]:
        return (self,)

    def refresh(self) -> int:
        self._world.fresh()
        return self._revision

    def work(self, names: frozenset[str]) -> Iterator[None]:
        return iter(())

    def all(self) -> Mapping[str, Resource]:
        return self._resources

    def get(self, name: str) -> Resource | None:
        self.gets += 1
        return self._resources.get(name) or self.on_demand.get(name)

    def touched_since(self, revision: int) -> Set[str] | None:
        if revision < self._log_from:
            return None
        return {name for at, name in self._log if at > revision}

    def write(self, name: str, resource: Resource | None, *, on_demand: bool = False) -> None:
        target = self.on_demand if on_demand else Walked(self._resources)
        if resource is None:
            target.pop(name, None)
        else:
            target[name] = resource
        if isinstance(target, Walked):
            self._resources = target
        self._revision = self._world.advance()
        self._log.append((self._revision, name))

    def forget_log(self) -> None:
        self._log_from = self._revision + 1
        self._log.clear()

    @property
    def ever_written(self) -> bool:
        return self._revision > 1

    def copy(self) -> FakeSet:
        """The same resources as another set, as after a change of scope."""
        twin = FakeSet(self.type_url, self._world)
        twin._resources, twin.on_demand = self._resources, self.on_demand
        twin._revision = twin._log_from = self._world.advance()
        return twin


class FakeWorld:
    """The world and its catalog. All proxies share its sets."""

    def __init__(self) -> None:
        self.revision = 1
        self.sets = {type_url: FakeSet(type_url, self) for type_url in TYPES}
        self.open_resources: list[FakeResources] = []

    def open(self, proxy: Proxy) -> FakeResources:
        opened = FakeResources(self)
        self.open_resources.append(opened)
        return opened

    def advance(self) -> int:
        self.revision += 1
        return self.revision

    def put(
        self, type_url: str, name: str, text: str = "", *, configs: tuple[ConfigKey, ...] = (), on_demand: bool = False
    ) -> Resource:
        resource = make_resource(name, type_url, (text or name).encode(), configs)
        self.sets[type_url].write(name, resource, on_demand=on_demand)
        self._wake()
        return resource

    def remove(self, type_url: str, name: str) -> None:
        self.sets[type_url].write(name, None)
        self._wake()

    def replace_set(self, type_url: str) -> None:
        """The scope of the proxies changed: they get another set."""
        self.sets[type_url] = self.sets[type_url].copy()
        self._wake()

    def fresh(self) -> None:
        for resources in self.open_resources:
            resources.woken = False

    def _wake(self) -> None:
        for resources in self.open_resources:
            resources.wake_once()


class FakeResources:
    def __init__(self, world: FakeWorld) -> None:
        self._world = world
        self._waker: Callable[[], None] = lambda: None
        self.woken = False
        self.closed = False

    def set(self, type_url: str) -> FakeSet | None:
        """Virtual hosts are served only where there are any."""
        found = self._world.sets.get(type_url)
        return None if found is None or (type_url == VIRTUAL_HOST and not found.ever_written) else found

    def watch(self, wake: Callable[[], None], wanted: Callable[[str], Set[str]]) -> None:
        self._waker = wake

    def wake_once(self) -> None:
        if not self.woken:
            self.woken = True
            self._waker()

    def close(self) -> None:
        self.closed = True
        self._world.open_resources.remove(self)
