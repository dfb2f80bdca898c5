"""The View: how translators read the World. Each read names an index and a key, so that the memo table can track it."""

from __future__ import annotations

from functools import partial

from mesh_pilot.engine import derived
from mesh_pilot.model.config import Config
from mesh_pilot.model.events import Secret
from mesh_pilot.model.service import Service
from mesh_pilot.world.indexes import Indexes, ServiceEndpoints
from mesh_pilot.world.names import full_gateway, registration_key

_INDEXED_KINDS = frozenset({"VirtualService", "DestinationRule", "ServiceEntry", "WorkloadEntry"})


class View:
    """Tracked reads of the World. Translators get a view and their key, and nothing else.

    Values are shared and must not be changed. A read of a missing key is tracked, too. Most reads are those of an index
    with a key (see ``Indexes``), and are these very functions: a translator may make thousands of them.
    """

    def __init__(self, indexes: Indexes) -> None:
        self._indexes = indexes
        self.domain = indexes.domain
        """The mesh's DNS domain, ``cluster.local``; fixed while the process runs."""
        self.memo = indexes.layer
        self.full_host = indexes.full_host
        self.registry_host = indexes.registry_host
        self.config = indexes.config.read
        self.virtual_services = indexes.virtual_services.read
        """The VirtualServices bound to a gateway (``namespace/name`` or ``mesh``), oldest first, visible or not.

        The VirtualService itself is ``config(meta.key)``."""
        self.keeps_sessions = indexes.keeps_sessions.read
        """True if a rule of a VirtualService at a gateway (``namespace/name`` or ``mesh``) keeps sessions."""
        self.mesh_virtual_services = indexes.mesh_virtual_services.read
        """The VirtualServices for sidecars with a host in a shard (one of ``shard_bits``), with a wildcard host
        (``WILDCARD_HOSTS``), or with a rule that asks (``ASKING``); oldest first, visible or not."""
        self.destination_rules = indexes.destination_rules.read
        """DestinationRules whose host is exactly this full name (or this very wildcard), oldest first."""
        self.service = indexes.services.read
        self.endpoints = indexes.endpoints.read
        """All endpoints of a service, of all its ports."""
        self.endpoints_at = indexes.endpoints_at.read
        """The endpoints at this address with their services, oldest service first."""
        self.workload_entries_at = indexes.workload_entries_at.read
        """The WorkloadEntries at an address as it is usually written, merged with their groups, oldest first."""
        self.host_addresses = indexes.host_addresses.read
        """The IP addresses of a host name of a gateway; empty while they are not known."""
        self.module = indexes.modules.read
        """A WebAssembly module; None before the first try to fetch it is over."""
        self.extension_in_force = indexes.extensions_in_force.read
        """The settings of an object when its module was last there; None: it never was."""
        self.mesh = partial(indexes.mesh.read, ())
        self.networks = partial(indexes.networks.read, ())
        self.wildcard_rule_hosts = partial(indexes.wildcard_rule_hosts.read, ())
        """The wildcard hosts of all DestinationRules, longest first."""
        self.challenges = partial(indexes.challenges.read, ())
        """The answers of gateways to issuers, while certificates are ordered."""
        self.zone_aware_rules = partial(indexes.zone_aware_rules.read, ())
        """The DestinationRules that turn zone aware load balancing on, for some port or subset at least."""
        self.selected_labels = partial(indexes.selected_labels.read, ())
        """The label keys by which any config for outbound traffic selects proxies (``sourceLabels``, ...)."""
        self.shard_bits = partial(indexes.shard_bits.read, ())
        """The indexes of services and VirtualServices have ``all_shards(bits)``."""
        self.external_services = partial(indexes.external_services.read, ())
        """Services with external addresses or gateways of networks, each as a registry of one cluster has it."""
        self.gateway_objects = partial(indexes.gateway_objects.read, ())
        """The gateways of networks that the Gateway API has, with host names as they are."""
        self.has_node_services = partial(indexes.has_node_services.read, ())
        """True if for some service it counts on which node a client is."""
        self.has_cluster_addresses = partial(indexes.has_cluster_addresses.read, ())
        """True if some service has other addresses in another cluster."""

    @property
    def root_namespace(self) -> str:
        """The namespace of mesh-wide configs."""
        return _root_namespace(self)

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

    def host_owners(self, gateway: str, host: str) -> tuple[tuple[str, str], ...]:
        """The namespaces that claim a host, the owner first, each with the namespace of the clients to whom (``*``:
        all). ``gateway``: where VirtualServices are bound; empty: for ServiceEntries. Empty: by age."""
        return self._indexes.host_owners.read((gateway, host))

    def services_named(self, host: str) -> tuple[Service, ...]:
        """The services of this host in all namespaces, oldest first, visible or not."""
        return self._indexes.services_named.read(host.lower())

    def services_exported_to(self, namespace: str, shard: int) -> tuple[Service, ...]:
        """Services exported to exactly this namespace, or to all with ``*``, whose hosts are in a shard (one of
        ``shard_bits``); oldest first."""
        return self._indexes.services_exported.read((namespace, shard))

    def endpoints_with_id(self, id: str) -> tuple[ServiceEndpoints, ...]:
        """The endpoints registered under this id, on any node, with their services, oldest service first."""
        return self._indexes.endpoints_at.read(registration_key(id))

    def secret(self, namespace: str, name: str) -> Secret | None:
        return self._indexes.secrets.read((namespace, name))

    def credential_grants(self, namespace: str, name: str) -> frozenset[str]:
        """The other namespaces whose Gateways a ReferenceGrant lets have a credential."""
        return self._indexes.credential_grants.read((namespace, name))

    def key_set(self, issuer: str, url: str) -> str:
        """The JWKS of an issuer, by its name or URL (the other is empty); empty if unknown."""
        return self._indexes.key_sets.read((issuer, url))

    # -- names

    def destination_host(self, host: str, namespace: str) -> str:
        """The full name of a destination: of an alias, that of the service which it stands for."""
        full = self.full_host(host, namespace)
        return next((service.alias_of for service in self.services_named(full) if service.alias_of), full)

    def full_gateway(self, name: str, namespace: str) -> str:
        """The full name (``namespace/name`` or ``mesh``) of a gateway as written in a config of this namespace."""
        return full_gateway(name, namespace, self.domain)


@derived
def _root_namespace(view: View) -> str:
    return view.mesh().root_namespace


def _check_listed(kind: str) -> None:
    if kind in _INDEXED_KINDS:
        raise ValueError(f"{kind} has its own index")
