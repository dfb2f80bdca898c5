"""What translators see: every read goes through here and is of an index key, so that the memo table can note it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import attrs

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig, MeshNetworks
from mesh_pilot.incremental import derived
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.events import Secret
from mesh_pilot.model.service import Endpoint, Service, ServiceKey
from mesh_pilot.world.names import full_gateway, place_of_id

if TYPE_CHECKING:
    from mesh_pilot.world.world import World

P = ParamSpec("P")
T = TypeVar("T")

Placed = tuple[ServiceKey, tuple[Endpoint, ...]]
"""A service and those of its endpoints that have one address."""


@attrs.frozen
class VirtualServiceHead:
    """What of a VirtualService decides where it applies; an edit of its routes leaves this alone."""

    key: ConfigKey
    created: datetime
    hosts: tuple[str, ...]
    """Full host names and wildcards; empty for a delegate."""
    gateways: frozenset[str]
    """``namespace/name`` and ``mesh``."""
    export_to: frozenset[str]
    """``*``, namespaces or ``~``; ``.`` is already its own namespace, and the mesh's default is filled in."""

    @property
    def order(self) -> tuple[datetime, str, str]:
        return (self.created, self.key.name, self.key.namespace)

    def visible_to(self, namespace: str) -> bool:
        return "*" in self.export_to or namespace in self.export_to


class View:
    """Tracked reads of the World. Translators get this and their key, and nothing else.

    Values are shared and must not be changed. A read of what is not there is a read too.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.domain = world.domain
        """The mesh's DNS domain, ``cluster.local``; fixed while the process runs."""
        self.memo = world.memo

    # -- mesh-wide

    def mesh(self) -> MeshConfig:
        return self._world.mesh.read(())

    def networks(self) -> MeshNetworks:
        return self._world.networks.read(())

    @property
    def root_namespace(self) -> str:
        """Where mesh-wide configs live."""
        return _root_namespace(self)

    # -- configs

    def config(self, key: ConfigKey) -> Config | None:
        return self._world.config.read(key)

    def configs(self, kind: str, namespace: str) -> tuple[Config, ...]:
        """All of a kind in a namespace, oldest first. Not for VirtualService, DestinationRule, ServiceEntry and
        WorkloadEntry, which are many: they have indexes of their own."""
        return self._world.configs_in.read((kind, namespace))

    def all_configs(self, kind: str) -> tuple[Config, ...]:
        """All of a kind in the mesh, oldest first; with the same exceptions as ``configs``."""
        return self._world.configs_of.read(kind)

    def virtual_services(self, gateway: str) -> tuple[VirtualServiceHead, ...]:
        """What is bound to a gateway (``namespace/name`` or ``mesh``), oldest first, whoever may see it.

        The VirtualService itself is ``config(head.key)``.
        """
        return self._world.virtual_services.read(gateway)

    def mesh_virtual_services(self, bucket: int) -> tuple[VirtualServiceHead, ...]:
        """VirtualServices for sidecars that have a host in a bucket (one of ``bits``), or a wildcard for a host
        (``WILD``); oldest first, whoever may see them."""
        return self._world.mesh_virtual_services.read(bucket)

    def destination_rules(self, host: str) -> tuple[Config, ...]:
        """DestinationRules whose host is exactly this full name (or this very wildcard), oldest first."""
        return self._world.destination_rules.read(host)

    def wildcard_rule_hosts(self) -> tuple[str, ...]:
        """The wildcard hosts that any DestinationRule has, longest first."""
        return self._world.wildcard_rule_hosts.read(())

    def selected_labels(self) -> frozenset[str]:
        """Label keys by which any config that shapes outbound traffic picks proxies (``sourceLabels``, ...)."""
        return self._world.selected_labels.read(())

    # -- services

    def service(self, key: ServiceKey) -> Service | None:
        return self._world.services.read(key)

    def services_named(self, host: str) -> tuple[Service, ...]:
        """The services of this host in all namespaces, oldest first, whoever may see them."""
        return self._world.services_named.read(host)

    def bits(self) -> int:
        """How finely the lists of all services and VirtualServices are parted: there are ``buckets(bits)``."""
        return self._world.bits.read(())

    def services_exported_to(self, namespace: str, bucket: int) -> tuple[Service, ...]:
        """Services exported to exactly this namespace, or to everybody with ``*``, whose hosts are in a bucket (one of
        ``bits``); oldest first."""
        return self._world.services_exported.read((namespace, bucket))

    def endpoints(self, key: ServiceKey) -> tuple[Endpoint, ...]:
        """All endpoints of a service, of all its ports."""
        return self._world.endpoints.read(key)

    def endpoints_at(self, ip: str) -> tuple[Placed, ...]:
        """The endpoints at this address with the services that they serve, oldest service first."""
        return self._world.endpoints_at.read(ip)

    def endpoints_with_id(self, id: str) -> tuple[Placed, ...]:
        """The endpoints that are registered under this id, on whatever node, with their services, oldest first."""
        return self._world.endpoints_at.read(place_of_id(id))

    def secret(self, namespace: str, name: str) -> Secret | None:
        return self._world.secrets.read((namespace, name))

    def names_credential(self, namespace: str, name: str) -> bool:
        """Whether a Gateway or DestinationRule of this namespace names this credential."""
        return self._world.credentials_named.read((namespace, name))

    def key_set(self, issuer: str, url: str) -> str:
        """The keys of an issuer of tokens, by its name or at a URL (the other is empty); empty if not known."""
        return self._world.key_sets.read((issuer, url))

    # -- names

    def full_host(self, host: str, namespace: str) -> str:
        """A host as written in a config of this namespace, made whole."""
        return self._world.full_host(host, namespace)

    def registry_host(self, host: str) -> str:
        """A host that must be written in full, but where short names are of one registry: made whole."""
        return self._world.registry_host(host)

    def full_gateway(self, name: str, namespace: str) -> str:
        """A gateway as named in a VirtualService of this namespace: ``namespace/name`` or ``mesh``."""
        return full_gateway(name, namespace, self.domain)


@derived
def _root_namespace(view: View) -> str:
    return view.mesh().root_namespace
