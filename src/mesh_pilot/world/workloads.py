"""WorkloadEntries as they count: merged with their WorkloadGroups, and with what was reported of their health."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from mesh_pilot.engine import Index
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.events import WorkloadHealth
from mesh_pilot.model.net import plain_address
from mesh_pilot.world.copying import Copied
from mesh_pilot.world.service_entries import from_template, group_of, is_auto_registered, may_join, with_health

Labels = Mapping[str, str]


class WorkloadTable(Copied):
    """Takes WorkloadEntries, WorkloadGroups and health; ``flush`` writes the index of entries by address.

    State: `_written`, the entries as their sources have them, and their keys `_at` each address and as `_members` of
    each group; `_groups` and `_health`; `_merged`, by namespace, what comes of these; `_stale`, the addresses to write.
    """

    def __init__(self, index: Index[str, tuple[Config, ...]], changed: Callable[[str, Sequence[Labels]], None]) -> None:
        """``changed`` is told of a namespace, and the labels that a workload of it had and has: who selects it is
        stale."""
        self._index = index
        self._changed = changed
        self._written: dict[ConfigKey, Config] = {}
        self._at: dict[str, dict[ConfigKey, None]] = defaultdict(dict)
        """Workloads by address, as it is usually written."""
        self._members: dict[ConfigKey, dict[ConfigKey, None]] = defaultdict(dict)
        self._groups: dict[ConfigKey, Config] = {}
        self._health: dict[ConfigKey, WorkloadHealth] = {}
        self._merged: dict[str, dict[ConfigKey, Config]] = defaultdict(dict)
        self._stale: dict[str, None] = {}

    def put(self, key: ConfigKey, workload: Config | None) -> None:
        """Add, replace or (None) remove a WorkloadEntry. It inherits from its WorkloadGroup."""
        written = self._written.pop(key, None)
        if written is not None:
            address, group = plain_address(written.spec.address), group_of(written)
            self._stale[address] = None
            del self._at[address][key]
            if not self._at[address]:
                del self._at[address]
            if group is not None:
                del self._members[group][key]
        if workload is not None:
            self._written[key] = workload
            self._at[plain_address(workload.spec.address)][key] = None
            if (group := group_of(workload)) is not None:
                self._members[group][key] = None
        self._merge(key)

    def put_health(self, key: ConfigKey, health: WorkloadHealth | None) -> bool:
        """Set what was reported of a WorkloadEntry. True if it is another state."""
        before = self._health.pop(key, None)
        if health is not None:
            self._health[key] = health
        if before == health:
            return False
        self._merge(key)
        return True

    def put_group(self, key: ConfigKey, group: Config | None) -> None:
        """Add, replace or (None) remove a WorkloadGroup, which touches its WorkloadEntries."""
        if group is None:
            self._groups.pop(key, None)
        else:
            self._groups[key] = group
        for member in self._members.get(key, ()):
            self._merge(member)

    def _merge(self, key: ConfigKey) -> None:
        merged, workloads = self._merged_workload(key), self._merged[key.namespace]
        before = workloads.pop(key, None)
        if merged is not None:
            workloads[key] = merged
        if key in self._written:
            self._stale[plain_address(self._written[key].spec.address)] = None
        self._changed(key.namespace, [each.spec.labels for each in (before, merged) if each is not None])

    def _merged_workload(self, key: ConfigKey) -> Config | None:
        written = self._written.get(key)
        if written is None:
            return None
        named, workload = group_of(written), written
        group = self._groups.get(named) if named is not None else None
        if group is not None:
            workload = from_template(written, group)
        if is_auto_registered(workload) and not may_join(written, group):
            return None
        health = self._health.get(key)
        return workload if health is None else with_health(workload, health.is_healthy)

    # -- reading

    def has_any(self, namespace: str) -> bool:
        """True if a namespace has any WorkloadEntry."""
        return bool(self._merged.get(namespace))

    def selected(self, namespace: str, selector: Labels) -> list[Config]:
        """The entries of a namespace that have these labels, oldest first."""
        wanted, workloads = selector.items(), self._merged.get(namespace, {}).values()
        found = (each for each in workloads if wanted <= each.spec.labels.items())
        return sorted(found, key=lambda each: each.order)

    def at(self, namespace: str, address: str) -> Iterable[Config]:
        """The entries of a namespace at an address."""
        merged = self._merged.get(namespace, {})
        return [merged[key] for key in self._at.get(address, ()) if key in merged]

    def auto_registered(self, address: str) -> Iterable[Config]:
        """The auto-registered entries at an address, as their source has them."""
        written = (self._written[key] for key in self._at.get(address, ()))
        return [config for config in written if is_auto_registered(config)]

    def flush(self) -> None:
        for address in self._stale:
            found = (self._merged[key.namespace].get(key) for key in self._at.get(address, ()))
            self._index[address] = tuple(sorted((e for e in found if e is not None), key=lambda each: each.order))
        self._stale.clear()
