"""Writes the indexes of one layer, the World or an overlay of it, from the merged items of all sources."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig, MeshNetworks
from mesh_pilot.failures import INDEXES, OwnFailures
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.events import (
    Endpoints,
    ExtensionInForce,
    HostOwners,
    Item,
    KeySet,
    MeshConfigValue,
    MeshNetworksValue,
    Quarantine,
    ResolvedHost,
    RolloutState,
    Secret,
    WasmModule,
    WorkloadHealth,
)
from mesh_pilot.model.modules import ModuleRef
from mesh_pilot.model.service import Service, ServiceKey
from mesh_pilot.world.configs import ConfigTable
from mesh_pilot.world.gateway_api import KINDS, GatewayApiTable
from mesh_pilot.world.indexes import Indexes
from mesh_pilot.world.services import ServiceTable
from mesh_pilot.world.shards import shard_bits_for

Key = tuple[str, ...]


class Tables:
    """The tables behind the indexes of a layer. ``write`` takes items one by one; then call ``flush``."""

    def __init__(self, indexes: Indexes, failed: OwnFailures) -> None:
        """``failed`` takes internal errors, by item key or by table."""
        self.indexes = indexes
        self._failed = failed
        self.gateway_api = GatewayApiTable(indexes, self.isolated, self._put_derived)
        self.services = ServiceTable(indexes, self.isolated, self.gateway_api.touch)
        self.configs = ConfigTable(indexes, self.services)

    def copy(self, indexes: Indexes, failed: OwnFailures) -> Tables:
        """Tables in the same state, flushed, for a copy of the indexes."""
        copied = Tables(indexes, failed)
        self.services.copy_to(copied.services)
        self.configs.copy_to(copied.configs)
        self.gateway_api.copy_to(copied.gateway_api)
        return copied

    def write(self, key: Key, items: list[Item]) -> bool:
        """Write one key from its versions in all sources, the one that wins first. True if its merged value changed."""
        indexes = self.indexes
        first = items[0] if items else None
        match key[0]:
            case "config":
                written = next((i for i in items if isinstance(i, Config) and not i.made_from), first)
                assert written is None or isinstance(written, Config)
                return self._put_config(ConfigKey(*key[1:]), written)
            case "service":
                return self.services.put_services(ServiceKey(*key[1:]), [i for i in items if isinstance(i, Service)])
            case "endpoints":
                return self.services.put_endpoints(ServiceKey(*key[1:]), [i for i in items if isinstance(i, Endpoints)])
            case "secret":
                assert first is None or isinstance(first, Secret)
                before = indexes.secrets.peek((key[1], key[2]))
                indexes.secrets[(key[1], key[2])] = first
                self.gateway_api.touch(key)
                return before != first
            case "keys":
                assert first is None or isinstance(first, KeySet)
                known = indexes.key_sets.peek((key[1], key[2]))
                indexes.key_sets[(key[1], key[2])] = first.keys if first else ""
                return known != indexes.key_sets.peek((key[1], key[2]))
            case "addresses":
                assert first is None or isinstance(first, ResolvedHost)
                resolved = indexes.host_addresses.peek(key[1])
                indexes.host_addresses[key[1]] = first.addresses if first else ()
                return resolved != indexes.host_addresses.peek(key[1])
            case "module":
                assert first is None or isinstance(first, WasmModule)
                ref = ModuleRef(key[1], key[2], (key[3], key[4]))
                module = indexes.modules.peek(ref)
                indexes.modules[ref] = first
                return module != first
            case "extension":
                assert first is None or isinstance(first, ExtensionInForce)
                in_force = indexes.extensions_in_force.peek(ConfigKey(*key[1:]))
                indexes.extensions_in_force[ConfigKey(*key[1:])] = first
                return in_force != first
            case "health":
                assert first is None or isinstance(first, WorkloadHealth)
                return self.services.put_health(ConfigKey("WorkloadEntry", key[1], key[2]), first)
            case "networks":
                assert first is None or isinstance(first, MeshNetworksValue)
                return self._set_networks(first.networks if first else MeshNetworks())
            case "quarantine":
                assert first is None or isinstance(first, Quarantine)
                withheld = indexes.withheld.peek(key[1])
                indexes.withheld[key[1]] = first.withheld if first else None
                return withheld != indexes.withheld.peek(key[1])
            case "owners":
                assert first is None or isinstance(first, HostOwners)
                order = tuple((claim.namespace, claim.to) for claim in first.order) if first else ()
                if indexes.host_owners.peek((key[1], key[2])) == order:
                    return False
                indexes.host_owners[(key[1], key[2])] = order
                return True
            case "rollout":
                assert first is None or isinstance(first, RolloutState)
                rollout = indexes.rollout.peek(())
                indexes.rollout[()] = first
                return rollout != first
            case _:
                assert first is None or isinstance(first, MeshConfigValue)
                return self._set_mesh(first.config if first else indexes.default_mesh)

    def flush(self) -> None:
        """Write the indexes that the last writes made stale."""
        self._flush(self.configs, self.services)
        if self.gateway_api.is_stale:
            self._flush(self.gateway_api, self.configs)

    def _flush(self, *tables: ConfigTable | ServiceTable | GatewayApiTable) -> None:
        for table in tables:
            with self.isolated(type(table).__name__, INDEXES, "of configs and services"):
                table.flush()

    def _put_config(self, key: ConfigKey, config: Config | None) -> bool:
        """Put a config that users wrote, or (None) that they removed, in force."""
        if config is None:
            config = self.gateway_api.derived(key)
        if not self.configs.put(key, config):
            return False
        if key.kind in KINDS:
            self.gateway_api.put_object(key, config)
        self.gateway_api.touch(("config", key))
        return True

    def _put_derived(self, key: ConfigKey, config: Config | None) -> None:
        self.configs.put(key, config)

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

    def _set_networks(self, networks: MeshNetworks) -> bool:
        before = self.indexes.networks.peek(())
        self.indexes.networks[()] = networks
        return bool(before != networks)

    def _set_mesh(self, mesh: MeshConfig) -> bool:
        before = self.indexes.mesh.peek(())
        if before == mesh:
            return False
        self.indexes.mesh[()] = mesh
        self.configs.mesh_changed(before, mesh)
        self.services.mesh_changed(before, mesh)
        self.gateway_api.touch(("mesh",))
        return True
