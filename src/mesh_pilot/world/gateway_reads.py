"""The answers that conversions of the Gateway API get from the World, with a note of each question."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.istio.gateway_api.converters import CONVERTERS
from mesh_pilot.istio.gateway_api.grants import ALL, Permission, permissions
from mesh_pilot.istio.gateway_api.policies import targets_of
from mesh_pilot.istio.gateway_api.selectors import NAME_LABEL
from mesh_pilot.istio.gateway_api.values import KUBERNETES_GATEWAY, BackendObject, ParentListener
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.events import Secret
from mesh_pilot.model.service import Endpoint, Service, ServiceKey
from mesh_pilot.world.copying import Copied
from mesh_pilot.world.indexes import Indexes
from mesh_pilot.world.reverse_index import ReverseIndex

POLICIES = frozenset(("BackendTLSPolicy", "XBackendTrafficPolicy"))

CONFIG_MAP = "configmap/"
"""Begins the name of a Secret with the CA certificates of a ConfigMap."""

Answer = tuple[Hashable, ...]
"""A question about the World, to whose answer conversions react."""


class KnownObjects(Copied):
    """The relations between objects of the Gateway API, as far as conversions ask for them.

    State: reverse indexes of what objects name; the labels of namespaces.
    """

    def __init__(self) -> None:
        self.sets: ReverseIndex[ConfigKey, ConfigKey, Config] = ReverseIndex()
        """ListenerSets by Gateway."""
        self.permissions: ReverseIndex[Permission, ConfigKey, None] = ReverseIndex()
        """ReferenceGrants by the permission that they give."""
        self.policies: ReverseIndex[BackendObject, ConfigKey, Config] = ReverseIndex()
        """Policies by target."""
        self.routes: ReverseIndex[str, ConfigKey, None] = ReverseIndex()
        """Routes by namespace: outside Kubernetes a namespace needs no object."""
        self.leading: ReverseIndex[BackendObject, ConfigKey, frozenset[ConfigKey]] = ReverseIndex()
        """Routes by the backend that they lead to, with their Gateways."""
        self.listeners: ReverseIndex[ConfigKey, ConfigKey, tuple[ParentListener, ...]] = ReverseIndex()
        """The listeners of a Gateway, its ListenerSets included, or of a ListenerSet alone, by the Gateway."""
        self.namespaces: dict[str, Mapping[str, str]] = {}

    def put(self, key: ConfigKey, config: Config | None) -> Iterable[Answer]:
        """Add, replace or (None) remove an object. The questions to which the answer may be another one now."""
        # Each kind answers questions on its own; what no conversion could see differently is not touched, so that an
        # edit of one route does not concern Gateways that select namespaces.
        match key.kind:
            case "ListenerSet":
                parent = _parent(config) if config is not None else None
                sets = {parent: config} if parent is not None and config is not None else {}
                return [("sets", each) for each in self.sets.put(key, sets)]
            case "ReferenceGrant":
                granted = dict.fromkeys(permissions(config)) if config is not None else {}
                return [("grant", *each[:4]) for each in self.permissions.put(key, granted)]
            case "Namespace":
                if config is not None:
                    self.namespaces[key.name] = {NAME_LABEL: key.name, **config.labels}
                else:
                    self.namespaces.pop(key.name, None)
                return [("namespaces",)]
            case kind if kind in POLICIES:
                targets = dict.fromkeys(targets_of(config), config) if config is not None else {}
                return [("policies", each) for each in self.policies.put(key, targets)]
            case kind if kind in CONVERTERS:
                had_routes = key.namespace in self.routes
                self.routes.put(key, {key.namespace: None} if config is not None else {})
                return [("namespaces",)] if had_routes != (key.namespace in self.routes) else []
        return ()


def _parent(config: Config) -> ConfigKey | None:
    """The Gateway of a ListenerSet."""
    ref = config.spec.parent_ref
    if ref is None:
        return None
    return ConfigKey(KUBERNETES_GATEWAY, config.namespace if ref.namespace is None else ref.namespace, ref.name)


class NotingReader:
    """The answers for one conversion (``istio.gateway_api.values.Objects``)."""

    def __init__(self, known: KnownObjects, indexes: Indexes) -> None:
        self._known = known
        self._indexes = indexes
        self.domain = indexes.domain
        self.noted: set[Answer] = set()

    def config(self, kind: str, namespace: str, name: str) -> Config | None:
        key = ConfigKey(kind, namespace, name)
        self.noted.add(("config", key))
        return self._indexes.config.peek(key)

    def listeners(self, parent: ConfigKey) -> tuple[ParentListener, ...]:
        self.noted.add(("listeners", parent))
        latest = self._known.listeners.latest(parent)
        return latest[1] if latest is not None else ()

    def listener_sets(self, gateway: ConfigKey) -> tuple[Config, ...]:
        self.noted.add(("sets", gateway))
        found = self._known.sets[gateway].values()
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
        found = self._known.permissions
        return any(Permission(kind, namespace, to_kind, to_namespace, name) in found for name in (ALL, to_name))

    def gateways_of(self, backend: BackendObject) -> frozenset[ConfigKey]:
        self.noted.add(("gateways of", backend))
        return frozenset().union(*self._known.leading[backend].values())

    def tls_policies(self, target: BackendObject) -> tuple[Config, ...]:
        self.noted.add(("policies", target))
        return tuple(each for each in self._known.policies[target].values() if each.key.kind == "BackendTLSPolicy")

    def namespaces(self) -> Mapping[str, Mapping[str, str]]:
        self.noted.add(("namespaces",))
        return {name: {NAME_LABEL: name} for name in self._known.routes} | self._known.namespaces

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
