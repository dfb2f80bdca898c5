"""The indexes of the World: what translators read, by key. The World's tables write them, ``View`` reads them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from datetime import datetime

import attrs

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig, MeshNetworks
from mesh_pilot.engine import Index, Layer
from mesh_pilot.istio.reading.mesh import default_mesh
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.events import ChallengeAnswer, ExtensionInForce, RolloutState, Secret, WasmModule, Withheld
from mesh_pilot.model.modules import ModuleRef
from mesh_pilot.model.service import Endpoint, NetworkGateway, Service, ServiceKey
from mesh_pilot.world.names import exported_to, full_host, registry_host

Isolated = Callable[[Hashable, str, str], AbstractContextManager[None]]
"""Given a key, the kind of a failure and the name of an object: an exception in the block costs that object only."""

ServiceEndpoints = tuple[ServiceKey, tuple[Endpoint, ...]]
"""A service, and those of its endpoints that have one address."""


@attrs.frozen
class VirtualServiceMeta:
    """The fields of a VirtualService that decide where it applies. An edit of its routes leaves them alone."""

    key: ConfigKey
    created: datetime
    hosts: tuple[str, ...]
    """Full host names and wildcards; empty for a delegate."""
    gateways: frozenset[str]
    """``namespace/name`` and ``mesh``."""
    export_to: frozenset[str]
    """``*``, namespaces or ``~``; ``.`` is replaced by the namespace, and the mesh's default is filled in."""
    is_route: bool = False
    """Made of a route of the Gateway API: for sidecars it is about services of its namespace, and in its
    namespace about all services."""
    is_made: bool = False
    """Made by the plane of something else, such as an entry of Consul or an Ingress: it owns no host."""
    has_sessions: bool = False
    """One of its rules keeps sessions."""
    asks: bool = False
    """One of its rules asks an authorizer."""

    @property
    def order(self) -> tuple[datetime, str, str]:
        return (self.created, self.key.name, self.key.namespace)

    def concerns(self, service: Service, namespace: str) -> bool:
        """True if it may apply to a service for clients of a namespace."""
        return not self.is_route or self.key.namespace in (service.namespace, namespace)

    def visible_to(self, namespace: str) -> bool:
        return exported_to(self.export_to, namespace)


class Indexes:
    """The input of a memo table, or of an overlay of it: one index for each question that translators ask.

    What an index holds is said at its read in ``View``; here only of those that have no read by their key.
    """

    def __init__(
        self, layer: Layer, domain: str, root_namespace: str, short_names_in: str, cluster_id: str = ""
    ) -> None:
        self.domain = domain
        """The mesh's DNS domain."""
        self.root_namespace = root_namespace
        self.default_mesh = default_mesh(root_namespace)
        """The MeshConfig if no source sends one."""
        self.short_names_in = short_names_in
        self.cluster_id = cluster_id
        """The control plane's own cluster."""
        self.layer = layer
        index = layer.index
        # mesh-wide settings
        self.mesh: Index[tuple[()], MeshConfig] = index("mesh", self.default_mesh)
        self.networks: Index[tuple[()], MeshNetworks] = index("networks", MeshNetworks())
        # configs
        self.config: Index[ConfigKey, Config | None] = index("config", None)
        self.configs_in: Index[tuple[str, str], tuple[Config, ...]] = index("configs_in", ())
        """Configs by kind and namespace."""
        self.configs_of: Index[str, tuple[Config, ...]] = index("configs_of", ())
        """Configs by kind."""
        self.virtual_services: Index[str, tuple[VirtualServiceMeta, ...]] = index("virtual_services", ())
        self.keeps_sessions: Index[str, bool] = index("keeps_sessions", False)
        self.mesh_virtual_services: Index[int, tuple[VirtualServiceMeta, ...]] = index("mesh_virtual_services", ())
        self.destination_rules: Index[str, tuple[Config, ...]] = index("destination_rules", ())
        self.zone_aware_rules: Index[tuple[()], tuple[ConfigKey, ...]] = index("zone_aware_rules", ())
        self.wildcard_rule_hosts: Index[tuple[()], tuple[str, ...]] = index("wildcard_rule_hosts", ())
        self.selected_labels: Index[tuple[()], frozenset[str]] = index("selected_labels", frozenset())
        # services
        self.services: Index[ServiceKey, Service | None] = index("services", None)
        self.services_named: Index[str, tuple[Service, ...]] = index("services_named", ())
        """Services by host."""
        self.services_exported: Index[tuple[str, int], tuple[Service, ...]] = index("services_exported", ())
        """Exported services by namespace (or ``*``) and shard."""
        self.shard_bits: Index[tuple[()], int] = index("shard_bits", 0)
        """The number of shards, see ``shards``."""
        self.endpoints: Index[ServiceKey, tuple[Endpoint, ...]] = index("endpoints", ())
        self.endpoints_at: Index[str, tuple[ServiceEndpoints, ...]] = index("endpoints_at", ())
        """Endpoints by IP address, and by ``registration_key``."""
        self.workload_entries_at: Index[str, tuple[Config, ...]] = index("workload_entries_at", ())
        # clusters and networks
        self.external_services: Index[tuple[()], tuple[Service, ...]] = index("external_services", ())
        self.gateway_objects: Index[tuple[()], tuple[NetworkGateway, ...]] = index("gateway_objects", ())
        self.host_addresses: Index[str, tuple[str, ...]] = index("host_addresses", ())
        self.has_cluster_addresses: Index[tuple[()], bool] = index("has_cluster_addresses", False)
        self.has_registry: Index[tuple[()], bool] = index("has_registry", False)
        """True if some service is of a registry, not of ServiceEntries alone."""
        self.has_node_services: Index[tuple[()], bool] = index("has_node_services", False)
        # secrets and keys
        self.secrets: Index[tuple[str, str], Secret | None] = index("secrets", None)
        """Secrets by namespace and name."""
        self.credential_grants: Index[tuple[str, str], frozenset[str]] = index("credential_grants", frozenset())
        """The other namespaces whose Gateways may have a credential, by its namespace and name."""
        self.key_sets: Index[tuple[str, str], str] = index("key_sets", "")
        """Key sets by issuer and URL."""
        self.challenges: Index[tuple[()], tuple[ChallengeAnswer, ...]] = index("challenges", ())
        # modules
        self.modules: Index[ModuleRef, WasmModule | None] = index("modules", None)
        self.extensions_in_force: Index[ConfigKey, ExtensionInForce | None] = index("extensions_in_force", None)
        # what clients refuse
        self.withheld: Index[str, tuple[Withheld, ...] | None] = index("withheld", None)
        """Withheld objects by domain."""
        # who owns a host that several namespaces claim
        self.host_owners: Index[tuple[str, str], tuple[tuple[str, str], ...]] = index("host_owners", ())
        """Namespaces, each with that of the clients, the owner first; by gateway (empty: of services) and host."""
        # what goes to a share of the proxies first
        self.rollout: Index[tuple[()], RolloutState | None] = index("rollout", None)

    def full_host(self, host: str, namespace: str) -> str:
        """The full name of a host as written in a config of this namespace."""
        return full_host(self.registry_host(host), namespace, self.domain)

    def registry_host(self, host: str) -> str:
        """The full name of a host if it is short for one of a registry; otherwise the host as it is."""
        return registry_host(host, self.short_names_in)
