"""The answers that conversions of the Gateway API get from the World, with a note of each question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Protocol

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.gateway_api.grants import ALL, Permission
from mesh_pilot.gateway_api.selectors import NAME_LABEL
from mesh_pilot.gateway_api.values import BackendObject, ParentListener
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.events import Secret
from mesh_pilot.model.service import Endpoint, Service, ServiceKey
from mesh_pilot.world.indexes import Indexes

CONFIG_MAP = "configmap/"
"""Begins the name of a Secret with the CA certificates of a ConfigMap."""

Answer = tuple[Hashable, ...]
"""A question about the World, to whose answer conversions react."""


class Known(Protocol):
    """The objects of the Gateway API (``GatewayApiTable``)."""

    objects: dict[str, dict[ConfigKey, Config]]
    """By kind."""
    sets_of: dict[ConfigKey, dict[ConfigKey, None]]
    """By Gateway, its ListenerSets."""
    permissions: Counter[Permission]
    routes_in: Counter[str]
    """The number of routes by namespace. Outside Kubernetes a namespace needs no object."""
    policies_of: dict[BackendObject, dict[ConfigKey, None]]
    """By target, the policies."""
    gateways_of: dict[BackendObject, Counter[ConfigKey]]
    """By backend, the Gateways whose routes lead to it, with the number of these routes."""

    def listeners(self, parent: ConfigKey) -> tuple[ParentListener, ...]:
        """The listeners of a Gateway, its ListenerSets included, or of a ListenerSet alone."""


class NotingReader:
    """The answers for one conversion (``gateway_api.values.Objects``)."""

    def __init__(self, table: Known, indexes: Indexes) -> None:
        self._table = table
        self._indexes = indexes
        self.domain = indexes.domain
        self.noted: set[Answer] = set()

    def config(self, kind: str, namespace: str, name: str) -> Config | None:
        key = ConfigKey(kind, namespace, name)
        self.noted.add(("config", key))
        return self._indexes.config.peek(key)

    def listeners(self, parent: ConfigKey) -> tuple[ParentListener, ...]:
        self.noted.add(("listeners", parent))
        return self._table.listeners(parent)

    def listener_sets(self, gateway: ConfigKey) -> tuple[Config, ...]:
        self.noted.add(("sets", gateway))
        found = (self._table.objects["ListenerSet"][key] for key in self._table.sets_of.get(gateway, ()))
        return tuple(sorted(found, key=lambda config: (config.created, f"{config.namespace}/{config.name}")))

    def service_host(self, name: str, namespace: str) -> str:
        host = f"{name}.{namespace}.svc.{self.domain}"
        self.noted.add(("service", host))
        if self._indexes.short_names_in and not self._indexes.services_named.peek(host):
            return self._indexes.registry_host(name)
        return host

    def service(self, host: str, namespace: str) -> Service | None:
        self.noted.add(("service", host))
        found = self._indexes.services_named.peek(host)
        return next((each for each in found if each.namespace == namespace), found[0] if found else None)

    def endpoints(self, key: ServiceKey) -> tuple[Endpoint, ...]:
        self.noted.add(("endpoints", key))
        return self._indexes.endpoints.peek(key)

    def is_granted(self, kind: str, namespace: str, to_kind: str, to_namespace: str, to_name: str) -> bool:
        self.noted.add(("grant", kind, namespace, to_kind, to_namespace))
        found = self._table.permissions
        return any(Permission(kind, namespace, to_kind, to_namespace, name) in found for name in (ALL, to_name))

    def gateways_of(self, backend: BackendObject) -> frozenset[ConfigKey]:
        self.noted.add(("gateways of", backend))
        return frozenset(self._table.gateways_of.get(backend, ()))

    def tls_policies(self, target: BackendObject) -> tuple[Config, ...]:
        self.noted.add(("policies", target))
        policies = self._table.objects["BackendTLSPolicy"]
        return tuple(policies[key] for key in self._table.policies_of.get(target, ()) if key in policies)

    def namespaces(self) -> Mapping[str, Mapping[str, str]]:
        self.noted.add(("namespaces",))
        objects = self._table.objects["Namespace"].items()
        unlabelled = {name: {NAME_LABEL: name} for name in self._table.routes_in}
        return unlabelled | {key.name: {NAME_LABEL: key.name, **config.labels} for key, config in objects}

    def secret(self, namespace: str, name: str) -> Secret | None:
        self.noted.add(("secret", namespace, name))
        found = self._indexes.secrets.peek((namespace, name))
        if found is None and namespace == self._indexes.root_namespace:
            self.noted.add(("secret", "", name))
            found = self._indexes.secrets.peek(("", name))
        if found is not None and found.is_outdated:
            return Secret(found.name, found.namespace, is_outdated=True)  # what it was before must not serve
        return found

    def ca_config_map(self, namespace: str, name: str) -> Secret | None:
        return self.secret(namespace, CONFIG_MAP + name) or self.secret(namespace, name)

    def mesh(self) -> MeshConfig:
        self.noted.add(("mesh",))
        return self._indexes.mesh.peek(())

    def names_routers(self, gateway: Config) -> bool:
        self.noted.add(("registry",))
        return bool(self._indexes.short_names_in) or not self._indexes.has_registry.peek(())
