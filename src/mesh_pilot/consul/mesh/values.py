"""The values of conversions: references to entries, facts about services, and the objects that come out."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple

import attrs

from mesh_pilot.consul.mesh.fields import Tenant
from mesh_pilot.istio.reading.decode import decode
from mesh_pilot.model.config import Config, ConfigKey, Origin
from mesh_pilot.model.service import SERVICE_LABEL

YOUNGEST = datetime(2999, 1, 1, tzinfo=UTC)
"""The creation of every object made from Consul: of two objects for a host the oldest wins, and that is the user's."""

API_VERSIONS = {
    "VirtualService": "networking.istio.io/v1",
    "DestinationRule": "networking.istio.io/v1",
    "AuthorizationPolicy": "security.istio.io/v1",
    "LocalRateLimit": "policy.mesh-pilot.io/v1alpha1",
}

_NOT_OF_NAMES = re.compile(r"[^a-z0-9-]+")
_LONGEST_NAME = 100
_LONGEST_LABEL = 63
"""Characters of the name of a label, after its prefix."""

Spec = dict[str, Any]
"""The spec of an object as in YAML."""


class EntryRef(NamedTuple):
    """The kind and name of a config entry; of an intention, its destination."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


@attrs.frozen
class MeshSettings:
    """The settings of a conversion."""

    domain: str = "consul"
    datacenter: str = ""
    """The mesh's own."""
    namespace: str = "default"
    """The mesh's namespace of services that do not say."""
    trust_domain: str = ""
    """That of Consul's own mesh, if its proxies are let in."""
    merged: bool = False
    """True if instances of other datacenters also serve the host that a service has in the mesh's own."""
    reserved: frozenset[str] = frozenset()
    """The keys of metadata that are not labels."""
    peers: tuple[str, ...] = ()
    """The peers whose services are read."""
    partition: str = "default"
    """The partition that is read."""
    consul_namespace: str = "default"
    """The namespace of Consul that is read."""

    @property
    def tenant(self) -> Tenant:
        return Tenant(self.consul_namespace, self.partition)


class ClientPort(NamedTuple):
    """A port by which clients call a service."""

    number: int
    name: str = ""


@attrs.frozen
class ServiceFacts:
    """The properties of a service in the catalog that conversions depend on."""

    namespace: str = ""
    accounts: tuple[str, ...] = ()
    """Service accounts: names, SPIFFE ids, or such without scheme and trust domain."""
    ports: tuple[int, ...] = ()
    """The ports at which its instances listen."""
    client_ports: tuple[ClientPort, ...] = ()
    """The ports by which clients call it, that of its registration first."""
    has_http: bool = True
    """True if any of them may speak HTTP."""


@attrs.frozen
class IstioObject:
    """An object of Istio's that was made from entries."""

    kind: str
    namespace: str
    name: str
    spec: Spec = attrs.field(hash=False)
    entries: tuple[EntryRef, ...]
    """The entries that it is made from, the one that says most first."""

    def document(self) -> dict[str, Any]:
        """The object as in YAML."""
        return {
            "apiVersion": API_VERSIONS[self.kind],
            "kind": self.kind,
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": self.spec,
        }

    def config(self, source: str) -> Config:
        """The object as a source sends it. Raises ConfigError: a field of an entry has a value that Istio refuses."""
        origin = Origin(source, location_of(self.entries[0]))
        config = decode(self.document(), origin=origin)
        made_from = tuple(ConfigKey(entry.kind, self.namespace, entry.name) for entry in self.entries)
        return attrs.evolve(config, created=YOUNGEST, made_from=made_from)


def location_of(entry: EntryRef) -> str:
    """The location of an entry for people."""
    return f"consul {entry}"


def peer_host(service: str, peer: str, domain: str) -> str:
    """The host of a service that is imported from a peer, as Consul's DNS has it."""
    return f"{service}.service.{peer}.peer.{domain}".lower()


def object_name(*services: str) -> str:
    """The name of the object that services have, such as ``consul-web``; of one for its upstream, ``consul-web.db``."""
    return f"consul-{'.'.join(map(_plain, services))}"


def _plain(service: str) -> str:
    plain = _NOT_OF_NAMES.sub("-", service.lower()).strip("-")[:_LONGEST_NAME]
    if plain == service:
        return plain
    return f"{plain}-{sha256(service.encode()).hexdigest()[:8]}".lstrip("-")


def selecting_labels(service: str) -> dict[str, str] | None:
    """The labels that select the proxies of a service; None if its name can't be in a label."""
    return {f"{SERVICE_LABEL}{service}": "true"} if len(service) <= _LONGEST_LABEL else None
