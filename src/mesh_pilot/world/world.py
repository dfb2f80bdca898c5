"""The World: what every source said, merged, under the indexes that translators read. One writer: the reducer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import attrs
import structlog

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig, MeshNetworks
from mesh_pilot.config.mesh import ROOT_NAMESPACE, default_mesh
from mesh_pilot.incremental import Index, Memo
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
from mesh_pilot.model.service import Endpoint, Service, ServiceKey
from mesh_pilot.world.buckets import bits_for
from mesh_pilot.world.configs import ConfigTable
from mesh_pilot.world.names import full_host, registry_host
from mesh_pilot.world.services import ServiceTable
from mesh_pilot.world.view import Placed, View, VirtualServiceHead

log = structlog.get_logger(scope="world")

Key = tuple[str, ...]

COLLECTED_AT_ONCE = 10_000
"""Derived values that nobody needs any more that are forgotten after a revision; the rest waits for the next, or for
who trims the catalog. Forgetting all that a large change leaves would hold up its pushes."""


@attrs.frozen
class Revision:
    """One published state of the World."""

    number: int
    changed: frozenset[Key]
    """Item keys (see ``item_key``) whose merged value changed."""
    events: int
    """How many events it took in."""


@attrs.frozen
class WorldStatistics:
    revision: int
    services: int
    endpoints: int
    configs: dict[str, int]
    """Configs by kind."""
    rejected: int
    """Objects that are refused now."""
    failures: int
    """Errors of our own while taking objects in, since the start."""


class World:
    """State and indexes. ``apply`` takes events in; reads go through ``view`` (tracked) or the indexes' ``peek``."""

    def __init__(
        self, *, domain: str = "cluster.local", root_namespace: str = ROOT_NAMESPACE, short_names_in: str = ""
    ) -> None:
        """``root_namespace`` holds while no source sends a MeshConfig.

        ``short_names_in``: the DNS domain that bare names of hosts belong to, such as ``service.consul`` (then
        ``reviews.service`` is short as well); empty: that of the services of the namespace that wrote them.
        """
        self.domain = domain
        self._short_names_in = short_names_in
        self._default_mesh = default_mesh(root_namespace)
        self.memo = Memo()
        index = self.memo.index
        self.mesh: Index[tuple[()], MeshConfig] = index("mesh", self._default_mesh)
        self.networks: Index[tuple[()], MeshNetworks] = index("networks", MeshNetworks())
        self.config: Index[ConfigKey, Config | None] = index("config", None)
        self.configs_in: Index[tuple[str, str], tuple[Config, ...]] = index("configs_in", ())
        self.configs_of: Index[str, tuple[Config, ...]] = index("configs_of", ())
        self.virtual_services: Index[str, tuple[VirtualServiceHead, ...]] = index("virtual_services", ())
        self.destination_rules: Index[str, tuple[Config, ...]] = index("destination_rules", ())
        self.wildcard_rule_hosts: Index[tuple[()], tuple[str, ...]] = index("wildcard_rule_hosts", ())
        self.selected_labels: Index[tuple[()], frozenset[str]] = index("selected_labels", frozenset())
        self.services: Index[ServiceKey, Service | None] = index("services", None)
        self.services_named: Index[str, tuple[Service, ...]] = index("services_named", ())
        self.bits: Index[tuple[()], int] = index("bits", 0)
        """How finely hosts are parted in the lists of all, see ``buckets``."""
        self.services_exported: Index[tuple[str, int], tuple[Service, ...]] = index("services_exported", ())
        self.mesh_virtual_services: Index[int, tuple[VirtualServiceHead, ...]] = index("mesh_virtual_services", ())
        self.endpoints: Index[ServiceKey, tuple[Endpoint, ...]] = index("endpoints", ())
        self.endpoints_at: Index[str, tuple[Placed, ...]] = index("endpoints_at", ())
        self.secrets: Index[tuple[str, str], Secret | None] = index("secrets", None)
        self.credentials_named: Index[tuple[str, str], bool] = index("credentials_named", False)
        self.key_sets: Index[tuple[str, str], str] = index("key_sets", "")
        self.view = View(self)
        self.memo.view = self.view
        self.revision = 0
        self._held: dict[str, dict[Key, Item]] = {}
        self._synced: set[str] = set()
        self._failures = 0
        self._rejected: dict[tuple[str, str | Key], Rejected] = {}
        self._service_table = ServiceTable(self)
        self._config_table = ConfigTable(self, self._service_table)

    def full_host(self, host: str, namespace: str) -> str:
        """A host as written in a config of this namespace, made whole."""
        return full_host(self.registry_host(host), namespace, self.domain)

    def registry_host(self, host: str) -> str:
        """A host where short names are of one registry, made whole; as it is where they are not."""
        return registry_host(host, self._short_names_in)

    # -- sources

    def expect(self, source: str) -> None:
        """A source that will send events. Where two sources hold the same object, the one named first wins."""
        self._held.setdefault(source, {})

    def unsynced(self) -> tuple[str, ...]:
        """Expected sources whose first picture is not in yet."""
        return tuple(s for s in self._held if s not in self._synced)

    def rejections(self) -> tuple[Rejected, ...]:
        """Objects that are refused now, with reasons; in order of source and place."""
        return tuple(sorted(self._rejected.values(), key=lambda r: (r.source, str(r.origin))))

    def mesh_settings(self) -> tuple[MeshConfigValue | MeshNetworksValue, ...]:
        """The mesh-wide settings that are in force, as their sources sent them."""
        found: list[MeshConfigValue | MeshNetworksValue] = []
        for key in (("mesh",), ("networks",)):
            item = next((held[key] for held in self._held.values() if key in held), None)
            if isinstance(item, (MeshConfigValue, MeshNetworksValue)):
                found.append(item)
        return tuple(found)

    def held(self, source: str) -> dict[Key, Item]:
        """What one source says now, by item key."""
        return dict(self._held.get(source, {}))

    def held_by(self, source: str, key: Key) -> Item | None:
        """One item as a source says it now."""
        return self._held.get(source, {}).get(key)

    def sources(self) -> tuple[str, ...]:
        return tuple(self._held)

    # -- writing

    def apply(self, events: Iterable[Event]) -> Revision:
        """Take events in, in order, and bring every index up to date. Nothing derived is computed here."""
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
        held = self._held.setdefault(event.source, {})
        match event:
            case Upsert(item=item):
                key = item_key(item)
                held[key] = item
                touched[key] = None
                self._rejected.pop((event.source, key), None)
            case Delete(key=key):
                self._rejected.pop((event.source, key), None)
                if held.pop(key, None) is not None:
                    touched[key] = None
            case Replace(collection=collection, items=items):
                new = {item_key(i): i for i in items}
                gone = [k for k in held if k[: len(collection)] == collection and k not in new]
                for key in gone:
                    del held[key]
                    touched[key] = None
                for key, item in new.items():
                    held[key] = item
                    touched[key] = None
                for slot in list(self._rejected):
                    is_in_it = not collection or (
                        isinstance(slot[1], tuple) and slot[1][: len(collection)] == collection
                    )
                    if slot[0] == event.source and is_in_it:
                        del self._rejected[slot]
            case Synced(source=source):
                self._synced.add(source)
            case Rejected():
                self._rejected[(event.source, event.key or event.origin.location)] = event
            case Accepted(source=source, location=location):
                for where, rejected in list(self._rejected.items()):
                    if where[0] == source and rejected.origin.location == location:
                        del self._rejected[where]

    def _publish(self, touched: Iterable[Key]) -> set[Key]:
        """Write the merged value of every touched key; returns those that really changed."""
        changed: set[Key] = set()
        for key in sorted(touched, key=_mesh_first):
            items = [held[key] for held in self._held.values() if key in held]
            with self._sheltered("one object could not be taken in whole; everything else is", key=key):
                if self._write(key, items):
                    changed.add(key)
        self._part_hosts()
        for table in (self._config_table, self._service_table):
            with self._sheltered("some indexes could not be brought up to date; they stay as they were"):
                table.flush()
        return changed

    def _part_hosts(self) -> None:
        """As many buckets of hosts as the mesh needs by now."""
        before = self.bits.peek(())
        hosts = max(self._service_table.count(), self._config_table.count_virtual_services())
        self.bits[()] = bits_for(hosts, before)
        if self.bits.peek(()) != before:
            for table in (self._config_table, self._service_table):
                table.part_anew()

    @contextmanager
    def _sheltered(self, what: str, **context: object) -> Iterator[None]:
        """An error of ours costs what it is about, and never the reducer."""
        try:
            yield
        except Exception as error:
            self._failures += 1
            log.error(what, exc_info=error, **context)

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
                return self._set_mesh(first.config if first else self._default_mesh)

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
    """The mesh's settings decide how the rest is read."""
    return (key[0] not in ("mesh", "networks"), key)
