"""The World: the items of all sources, merged, in the indexes that translators read. The reducer alone writes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import attrs
import structlog

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig, MeshNetworks
from mesh_pilot.config.mesh import ROOT_NAMESPACE
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.events import (
    Accepted,
    Delete,
    Endpoints,
    Event,
    Item,
    KeySet,
    MeshConfigValue,
    MeshNetworksValue,
    Rejected,
    Replace,
    Secret,
    Synced,
    Upsert,
    item_key,
)
from mesh_pilot.model.service import Service, ServiceKey
from mesh_pilot.world.configs import ConfigTable
from mesh_pilot.world.indexes import Indexes
from mesh_pilot.world.services import ServiceTable
from mesh_pilot.world.shards import shard_bits_for
from mesh_pilot.world.view import View

log = structlog.get_logger(scope="world")

Key = tuple[str, ...]

COLLECTED_AT_ONCE = 10_000
"""The most unused derived values that are dropped after a revision. To drop all that a large change leaves would delay
its pushes: the rest is dropped after the next revision, or when the catalog evicts idle sets."""


@attrs.frozen
class Revision:
    """One published state of the World."""

    number: int
    changed: frozenset[Key]
    """Item keys (see ``item_key``) whose merged value changed."""
    events: int
    """The number of events applied."""


@attrs.frozen
class WorldStatistics:
    revision: int
    services: int
    endpoints: int
    configs: dict[str, int]
    """Configs by kind."""
    rejected: int
    """Objects that are rejected now."""
    failures: int
    """Internal errors while applying objects, since the start."""


class World(Indexes):
    """The indexes, and the sources' items that they are made of.

    ``apply`` takes events. Reads go through ``view`` (tracked) or the indexes' ``peek``.
    """

    def __init__(
        self, *, domain: str = "cluster.local", root_namespace: str = ROOT_NAMESPACE, short_names_in: str = ""
    ) -> None:
        """``root_namespace`` applies while no source sends a MeshConfig.

        ``short_names_in``: the DNS domain that short host names belong to, such as ``service.consul`` (then
        ``reviews.service`` is short as well); empty: the services of the namespace of the config that names them.
        """
        super().__init__(domain, root_namespace, short_names_in)
        self.view = View(self)
        self.memo.view = self.view
        self.revision = 0
        self._items: dict[str, dict[Key, Item]] = {}
        """By source."""
        self._synced: set[str] = set()
        self._failures = 0
        self._rejected: dict[tuple[str, str | Key], Rejected] = {}
        self._service_table = ServiceTable(self)
        self._config_table = ConfigTable(self, self._service_table)

    # -- sources

    def expect(self, source: str) -> None:
        """Announce a source of events. Of two sources with the same object, the one announced first wins."""
        self._items.setdefault(source, {})

    def unsynced(self) -> tuple[str, ...]:
        """Expected sources whose initial sync is not complete."""
        return tuple(s for s in self._items if s not in self._synced)

    def rejections(self) -> tuple[Rejected, ...]:
        """Objects that are rejected now, with reasons, sorted by source and origin."""
        return tuple(sorted(self._rejected.values(), key=lambda r: (r.source, str(r.origin))))

    def mesh_settings(self) -> tuple[MeshConfigValue | MeshNetworksValue, ...]:
        """The mesh-wide settings in force, as their sources sent them."""
        found: list[MeshConfigValue | MeshNetworksValue] = []
        for key in (("mesh",), ("networks",)):
            item = next((items[key] for items in self._items.values() if key in items), None)
            if isinstance(item, (MeshConfigValue, MeshNetworksValue)):
                found.append(item)
        return tuple(found)

    def items_of(self, source: str) -> dict[Key, Item]:
        """The current items of a source, by item key."""
        return dict(self._items.get(source, {}))

    def item_of(self, source: str, key: Key) -> Item | None:
        """The current item of a source with this key."""
        return self._items.get(source, {}).get(key)

    def sources(self) -> tuple[str, ...]:
        return tuple(self._items)

    # -- writing

    def apply(self, events: Iterable[Event]) -> Revision:
        """Apply events in order, and update every index. Derived values are not computed here."""
        touched: dict[Key, None] = {}
        count = 0
        for event in events:
            count += 1
            self._take(event, touched)
        changed = self._publish(touched)
        if changed:
            self.revision += 1
        self.memo.collect(COLLECTED_AT_ONCE)
        return Revision(self.revision, frozenset(changed), count)

    def statistics(self) -> WorldStatistics:
        return WorldStatistics(
            revision=self.revision,
            services=len(self.services),
            endpoints=sum(len(e) for _, e in self.endpoints.items()),
            configs=self._config_table.counts(),
            rejected=len(self._rejected),
            failures=self._failures,
        )

    def _take(self, event: Event, touched: dict[Key, None]) -> None:
        items = self._items.setdefault(event.source, {})
        match event:
            case Upsert(item=item):
                key = item_key(item)
                items[key] = item
                touched[key] = None
                self._rejected.pop((event.source, key), None)
            case Delete(key=key):
                self._rejected.pop((event.source, key), None)
                if items.pop(key, None) is not None:
                    touched[key] = None
            case Replace(collection=collection, items=replacements):
                new = {item_key(i): i for i in replacements}
                removed = [k for k in items if k[: len(collection)] == collection and k not in new]
                for key in removed:
                    del items[key]
                    touched[key] = None
                for key, item in new.items():
                    items[key] = item
                    touched[key] = None
                for slot in list(self._rejected):
                    replaced = not collection or (
                        isinstance(slot[1], tuple) and slot[1][: len(collection)] == collection
                    )
                    if slot[0] == event.source and replaced:
                        del self._rejected[slot]
            case Synced(source=source):
                self._synced.add(source)
            case Rejected():
                self._rejected[(event.source, event.key or event.origin.location)] = event
            case Accepted(source=source, location=location):
                for slot, rejected in list(self._rejected.items()):
                    if slot[0] == source and rejected.origin.location == location:
                        del self._rejected[slot]

    def _publish(self, touched: Iterable[Key]) -> set[Key]:
        """Write the merged value of every touched key. The keys whose value changed."""
        changed: set[Key] = set()
        for key in sorted(touched, key=_mesh_first):
            found = [items[key] for items in self._items.values() if key in items]
            with self._isolated("internal error in one object; all others are applied", key=key):
                if self._write(key, found):
                    changed.add(key)
        self._reshard()
        for table in (self._config_table, self._service_table):
            with self._isolated("internal error in indexes; they keep their last values"):
                table.flush()
        return changed

    def _reshard(self) -> None:
        """Set the number of shards for the current number of hosts."""
        before = self.shard_bits.peek(())
        hosts = max(self._service_table.count(), self._config_table.count_virtual_services())
        self.shard_bits[()] = shard_bits_for(hosts, before)
        if self.shard_bits.peek(()) != before:
            for table in (self._config_table, self._service_table):
                table.reshard()

    @contextmanager
    def _isolated(self, message: str, **context: object) -> Iterator[None]:
        """Log an internal error, which costs the object or index at hand and never the reducer."""
        try:
            yield
        except Exception as error:
            self._failures += 1
            log.error(message, exc_info=error, **context)

    def _write(self, key: Key, items: list[Item]) -> bool:
        first = items[0] if items else None
        match key[0]:
            case "config":
                assert first is None or isinstance(first, Config)
                return self._config_table.put(ConfigKey(*key[1:]), first)
            case "service":
                return self._service_table.put_services(
                    ServiceKey(*key[1:]), [i for i in items if isinstance(i, Service)]
                )
            case "endpoints":
                return self._service_table.put_endpoints(
                    ServiceKey(*key[1:]), [i for i in items if isinstance(i, Endpoints)]
                )
            case "secret":
                assert first is None or isinstance(first, Secret)
                before = self.secrets.peek((key[1], key[2]))
                self.secrets[(key[1], key[2])] = first
                return before != first
            case "keys":
                assert first is None or isinstance(first, KeySet)
                known = self.key_sets.peek((key[1], key[2]))
                self.key_sets[(key[1], key[2])] = first.keys if first else ""
                return known != self.key_sets.peek((key[1], key[2]))
            case "networks":
                assert first is None or isinstance(first, MeshNetworksValue)
                return self._set_networks(first.networks if first else MeshNetworks())
            case _:
                assert first is None or isinstance(first, MeshConfigValue)
                return self._set_mesh(first.config if first else self.default_mesh)

    def _set_networks(self, networks: MeshNetworks) -> bool:
        before = self.networks.peek(())
        self.networks[()] = networks
        return bool(before != networks)

    def _set_mesh(self, mesh: MeshConfig) -> bool:
        before = self.mesh.peek(())
        if before == mesh:
            return False
        self.mesh[()] = mesh
        self._config_table.mesh_changed(before, mesh)
        self._service_table.mesh_changed(before, mesh)
        return True


def _mesh_first(key: Key) -> tuple[bool, Key]:
    """Sort key: the mesh's settings come first, because they decide how the rest is read."""
    return (key[0] not in ("mesh", "networks"), key)
