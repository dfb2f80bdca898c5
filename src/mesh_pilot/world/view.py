"""The View: how translators read the World. Each read names an index and a key, so that the memo table can track it."""

from __future__ import annotations

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig, MeshNetworks
from mesh_pilot.incremental import derived
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.events import ExtensionInForce, Secret, WasmModule
from mesh_pilot.model.modules import ModuleRef
from mesh_pilot.model.service import Endpoint, NetworkGateway, Service, ServiceKey
from mesh_pilot.world.indexes import Indexes, ServiceEndpoints, VirtualServiceMeta
from mesh_pilot.world.names import full_gateway, registration_key

_INDEXED_KINDS = frozenset({"VirtualService", "DestinationRule", "ServiceEntry", "WorkloadEntry"})


class View:
    """Tracked reads of the World. Translators get a view and their key, and nothing else.

    Values are shared and must not be changed. A read of a missing key is tracked, too.
    """

    def __init__(self, indexes: Indexes) -> None:
        self._indexes = indexes
        self.domain = indexes.domain
        """The mesh's DNS domain, ``cluster.local``; fixed while the process runs."""
        self.memo = indexes.layer

    # -- mesh-wide

    def mesh(self) -> MeshConfig:
        return self._indexes.mesh.read(())

    def networks(self) -> MeshNetworks:
        return self._indexes.networks.read(())

    @property
    def root_namespace(self) -> str:
        """The namespace of mesh-wide configs."""
        return _root_namespace(self)

    # -- configs

    def config(self, key: ConfigKey) -> Config | None:
        return self._indexes.config.read(key)

    def configs(self, kind: str, namespace: str) -> tuple[Config, ...]:
        """The configs of a kind in a namespace, oldest first.

        Raises ValueError for VirtualService, DestinationRule, ServiceEntry and WorkloadEntry, which have indexes of
        their own, because there are many of them.
        """
        _check_listed(kind)
        return self._indexes.configs_in.read((kind, namespace))

    def all_configs(self, kind: str) -> tuple[Config, ...]:
        """The configs of a kind in the mesh, oldest first. Raises ValueError as ``configs`` does."""
        _check_listed(kind)
        return self._indexes.configs_of.read(kind)

    def virtual_services(self, gateway: str) -> tuple[VirtualServiceMeta, ...]:
        """The VirtualServices bound to a gateway (``namespace/name`` or ``mesh``), oldest first, visible or not.

        The VirtualService itself is ``config(meta.key)``.
        """
        return self._indexes.virtual_services.read(gateway)

    def mesh_virtual_services(self, shard: int) -> tuple[VirtualServiceMeta, ...]:
        """The VirtualServices for sidecars with a host in a shard (one of ``shard_bits``), or with a wildcard host
        (``WILDCARD_HOSTS``); oldest first, visible or not."""
        return self._indexes.mesh_virtual_services.read(shard)

    def destination_rules(self, host: str) -> tuple[Config, ...]:
        """DestinationRules whose host is exactly this full name (or this very wildcard), oldest first."""
        return self._indexes.destination_rules.read(host)

    def wildcard_rule_hosts(self) -> tuple[str, ...]:
        """The wildcard hosts of all DestinationRules, longest first."""
        return self._indexes.wildcard_rule_hosts.read(())

    def zone_aware_rules(self) -> tuple[ConfigKey, ...]:
        """The DestinationRules that turn zone aware load balancing on, for some port or subset at least."""
        return self._indexes.zone_aware_rules.read(())

    def selected_labels(self) -> frozenset[str]:
        """The label keys by which any config for outbound traffic selects proxies (``sourceLabels``, ...)."""
        return self._indexes.selected_labels.read(())

    # -- services

    def service(self, key: ServiceKey) -> Service | None:
        return self._indexes.services.read(key)

    def host_owners(self, gateway: str, host: str) -> tuple[tuple[str, str], ...]:
        """The namespaces that claim a host, the owner first, each with the namespace of the clients to whom (``*``:
        all). ``gateway``: where VirtualServices are bound; empty: for ServiceEntries. Empty: by age."""
        return self._indexes.host_owners.read((gateway, host))

    def services_named(self, host: str) -> tuple[Service, ...]:
        """The services of this host in all namespaces, oldest first, visible or not."""
        return self._indexes.services_named.read(host.lower())

    def shard_bits(self) -> int:
        """The indexes of services and VirtualServices have ``all_shards(bits)``."""
        return self._indexes.shard_bits.read(())

    def services_exported_to(self, namespace: str, shard: int) -> tuple[Service, ...]:
        """Services exported to exactly this namespace, or to all with ``*``, whose hosts are in a shard (one of
        ``shard_bits``); oldest first."""
        return self._indexes.services_exported.read((namespace, shard))

    def endpoints(self, key: ServiceKey) -> tuple[Endpoint, ...]:
        """All endpoints of a service, of all its ports."""
        return self._indexes.endpoints.read(key)

    def endpoints_at(self, ip: str) -> tuple[ServiceEndpoints, ...]:
        """The endpoints at this address with their services, oldest service first."""
        return self._indexes.endpoints_at.read(ip)

    def workload_entries_at(self, address: str) -> tuple[Config, ...]:
        """The WorkloadEntries at an address as it is usually written, merged with their groups, oldest first."""
        return self._indexes.workload_entries_at.read(address)

    def endpoints_with_id(self, id: str) -> tuple[ServiceEndpoints, ...]:
        """The endpoints registered under this id, on any node, with their services, oldest service first."""
        return self._indexes.endpoints_at.read(registration_key(id))

    def external_services(self) -> tuple[Service, ...]:
        """Services with external addresses, each as a registry of one cluster has it, by host."""
        return self._indexes.external_services.read(())

    def gateway_objects(self) -> tuple[NetworkGateway, ...]:
        """The gateways of networks that the Gateway API has, with host names as they are."""
        return self._indexes.gateway_objects.read(())

    def has_node_services(self) -> bool:
        """True if for some service it counts on which node a client is."""
        return self._indexes.has_node_services.read(())

    def host_addresses(self, host: str) -> tuple[str, ...]:
        """The IP addresses of a host name of a gateway; empty while they are not known."""
        return self._indexes.host_addresses.read(host)

    def has_cluster_addresses(self) -> bool:
        """True if some service has other addresses in another cluster."""
        return self._indexes.has_cluster_addresses.read(())

    def secret(self, namespace: str, name: str) -> Secret | None:
        return self._indexes.secrets.read((namespace, name))

    def credential_grants(self, namespace: str, name: str) -> frozenset[str]:
        """The other namespaces whose Gateways a ReferenceGrant lets have a credential."""
        return self._indexes.credential_grants.read((namespace, name))

    def key_set(self, issuer: str, url: str) -> str:
        """The JWKS of an issuer, by its name or URL (the other is empty); empty if unknown."""
        return self._indexes.key_sets.read((issuer, url))

    def module(self, ref: ModuleRef) -> WasmModule | None:
        """A WebAssembly module; None before the first try to fetch it is over."""
        return self._indexes.modules.read(ref)

    def extension_in_force(self, key: ConfigKey) -> ExtensionInForce | None:
        """The settings of an object when its module was last there; None: it never was."""
        return self._indexes.extensions_in_force.read(key)

    # -- names

    def full_host(self, host: str, namespace: str) -> str:
        """The full name of a host as written in a config of this namespace."""
        return self._indexes.full_host(host, namespace)

    def destination_host(self, host: str, namespace: str) -> str:
        """The full name of a destination: of an alias, that of the service which it stands for."""
        full = self.full_host(host, namespace)
        return next((service.alias_of for service in self.services_named(full) if service.alias_of), full)

    def registry_host(self, host: str) -> str:
        """The full name of a host that may only be short for one of a registry."""
        return self._indexes.registry_host(host)

    def full_gateway(self, name: str, namespace: str) -> str:
        """The full name (``namespace/name`` or ``mesh``) of a gateway as written in a config of this namespace."""
        return full_gateway(name, namespace, self.domain)


@derived
def _root_namespace(view: View) -> str:
    return view.mesh().root_namespace


def _check_listed(kind: str) -> None:
    if kind in _INDEXED_KINDS:
        raise ValueError(f"{kind} has an index of its own")
