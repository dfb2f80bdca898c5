"""The World: the items of all sources, merged, in the indexes that translators read. The reducer alone writes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from itertools import chain

import attrs

from mesh_pilot.engine import Memo
from mesh_pilot.engine.failures import INDEXES, OBJECT, Failures, OwnFailures
from mesh_pilot.istio.reading.mesh import ROOT_NAMESPACE
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import (
    Delete,
    Event,
    Item,
    MeshConfigValue,
    MeshNetworksValue,
    Rejected,
    Replace,
    Secret,
    SourceAdded,
    SourceRemoved,
    Synced,
    Upsert,
    item_key,
)
from mesh_pilot.model.service import Endpoint, ServiceKey
from mesh_pilot.world.claims import claims_at, contested_places
from mesh_pilot.world.history import History
from mesh_pilot.world.indexes import Indexes
from mesh_pilot.world.overlays import Overlays, mesh_first
from mesh_pilot.world.rejections import StandingRejections
from mesh_pilot.world.tables import Key, Tables
from mesh_pilot.world.view import View

_NOT_IN_HISTORY = ("challenges", "endpoints", "quarantine", "rollout", "owners")
"""Kinds of items whose changes are not remembered."""

SECRET_ITEM = "secret"
"""Begins the keys of credentials."""

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
    statuses: frozenset[ConfigKey] = frozenset()
    """Objects of the Gateway API whose status is another one now (see ``World.object_status``)."""


@attrs.frozen
class WorldStatistics:
    revision: int
    services: int
    endpoints: int
    not_ready: int
    """Endpoints that are not healthy."""
    configs: dict[str, int]
    """Configs by kind, without those that were made of the Gateway API's objects."""
    rejected: int
    """Objects that are rejected now."""
    failures: int
    """Internal errors while applying objects, since the start."""


class World(Indexes):
    """The indexes, and the sources' items that they are made of.

    ``apply`` takes events. Reads go through ``view`` (tracked) or the indexes' ``peek``.
    """

    def __init__(
        self,
        *,
        domain: str = "cluster.local",
        root_namespace: str = ROOT_NAMESPACE,
        short_names_in: str = "",
        cluster_id: str = "",
    ) -> None:
        """``root_namespace`` applies while no source sends a MeshConfig.

        ``short_names_in``: the DNS domain that short host names belong to, such as ``service.consul`` (then
        ``reviews.service`` is short as well); empty: the services of the namespace of the config that names them.

        ``cluster_id``: the cluster of the control plane, to which endpoints of ServiceEntries belong.
        """
        self.settings = {
            "domain": domain,
            "root_namespace": root_namespace,
            "short_names_in": short_names_in,
            "cluster_id": cluster_id,
        }
        """The arguments, by name: they decide how objects are read."""
        self.memo = Memo()
        super().__init__(self.memo, domain, root_namespace, short_names_in, cluster_id)
        self.view = View(self)
        self.memo.view = self.view
        self.revision = 0
        self._items: dict[str, dict[Key, Item]] = {}
        """Items by source."""
        self._synced: set[str] = set()
        self.failed = Failures()
        """The register of internal errors, also those of what is made of the World."""
        self._rejected: dict[str, StandingRejections] = {}
        """Rejections by source."""
        self._tables = Tables(self, OwnFailures(self.failed))
        self.history = History()
        # Questions that one table can answer are its methods: the World has many callers, and one writer.
        tables = self._tables
        self.workload_entries = tables.services.workloads.at
        self.auto_registered = tables.services.workloads.auto_registered
        self.object_status = tables.gateway_api.statuses.by_object.get
        self.object_statuses = tables.gateway_api.statuses.by_object.copy
        self.made_of = tables.gateway_api.made.of
        self.claims_at = partial(claims_at, tables=tables)
        self.contested_places = partial(contested_places, tables)
        self.overlays = Overlays(self.memo, self._tables, self.current, self.failed)
        self.overlay_of = self.overlays.overlay_of
        self.withheld_from = self.overlays.withheld_from
        self.old_values = self.overlays.old_values
        self.values_in_force = self.overlays.values_in_force
        self.follow_domains = self.overlays.follow
        self.unfollow_domains = self.overlays.unfollow

    # -- sources

    def expect(self, source: str) -> None:
        """Announce a source of events. Of two sources with the same object, the one announced first wins."""
        self._items.setdefault(source, {})

    def unsynced(self) -> tuple[str, ...]:
        """Expected sources whose initial sync is not complete."""
        return tuple(s for s in self._items if s not in self._synced)

    def rejections(self) -> tuple[Rejected, ...]:
        """Objects that are rejected now, with reasons, sorted by source and origin."""
        return tuple(
            sorted(
                chain.from_iterable(r.all() for r in self._rejected.values()), key=lambda r: (r.source, str(r.origin))
            )
        )

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
        touched: dict[Key, tuple[Item, ...]] = {}
        taken = 0
        for event in events:
            taken += 1
            self._take(event, touched)
        changed = self._publish(touched)
        if changed:
            self.revision += 1
        self.memo.collect(COLLECTED_AT_ONCE)
        return Revision(self.revision, frozenset(changed), taken, self._tables.gateway_api.statuses.take_changed())

    def follow(self, events: Iterable[Event], revision: int) -> Revision:
        """Apply what came to be this revision in another World, or a part of it: it has that number here as well."""
        self.revision = revision - 1
        applied = self.apply(events)
        self.revision = revision
        return attrs.evolve(applied, number=revision)

    def unlisted_endpoints(self, key: ServiceKey) -> tuple[Endpoint, ...]:
        """The endpoints of a service that its registry knows and clients are not told of."""
        return self._tables.services.endpoints.unlisted(key)

    def statistics(self) -> WorldStatistics:
        return WorldStatistics(
            revision=self.revision,
            services=len(self.services),
            endpoints=sum(len(e) for _, e in self.endpoints.items()),
            not_ready=self._tables.services.endpoints.not_ready,
            configs=dict(Counter(self._tables.configs.counts()) - self._tables.gateway_api.made.count_in_force()),
            rejected=sum(map(len, self._rejected.values())),
            failures=self.failed.total[OBJECT] + self.failed.total[INDEXES],
        )

    def _take(self, event: Event, touched: dict[Key, tuple[Item, ...]]) -> None:
        items = self._items.setdefault(event.source, {})
        match event:
            case Upsert(item=item):
                key = item_key(item)
                self._touch(key, touched)
                items[key] = item
            case Delete(key=key):
                if key in items:
                    self._touch(key, touched)
                    del items[key]
            case Replace(collection=collection, items=replacements):
                new = {item_key(i): i for i in replacements}
                removed = [k for k in items if k[: len(collection)] == collection and k not in new]
                for key in removed:
                    self._touch(key, touched)
                    del items[key]
                for key, item in new.items():
                    self._touch(key, touched)
                    items[key] = item
            case Synced(source=source):
                self._synced.add(source)
            case SourceAdded(source=source):
                self._rank(source, event.after)
                self._synced.add(source)
            case SourceRemoved(source=source):
                for key in items:
                    self._touch(key, touched)
                del self._items[source]
                self._synced.discard(source)
                self._rejected.pop(source, None)
                return
        if isinstance(event, Rejected):
            self._rejected.setdefault(event.source, StandingRejections())
        if event.source in self._rejected:
            for subject in self._rejected[event.source].take(event):
                if subject in items and subject[0] == SECRET_ITEM:  # it is outdated, or is no longer
                    assert isinstance(subject, tuple)
                    self._touch(subject, touched)

    def _rank(self, source: str, after: Collection[str]) -> None:
        """Give a source its rank: right behind the last of those named."""
        names = [name for name in self._items if name != source]
        place = max((number for number, name in enumerate(names, 1) if name in after), default=len(names))
        names.insert(place, source)
        self._items = {name: self._items[name] for name in names}

    def _touch(self, key: Key, touched: dict[Key, tuple[Item, ...]]) -> None:
        """An item is about to change: remember its value before these events."""
        if key not in touched:
            touched[key] = tuple(self.current(key))

    def current(self, key: Key) -> list[Item]:
        """An item as all sources have it, the one that wins first."""
        return [items[key] for items in self._items.values() if key in items]

    def _as_served(self, key: Key) -> list[Item]:
        """The same; a credential whose present version is refused says so."""
        if key[0] != SECRET_ITEM or not self._rejected:
            return self.current(key)
        found: list[Item] = []
        for source, items in self._items.items():
            item = items.get(key)
            if item is None:
                continue
            rejected = self._rejected.get(source)
            is_outdated = rejected is not None and rejected.refuses(key)
            found.append(attrs.evolve(item, is_outdated=True) if is_outdated and isinstance(item, Secret) else item)
        return found

    def _publish(self, touched: Mapping[Key, tuple[Item, ...]]) -> set[Key]:
        """Write the merged value of every touched key. The keys whose value changed."""
        changed: set[Key] = set()
        for key in sorted(touched, key=mesh_first):
            found = self._as_served(key)
            with self._tables.isolated(key, OBJECT, "/".join(key[1:]) or key[0]):
                if self._tables.write(key, found):
                    changed.add(key)
                    if key[0] not in _NOT_IN_HISTORY:
                        self.history.add(self.revision + 1, key, touched[key])
            self.overlays.write(key, found)
        self._tables.reshard(self._tables.shard_bits())
        self._tables.flush()
        self.overlays.publish(changed)
        return changed
