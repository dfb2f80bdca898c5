"""Names of clusters, listeners, secrets and statistics.

Spelled as Istio spells them, because dashboards, EnvoyFilters and people match on them.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from mesh_pilot.model.resource import IDENTITY_SECRET
from mesh_pilot.model.service import Port, Service

BLACK_HOLE = "BlackHoleCluster"
"""A cluster without endpoints: requests and connections to it fail."""
PASSTHROUGH = "PassthroughCluster"
"""The cluster for the client's original destination."""
REQUESTED_HOST = "AllowAnyDynamicDNSCluster"
"""The cluster that sends a request to its own host, as DNS says."""
INBOUND_PASSTHROUGH = "InboundPassthroughCluster"

CREDENTIAL_PREFIX = "kubernetes://"
"""Begins the names of secrets named by ``credentialName``."""
GATEWAY_CREDENTIAL_PREFIX = "kubernetes-gateway://"
"""The same of the Gateway API: ``kubernetes-gateway://namespace/name``."""
CA_CONFIG_MAP_PREFIX = "configmap://"
"""Begins the names of secrets with the CA certificates of a ConfigMap: ``configmap://namespace/name-cacert``."""
CREDENTIAL_PREFIXES = (CREDENTIAL_PREFIX, GATEWAY_CREDENTIAL_PREFIX, CA_CONFIG_MAP_PREFIX)
BUILTIN_CREDENTIAL = "builtin://"
"""In place of a credential's name: the certificate that the proxy has from the mesh."""
INVALID_CREDENTIAL = "invalid://"
"""In place of a credential's name: none, so that no connection is made."""
ROOTS_SUFFIX = "-cacert"
"""Ends the name of the secret with the roots of a ``credentialName``."""
CONNECT_PREFIX = "consul-connect:"
"""Begins the names of secrets of Consul's own mesh."""
CONNECT_ROOTS_SECRET = f"{CONNECT_PREFIX}roots"
CONNECT_CALLER_SECRET = f"{CONNECT_PREFIX}caller"
"""The leaf of the service that the proxy which asks for it is: one name, so that all callers share their clusters."""
CONNECT_SERVICE_PREFIX = f"{CONNECT_PREFIX}service/"
"""Begins the name of the secret with the leaf of a service, which comes next."""
FILE_CERTIFICATE_PREFIX = "file-cert:"
FILE_ROOTS_PREFIX = "file-root:"
SYSTEM_ROOTS_SECRET = f"{FILE_ROOTS_PREFIX}system"
"""The secret with the CA certificates of a proxy's operating system."""

HTTP_RBAC = "envoy.filters.http.rbac"
"""The HTTP filter that enforces AuthorizationPolicies; its dynamic metadata has this name."""
DRY_RUN_ALLOW = "istio_dry_run_allow_"
DRY_RUN_DENY = "istio_dry_run_deny_"
"""Prefixes of the dynamic metadata of dry-run policies."""


class Direction(StrEnum):
    OUTBOUND = "outbound"
    INBOUND = "inbound"


_DIRECTIONS = frozenset(Direction)
UDP_PORT = "/udp"
"""Behind the port in the name of a cluster for datagrams; Istio has none."""


class ClusterName(NamedTuple):
    """The parts of a cluster's name; ``str()`` joins them."""

    direction: Direction
    port: int
    """The service port; for inbound clusters the workload port."""
    subset: str = ""
    host: str = ""
    datagrams: bool = False
    """True for the cluster of datagrams: a service may have a TCP and a UDP port of one number."""

    def __str__(self) -> str:
        return f"{self.direction}|{self.port}{UDP_PORT if self.datagrams else ''}|{self.subset}|{self.host}"

    @property
    def sni(self) -> str:
        """The same name in characters that a server name may have: the SNI of mTLS between proxies."""
        return f"{self.direction}_.{self.port}_.{self.subset}_.{self.host}"


def outbound(host: str, port: int, subset: str = "") -> str:
    """``outbound|9080|v1|reviews.default.svc.cluster.local``."""
    return f"outbound|{port}|{subset}|{host}"


def inbound(port: int) -> str:
    """``inbound|8080||``."""
    return f"inbound|{port}||"


def outbound_datagrams(host: str, port: int, subset: str = "") -> str:
    """``outbound|53/udp||dns.shop.svc.cluster.local``."""
    return str(ClusterName(Direction.OUTBOUND, port, subset, host, datagrams=True))


def outbound_sni(host: str, port: int, subset: str = "") -> str:
    """``outbound_.9080_.v1_.reviews.default.svc.cluster.local``: name of an outbound cluster as SNI."""
    return f"outbound_.{port}_.{subset}_.{host}"


def is_sni(name: str) -> bool:
    """True if a cluster's name is spelled as a server name, like the clusters of AUTO_PASSTHROUGH gateways."""
    return name.startswith(f"{Direction.OUTBOUND}_.")


def parse_cluster(name: str) -> ClusterName | None:
    """The parts of a cluster's name in either spelling, or None for a name of another kind."""
    parts = name.split("|", 3)
    if len(parts) != 4:
        parts = name.split("_.", 3)
    if len(parts) != 4 or parts[0] not in _DIRECTIONS:
        return None
    port = parts[1].removesuffix(UDP_PORT)
    if not port.isdecimal():
        return None
    return ClusterName(Direction(parts[0]), int(port), parts[2], parts[3], datagrams=port != parts[1])


def credential(name: str) -> str:
    """The secret of a ``credentialName``: ``kubernetes://name``."""
    if name == BUILTIN_CREDENTIAL:
        return IDENTITY_SECRET
    return name if name.startswith((*CREDENTIAL_PREFIXES, INVALID_CREDENTIAL)) else CREDENTIAL_PREFIX + name


def credential_roots(name: str) -> str:
    """The secret with the roots of a ``credentialName``. Names of the Gateway API may be the secret's already."""
    if name.startswith((GATEWAY_CREDENTIAL_PREFIX, CA_CONFIG_MAP_PREFIX)) and name.endswith(ROOTS_SUFFIX):
        return name
    return credential(name) + ROOTS_SUFFIX


def file_certificate(chain: str, key: str) -> str:
    """The secret for a certificate chain and key in files of the proxy's host."""
    return f"{FILE_CERTIFICATE_PREFIX}{chain}~{key}"


def file_roots(path: str) -> str:
    """The secret for root certificates in a file of the proxy's host."""
    return FILE_ROOTS_PREFIX + path


def listener_name(bind: str, port: int) -> str:
    """``10.1.1.1_8080``."""
    return f"{bind}_{port}"


def datagram_listener_name(bind: str, port: int) -> str:
    """``0.0.0.0_53_udp``: a TCP listener may have the same address and port."""
    return f"{listener_name(bind, port)}_udp"


def bound_listener_name(bind: str, port: int) -> str:
    """``0.0.0.0_8080_bound``: of a listener that binds its port in a sidecar that captures connections."""
    return f"{listener_name(bind, port)}_bound"


def outbound_stat_name(pattern: str, service: Service, port: Port, subset: str) -> str:
    """The stat name of an outbound cluster by the pattern of MeshConfig ``outboundClusterStatName``.

    Empty for an empty pattern: the stat name is then the cluster's name.
    """
    return _filled_pattern(pattern, service, port).replace("%SUBSET_NAME%", subset)


def inbound_stat_name(pattern: str, service: Service, port: Port) -> str:
    """The stat name of an inbound cluster by the pattern of MeshConfig ``inboundClusterStatName``."""
    return _filled_pattern(pattern, service, port).replace("%SUBSET_NAME%", "")


def undeclared_stat_name(pattern: str) -> str:
    """The stat name of connections to ports that no service declares: the pattern of no service, and of port 0."""
    return re.sub("%[A-Z_]+%", lambda found: "0" if found[0] in ("%SERVICE_PORT%", "%TARGET_PORT%") else "", pattern)


def _filled_pattern(pattern: str, service: Service, port: Port) -> str:
    if "%" not in pattern:
        return pattern
    name = service.host.partition(".")[0]
    values = {
        "%SERVICE%": f"{name}.{service.namespace}" if service.namespaced_name else service.host,
        "%SERVICE_NAME%": name,
        "%SERVICE_FQDN%": service.host,
        "%SERVICE_PORT%": str(port.number),
        "%SERVICE_PORT_NAME%": port.name,
        "%TARGET_PORT%": str(port.target_port or port.number),
    }
    for variable, value in values.items():
        pattern = pattern.replace(variable, value)
    return pattern


def service_name(service: Service) -> str:
    """The name of a service in metrics: ``reviews`` of a registry's service, the host of one that users declared."""
    by_users = service.declared_by_users and not service.namespaced_name
    return service.host if by_users else service.host.partition(".")[0]
