"""Names that bind resources to each other: clusters, and the secrets they and listeners refer to.

Spelled as Istio spells them, because dashboards, EnvoyFilters and people match on them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

BLACK_HOLE = "BlackHoleCluster"
"""A cluster without endpoints: what is sent there fails."""
PASSTHROUGH = "PassthroughCluster"
"""Wherever the client was going."""
INBOUND_PASSTHROUGH_V4 = "InboundPassthroughClusterIpv4"
INBOUND_PASSTHROUGH_V6 = "InboundPassthroughClusterIpv6"

CREDENTIAL_PREFIX = "kubernetes://"
"""Secrets named by ``credentialName``."""
ROOTS_SUFFIX = "-cacert"
"""Ends the name of the secret with the roots that belong to a ``credentialName``."""
FILE_CERTIFICATE_PREFIX = "file-cert:"
FILE_ROOTS_PREFIX = "file-root:"

HTTP_RBAC = "envoy.filters.http.rbac"
"""The HTTP filter that carries out AuthorizationPolicies; its dynamic metadata is under this name."""
DRY_RUN_ALLOW = "istio_dry_run_allow_"
DRY_RUN_DENY = "istio_dry_run_deny_"
"""Prefixes of the dynamic metadata of policies in dry run."""


class Direction(StrEnum):
    OUTBOUND = "outbound"
    INBOUND = "inbound"


_DIRECTIONS = frozenset(Direction)


class ClusterName(NamedTuple):
    """The parts of a cluster's name; ``str()`` joins them."""

    direction: Direction
    port: int
    """The service port's number; for inbound the port that the workload listens on."""
    subset: str = ""
    host: str = ""

    def __str__(self) -> str:
        return f"{self.direction}|{self.port}|{self.subset}|{self.host}"

    @property
    def sni(self) -> str:
        """The same name in letters that a server name may have: how mTLS between proxies names its target."""
        return f"{self.direction}_.{self.port}_.{self.subset}_.{self.host}"


def outbound(host: str, port: int, subset: str = "") -> str:
    """``outbound|9080|v1|reviews.default.svc.cluster.local``."""
    return f"outbound|{port}|{subset}|{host}"


def inbound(port: int) -> str:
    """``inbound|8080||``."""
    return f"inbound|{port}||"


def outbound_sni(host: str, port: int, subset: str = "") -> str:
    """``outbound_.9080_.v1_.reviews.default.svc.cluster.local``: name of an outbound cluster as SNI."""
    return f"outbound_.{port}_.{subset}_.{host}"


def is_sni(name: str) -> bool:
    """Whether a cluster's name is spelled as a server name, as the clusters of AUTO_PASSTHROUGH gateways are."""
    return name.startswith(f"{Direction.OUTBOUND}_.")


def parse_cluster(name: str) -> ClusterName | None:
    """The parts of a cluster's name in either spelling, or None for a name of another kind."""
    parts = name.split("|", 3)
    if len(parts) != 4:
        parts = name.split("_.", 3)
    if len(parts) != 4 or parts[0] not in _DIRECTIONS or not parts[1].isdecimal():
        return None
    return ClusterName(Direction(parts[0]), int(parts[1]), parts[2], parts[3])


def credential(name: str) -> str:
    """The secret of a ``credentialName``: ``kubernetes://name``."""
    return name if name.startswith(CREDENTIAL_PREFIX) else CREDENTIAL_PREFIX + name


def credential_roots(name: str) -> str:
    """The secret with the roots of a ``credentialName``."""
    return credential(name) + ROOTS_SUFFIX


def file_certificate(chain: str, key: str) -> str:
    """The secret for a certificate chain and key that lie in files beside the proxy."""
    return f"{FILE_CERTIFICATE_PREFIX}{chain}~{key}"


def file_roots(path: str) -> str:
    """The secret for roots that lie in a file beside the proxy."""
    return FILE_ROOTS_PREFIX + path


def listener_name(bind: str, port: int) -> str:
    """``10.1.1.1_8080``."""
    return f"{bind}_{port}"
