"""Resources: what a proxy is sent, as bytes with a name and a version."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import overload

import attrs

from mesh_pilot.model.config import ConfigKey

PREFIX = "type.googleapis.com/"
CLUSTER = PREFIX + "envoy.config.cluster.v3.Cluster"
ENDPOINT = PREFIX + "envoy.config.endpoint.v3.ClusterLoadAssignment"
LISTENER = PREFIX + "envoy.config.listener.v3.Listener"
ROUTE = PREFIX + "envoy.config.route.v3.RouteConfiguration"
VIRTUAL_HOST = PREFIX + "envoy.config.route.v3.VirtualHost"
SECRET = PREFIX + "envoy.extensions.transport_sockets.tls.v3.Secret"
EXTENSION = PREFIX + "envoy.config.core.v3.TypedExtensionConfig"
NAME_TABLE = PREFIX + "istio.networking.nds.v1.NameTable"
PROXY_CONFIG = PREFIX + "istio.mesh.v1alpha1.ProxyConfig"
HEALTH = PREFIX + "istio.v1.HealthInformation"
"""The type of requests that are not requests: an agent reports the health of its application with them."""
WARMING = PREFIX + "meshpilot.v1.WarmingInformation"
"""The same, for what its Envoy has accepted and does not use yet (``model.warming``)."""


@attrs.frozen
class ResourceType:
    """A type of resource that is served: all that other rooms need to know of it besides its generator."""

    url: str
    short: str
    """The abbreviation in logs, metrics and tables, such as ``CDS``."""
    sync_name: str
    """How ``/debug/syncz`` calls it."""
    dump: tuple[str, str, str] | None = None
    """The section of ``/config_dump``: the message, the field with all resources, the field with one. None: a type for
    Istio's agents, which no Envoy requests or dumps."""
    service: str = ""
    """The gRPC service for this type alone, and the name of its methods after ``Stream`` and ``Delta``."""
    method: str = ""
    refers_to_clusters: bool = False
    """True if its resources name clusters, so clusters come before it and are removed after it."""


_TYPES = (
    ResourceType(
        CLUSTER, "CDS", "cluster", ("ClustersConfigDump", "dynamic_active_clusters", "cluster"),
        "envoy.service.cluster.v3.ClusterDiscoveryService", "Clusters",
    ),
    ResourceType(
        ENDPOINT, "EDS", "endpoint", ("EndpointsConfigDump", "dynamic_endpoint_configs", "endpoint_config"),
        "envoy.service.endpoint.v3.EndpointDiscoveryService", "Endpoints",
    ),
    ResourceType(
        LISTENER, "LDS", "listener", ("ListenersConfigDump", "dynamic_listeners", "listener"),
        "envoy.service.listener.v3.ListenerDiscoveryService", "Listeners", refers_to_clusters=True,
    ),
    ResourceType(
        ROUTE, "RDS", "route", ("RoutesConfigDump", "dynamic_route_configs", "route_config"),
        "envoy.service.route.v3.RouteDiscoveryService", "Routes", refers_to_clusters=True,
    ),
    ResourceType(
        VIRTUAL_HOST, "VHDS", "virtualhost", ("VirtualHostsConfigDump", "dynamic_virtual_hosts", "virtual_host"),
        refers_to_clusters=True,
    ),
    ResourceType(
        SECRET, "SDS", "secret", ("SecretsConfigDump", "dynamic_active_secrets", "secret"),
        "envoy.service.secret.v3.SecretDiscoveryService", "Secrets",
    ),
    ResourceType(
        EXTENSION, "ECDS", "extensionconfig", ("EcdsConfigDump", "ecds_filters", "ecds_filter"),
        "envoy.service.extension.v3.ExtensionConfigDiscoveryService", "ExtensionConfigs", refers_to_clusters=True,
    ),
    ResourceType(NAME_TABLE, "NDS", "nametable"),
    ResourceType(PROXY_CONFIG, "PCDS", "proxyconfig"),
)  # fmt: skip

RESOURCE_TYPES = {resource_type.url: resource_type for resource_type in _TYPES}
"""Every type served by its URL, in the order in which they are sent: make before break."""

ENVOY_TYPES = {url: resource_type for url, resource_type in RESOURCE_TYPES.items() if resource_type.dump is not None}
"""Types of Envoy's API: those that tables have a column for."""


IDENTITY_SECRET = "default"
"""Name of the secret with the proxy's own certificate in the mesh (Istio's name)."""
TRUST_SECRET = "ROOTCA"
"""Name of the secret with the roots of the mesh."""


def host_name(table: str, host: str) -> str:
    """The name of a virtual host that is a separate resource (Envoy: "VHDS", naming convention)."""
    return f"{table}/{host}"


def table_of(host_name: str) -> str:
    """The route table that such a virtual host is in. Names of tables may have slashes, names of hosts have none."""
    return host_name.rpartition("/")[0]


AUTHORIZERS = "|auth-"
"""The separator between the name of a route table and the digest of its authorizers."""


def plain_table_name(name: str) -> str:
    """The name of a route table without the digest of its authorizers."""
    return name.partition(AUTHORIZERS)[0]


class JoinedKeys(Sequence[ConfigKey]):
    """The keys of several lists, each once. Lists are only joined when somebody looks, which is rare."""

    __slots__ = ("_lists",)

    def __init__(self, lists: tuple[Sequence[ConfigKey], ...]) -> None:
        self._lists = lists

    def __repr__(self) -> str:
        return repr(self._joined())

    def __iter__(self) -> Iterator[ConfigKey]:
        return iter(self._joined())

    def __len__(self) -> int:
        return len(self._joined())

    @overload
    def __getitem__(self, index: int) -> ConfigKey: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[ConfigKey, ...]: ...

    def __getitem__(self, index: int | slice) -> ConfigKey | tuple[ConfigKey, ...]:
        return self._joined()[index]

    def _joined(self) -> tuple[ConfigKey, ...]:
        return tuple(dict.fromkeys(chain.from_iterable(self._lists)))


@attrs.frozen(eq=False)
class Resource:
    """One resource of xDS, encoded.

    Equal when name, type and version are, and so the bytes; the configs it came from only explain it.
    """

    name: str
    type_url: str
    body: bytes = attrs.field(repr=False)
    """The encoded message itself (a Cluster, ...), without its Any."""
    version: str = ""
    """Hash of the bytes, or of what they are made of: the same for the same world in any process."""
    configs: Sequence[ConfigKey] = ()
    """The objects that it was made from, to explain a NACK."""

    @cached_property
    def digest(self) -> int:
        """Type, name and version in 128 bits; digests add up to the digest of a set of resources."""
        text = f"{self.type_url}\0{self.name}\0{self.version}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "big")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Resource):
            return NotImplemented
        return self.name == other.name and self.version == other.version and self.type_url == other.type_url

    def __hash__(self) -> int:
        return hash((self.name, self.version))


def make_resource(name: str, type_url: str, body: bytes, configs: Sequence[ConfigKey] = ()) -> Resource:
    """A resource with its version computed from its bytes."""
    version = hashlib.blake2b(body, digest_size=8).hexdigest()
    return Resource(name, type_url, body, version, configs)
