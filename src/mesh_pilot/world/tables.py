"""Writes the indexes of one layer, the World or an overlay of it, from the merged items of all sources."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import attrs

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.engine.failures import INDEXES, OwnFailures
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.events import Endpoints, Item, MeshConfigValue, WorkloadHealth
from mesh_pilot.model.modules import ModuleRef
from mesh_pilot.model.service import Service, ServiceKey
from mesh_pilot.world.configs import ConfigTable
from mesh_pilot.world.copying import Copied
from mesh_pilot.world.gateway_api import KINDS, GatewayApiTable
from mesh_pilot.world.indexes import Indexes
from mesh_pilot.world.services import ServiceTable
from mesh_pilot.world.shards import shard_bits_for

Key = tuple[str, ...]


@attrs.frozen
class _CellKind:
    """A kind of item that is one cell of an index: of several sources' the first counts."""

    index: str
    """The name of the index in ``Indexes``."""
    at: Callable[[Key], Hashable]
    value: Callable[[Any], object] = lambda item: item


_CELLS: Mapping[str, _CellKind] = {
    "addresses": _CellKind("host_addresses", lambda key: key[1], lambda item: item.addresses),
    "challenges": _CellKind("challenges", lambda key: (), lambda item: item.answers),
    "extension": _CellKind("extensions_in_force", lambda key: ConfigKey(*key[1:])),
    "keys": _CellKind("key_sets", lambda key: key[1:], lambda item: item.keys),
    "module": _CellKind("modules", lambda key: ModuleRef(key[1], key[2], (key[3], key[4]))),
    "networks": _CellKind("networks", lambda key: (), lambda item: item.networks),
    "owners": _CellKind(
        "host_owners", lambda key: key[1:], lambda item: tuple((c.namespace, c.to) for c in item.order)
    ),
    "quarantine": _CellKind("withheld", lambda key: key[1], lambda item: item.withheld),
    "rollout": _CellKind("rollout", lambda key: ()),
    "secret": _CellKind("secrets", lambda key: key[1:]),
}
"""Cells by the beginning of item keys (``item_key``). Other kinds have tables, which know what follows from them."""


class Tables(Copied):
    """The tables behind the indexes of a layer. ``write`` takes items one by one; then call ``flush``."""

    def __init__(self, indexes: Indexes, failed: OwnFailures) -> None:
        """``failed`` takes internal errors, by item key or by table."""
        self.indexes = indexes
        self._failed = failed
        self.gateway_api = GatewayApiTable(indexes, self.isolated, lambda key, config: self.configs.put(key, config))
        self.services = ServiceTable(indexes, self.isolated, self.gateway_api.touch)
        self.configs = ConfigTable(indexes, self.services)

    def copy(self, indexes: Indexes, failed: OwnFailures) -> Tables:
        """Tables in the same state, flushed, for a copy of the indexes."""
        copied = Tables(indexes, failed)
        self.copy_to(copied)
        return copied

    def write(self, key: Key, items: list[Item]) -> bool:
        """Write one key from its versions in all sources, the one that wins first. True if its merged value changed."""
        # Registries' items are merged, so that all versions count; of all others the first one does.
        kind, first = key[0], items[0] if items else None
        if kind in _CELLS:
            return self._write_cell(_CELLS[kind], key, first)
        match kind:
            case "config":
                written = next((i for i in items if isinstance(i, Config) and not i.made_from), first)
                assert written is None or isinstance(written, Config)
                return self._put_config(ConfigKey(*key[1:]), written)
            case "service":
                services = [item for item in items if isinstance(item, Service)]
                return self.services.registries.put_services(ServiceKey(*key[1:]), services)
            case "endpoints":
                sets = [item for item in items if isinstance(item, Endpoints)]
                return self.services.registries.put_endpoints(ServiceKey(*key[1:]), sets)
            case "health":
                assert first is None or isinstance(first, WorkloadHealth)
                return self.services.workloads.put_health(ConfigKey("WorkloadEntry", *key[1:]), first)
        assert first is None or isinstance(first, MeshConfigValue)
        return self._set_mesh(first.config if first else self.indexes.default_mesh)

    def _write_cell(self, cell: _CellKind, key: Key, item: Item | None) -> bool:
        index, at = getattr(self.indexes, cell.index), cell.at(key)
        before = index.peek(at)
        if item is None:
            del index[at]
        else:
            index[at] = cell.value(item)
        self.gateway_api.touch(key)  # a status may say whether a Secret is there
        return bool(before != index.peek(at))

    def flush(self) -> None:
        """Write the indexes that the last writes made stale."""
        self._flush(self.configs, self.services)
        if self.gateway_api.conversions.is_stale:
            self._flush(self.gateway_api, self.configs)

    def _flush(self, *tables: ConfigTable | ServiceTable | GatewayApiTable) -> None:
        for table in tables:
            with self.isolated(type(table).__name__, INDEXES, "over configs and services"):
                table.flush()

    def _put_config(self, key: ConfigKey, config: Config | None) -> bool:
        """Put a config that users wrote, or (None) that they removed, in force."""
        if config is None:
            config = self.gateway_api.made.get(key)
        if not self.configs.put(key, config):
            return False
        if key.kind in KINDS:
            self.gateway_api.put_object(key, config)
        self.gateway_api.touch(("config", key))
        return True

    def isolated(self, key: Hashable, kind: str, name: str) -> AbstractContextManager[None]:
        """A block whose internal error costs the object or index at hand and never the reducer."""
        return self._failed.contained(key, kind, name)

    def shard_bits(self) -> int:
        """The number of shards, as ``shards`` counts it, for the current number of hosts."""
        hosts = max(self.services.count(), self.configs.count_virtual_services())
        return shard_bits_for(hosts, self.indexes.shard_bits.peek(()))

    def reshard(self, bits: int) -> None:
        """Distribute hosts over so many shards."""
        if self.indexes.shard_bits.peek(()) != bits:
            self.indexes.shard_bits[()] = bits
            self.configs.reshard()
            self.services.reshard()

    def _set_mesh(self, mesh: MeshConfig) -> bool:
        before = self.indexes.mesh.peek(())
        if before == mesh:
            return False
        self.indexes.mesh[()] = mesh
        self.configs.mesh_changed(before, mesh)
        self.services.mesh_changed(before, mesh)
        self.gateway_api.touch(("mesh",))
        return True
