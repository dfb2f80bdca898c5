"""Services, their ports and their endpoints, independent of the registry."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, NamedTuple

import attrs

from mesh_pilot.model.config import EPOCH, ConfigKey

if TYPE_CHECKING:
    from attrs import frozen as _frozen
else:

    def _frozen(cls: type) -> type:
        """The same as `attrs.frozen`, but only mypy sees to it: making a value that refuses changes takes five times as
        long, and a large mesh has a hundred thousand endpoints."""
        return attrs.define(cls, unsafe_hash=True)


UNSPECIFIED = "0.0.0.0"
"""The address of a service without an address (headless or host-only)."""

TLS_MODE_LABEL = "security.istio.io/tlsMode"
"""Label of a workload: the ``Endpoint.tls_mode`` of its endpoints."""
MESH_TLS_MODE = "istio"
"""The TLS mode of an endpoint whose proxy accepts mesh mTLS."""
CONNECT_TLS_MODE = "consul-connect"
"""The TLS mode of an endpoint that is a proxy of Consul's own mesh, and accepts mutual TLS of its CA alone."""

NETWORK_LABEL = "topology.istio.io/network"
CLUSTER_LABEL = "topology.istio.io/cluster"
"""Labels of a workload: its network and its cluster."""
PLACE_LABELS = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone", "topology.istio.io/subzone")
"""Labels of a workload: the parts of its locality."""
LOCALITY_LABEL = "istio-locality"
"""Label of a workload: its locality, with ``/`` or ``.`` between the parts."""
TOPOLOGY_LABELS = (*PLACE_LABELS, NETWORK_LABEL, CLUSTER_LABEL, LOCALITY_LABEL)
"""The labels that say where a workload is, and nothing of what it is."""
GATEWAY_PORT_LABEL = "networking.istio.io/gatewayPort"
"""On the gateway of a network: the port for connections from other networks."""
DEFAULT_GATEWAY_PORT = 15443
"""Where it says none."""


class Protocol(StrEnum):
    """The protocol of a port, spelled as in the Istio API."""

    HTTP = "HTTP"
    HTTP2 = "HTTP2"
    GRPC = "GRPC"
    GRPC_WEB = "GRPC-Web"
    HTTP_PROXY = "HTTP_PROXY"
    HTTPS = "HTTPS"
    TLS = "TLS"
    TCP = "TCP"
    MONGO = "Mongo"
    REDIS = "Redis"
    MYSQL = "MySQL"
    UDP = "UDP"
    AUTO = "UnsupportedProtocol"
    """Unknown: detected by sniffing where that is on, else treated as TCP."""

    @property
    def is_http(self) -> bool:
        return self in _HTTP

    @property
    def is_http2(self) -> bool:
        return self in (Protocol.HTTP2, Protocol.GRPC, Protocol.GRPC_WEB)

    @property
    def is_tls(self) -> bool:
        """TLS that the client itself speaks and a proxy can route by SNI only."""
        return self in (Protocol.HTTPS, Protocol.TLS)

    @property
    def is_tcp(self) -> bool:
        """Anything that is handled as bytes (TLS included)."""
        return self in _TCP

    @classmethod
    def parse(cls, name: str) -> Protocol:
        """The protocol of a name as written in a port's ``protocol`` or name prefix; AUTO when unknown."""
        return _BY_NAME.get(name.lower(), cls.AUTO)


_HTTP = frozenset((Protocol.HTTP, Protocol.HTTP2, Protocol.GRPC, Protocol.GRPC_WEB, Protocol.HTTP_PROXY))
_TCP = frozenset((Protocol.TCP, Protocol.HTTPS, Protocol.TLS, Protocol.MONGO, Protocol.REDIS, Protocol.MYSQL))
_BY_NAME = {p.value.lower(): p for p in Protocol if p is not Protocol.AUTO}


class Resolution(Enum):
    """How a proxy finds the endpoints of a service."""

    CLIENT_SIDE = "EDS"
    """From us, by EDS (ServiceEntry STATIC, registries)."""
    DNS = "STRICT_DNS"
    DNS_ROUND_ROBIN = "LOGICAL_DNS"
    PASSTHROUGH = "ORIGINAL_DST"
    """Wherever the client was going (ServiceEntry NONE, headless services)."""
    DYNAMIC_DNS = "DYNAMIC_DNS"
    """Resolved per request by the proxy (wildcard hosts)."""


class Health(Enum):
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"
    DRAINING = "DRAINING"
    UNLISTED = "UNLISTED"
    """Known to its registry, but nothing that clients may connect to: it counts for the proxy of its workload alone."""


class TrafficDistribution(Enum):
    """The endpoints of a service that clients prefer (Kubernetes' ``trafficDistribution``)."""

    ANY = ""
    SAME_ZONE = "PreferSameZone"
    SAME_NODE = "PreferSameNode"


@attrs.frozen
class Port:
    """A port of a service."""

    number: int
    name: str
    protocol: Protocol
    target_port: int = 0
    """The port of its endpoints unless they have another; 0: ``number``."""
    target_name: str = ""
    """The name of that port in the workload, where the service does not give its number."""
    said_by: str = attrs.field(default="", eq=False)
    """The part of the declaration that says the protocol, for people: ``appProtocol``, ``metadata protocol``."""


class Locality(NamedTuple):
    region: str = ""
    zone: str = ""
    subzone: str = ""

    def __str__(self) -> str:
        return "/".join(self).rstrip("/")

    @classmethod
    def parse(cls, text: str) -> Locality:
        """``region/zone/subzone`` with the right parts optional."""
        parts = text.split("/", 2)
        return cls(*parts) if text else NOWHERE

    @classmethod
    def of_labels(cls, labels: Mapping[str, str]) -> Locality:
        """The locality that a workload's labels say: the parts, else `LOCALITY_LABEL`."""
        found = cls(*(labels.get(label, "") for label in PLACE_LABELS))
        if found != NOWHERE:
            return found
        text = labels.get(LOCALITY_LABEL, "")
        return cls.parse(text if "/" in text else text.replace(".", "/"))


NOWHERE = Locality()
"""No locality known."""


class ServiceKey(NamedTuple):
    """The key of a service: its full host name and its namespace."""

    host: str
    namespace: str


class NetworkGateway(NamedTuple):
    """A gateway of a network for clients of other networks."""

    address: str
    """An IP address or, until it is resolved, a host name."""
    port: int
    network: str
    """The network of the gateway; empty for a service where that depends on MeshNetworks."""
    cluster_id: str = ""
    """The cluster whose endpoints are reached through it; empty: those of any."""


@attrs.frozen
class Service:
    """A service as its registry declares it; endpoints are apart, because they change far more often."""

    host: str
    namespace: str
    ports: tuple[Port, ...] = ()
    addresses: tuple[str, ...] = ()
    """VIPs, IPs or CIDRs; empty when it has none (it then listens on the wildcard address)."""
    resolution: Resolution = Resolution.CLIENT_SIDE
    external: bool = False
    """Outside the mesh (ServiceEntry MESH_EXTERNAL): no mesh mTLS towards it."""
    export_to: frozenset[str] = frozenset()
    """Namespaces that may see it, ``*`` or ``.``; empty means the mesh's default."""
    labels: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    selector: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    subject_alt_names: tuple[str, ...] = ()
    """Identities to expect of its endpoints (ServiceEntry ``subjectAltNames``), or paths of such (``ns/shop/sa/a``)."""
    created: datetime = EPOCH
    registry: str = "External"
    """Name of the registry as Istio prints it, for people and for ``fromRegistry``; nothing is decided by it."""
    declared_by_users: bool = True
    """Declared by a ServiceEntry, not found in a registry."""
    headless: bool = False
    """Clients resolve and connect to its endpoints, each of which has a host name below the service's."""
    namespaced_name: bool = False
    """True if the short name is the first label of the host with the namespace, ``reviews.shop``, not the host."""
    traffic_distribution: TrafficDistribution = TrafficDistribution.ANY
    node_local: bool = False
    """Clients use the endpoints on their own node only (Kubernetes' ``internalTrafficPolicy: Local``)."""
    config: ConfigKey | None = None
    """The config it was made from, if any."""
    auto_address: str = ""
    """Address given by us because it has none, of 241.0.0.0/8; used where a proxy captures DNS.

    The same for all services of a host: a client sees one of them.
    """
    cluster_id: str = ""
    """The cluster of the registry that has it; empty if it is of no cluster, as those of ServiceEntries."""
    cluster_addresses: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The addresses in each cluster of a service of several, by cluster id, of the first cluster first."""
    external_addresses: tuple[str, ...] = ()
    """The addresses for clients outside its cluster, IPs or host names: of load balancers, ``externalIPs``, nodes."""
    external_ports: tuple[tuple[int, int], ...] = ()
    """The ports at these addresses where they differ: number and node port."""
    external_name: str = ""
    """The name that it stands for (Kubernetes' ``externalName``)."""
    alias_of: str = ""
    """The host of the service of the mesh that it is an alias of; an alias has no ports."""
    aliases: tuple[ServiceKey, ...] = ()
    """The services that are aliases of it."""
    network_gateways: tuple[NetworkGateway, ...] = ()
    """The instances of it that say that they are gateways of a network (Consul)."""
    connect_id: str = ""
    """The SPIFFE id in Consul's own mesh, where it is in that, too, and proxies of both meshes call each other."""

    @property
    def key(self) -> ServiceKey:
        return ServiceKey(self.host, self.namespace)

    @property
    def depends_on_node(self) -> bool:
        """True if clients on different nodes have different endpoints."""
        return self.node_local or self.traffic_distribution is TrafficDistribution.SAME_NODE

    @property
    def configs(self) -> tuple[ConfigKey, ...]:
        """The config it was made from; empty if it comes from a registry."""
        return (self.config,) if self.config is not None else ()

    @property
    def order(self) -> tuple[datetime, str, str]:
        """Oldest first, then by host and namespace."""
        return (self.created, self.host, self.namespace)

    def port(self, number: int) -> Port | None:
        """The port of a number. One of UDP may have the number of another one, which goes first."""
        found = None
        for port in self.ports:
            if port.number == number:
                if port.protocol is not Protocol.UDP:
                    return port
                found = found or port
        return found

    def datagram_port(self, number: int) -> Port | None:
        """The port of a number for datagrams: that of UDP, else another one, as not all registries say the protocol."""
        udp = (port for port in self.ports if port.number == number and port.protocol is Protocol.UDP)
        return next(udp, None) or self.port(number)

    def addresses_in(self, cluster_id: str) -> tuple[str, ...]:
        """The addresses for clients of a cluster; where it has none there, those of its first cluster."""
        for each, addresses in self.cluster_addresses:
            if each == cluster_id:
                return addresses
        return self.addresses


class Registration(NamedTuple):
    """The registration of an endpoint, in registries where a proxy can name the registration that it serves."""

    node: str
    service: str
    id: str


SERVICE_LABEL = "service.mesh-pilot.io/"
"""The prefix of the labels by which objects select the proxies that are registered as a service:
``service.mesh-pilot.io/web: "true"`` for the service ``web`` of Consul. They are never given to a proxy."""

REGISTRATION_METADATA = (
    Registration("REGISTRATION_NODE", "REGISTRATION_SERVICE", "REGISTRATION_ID"),
    Registration("CONSUL_NODE", "CONSUL_SERVICE", "CONSUL_SERVICE_ID"),
)
"""The node metadata in which a proxy names its registration; earlier ones win."""


@_frozen
class Endpoint:
    """One address and port that serves one service port."""

    address: str
    """IP, host name (DNS services), or path of a Unix socket."""
    port: int
    """0 for a Unix socket."""
    service_port: str
    """Name of the service port that it serves."""
    labels: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    locality: Locality = NOWHERE
    network: str = ""
    cluster_id: str = ""
    """The cluster, or Consul datacenter, that it is of; empty: unknown, and then that of any client."""
    weight: int = 1
    service_account: str = ""
    """SPIFFE id (``spiffe://cluster.local/ns/shop/sa/reco``) or empty; from a registry also without scheme and trust
    domain (``ns/shop/sa/reco``), which is then the mesh's own."""
    tls_mode: str = ""
    """``MESH_TLS_MODE`` where the endpoint's proxy accepts mesh mTLS, ``CONNECT_TLS_MODE`` where it is one of Consul's
    own mesh, else empty."""
    namespace: str = ""
    workload: str = ""
    node: str = ""
    """The machine that it runs on, in registries that say so."""
    host_name: str = ""
    """The host name of the endpoint in a headless service, without the domain of its namespace: ``web-0.web``."""
    is_private: bool = False
    """True if only clients of the same cluster may use it."""
    health: Health = Health.HEALTHY
    registration: Registration | None = None
    additional_addresses: tuple[str, ...] = ()
    """Further IP addresses of the same workload, of the other IP version: clients use whichever answers."""
    failover_rank: int = 0
    """Gets traffic only where no endpoint of a lower rank can, whatever clients prefer else: of a registry that says
    who takes over for a service, and in which order."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """All its addresses."""
        return (self.address, *self.additional_addresses)

    @property
    def is_unix(self) -> bool:
        return self.port == 0 and self.address.startswith(("/", "@"))


@attrs.frozen
class Instance:
    """An endpoint with its service and port: inbound traffic that a sidecar at that address must accept."""

    service: Service
    port: Port
    endpoint: Endpoint
