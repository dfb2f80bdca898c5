"""Services of clusters that know each other: Kubernetes' Multi-Cluster Services API (KEP-1645), as Istio has it.

A ServiceExport makes a cluster's endpoints of a service known to the others. A ServiceImport gives the service an
address in a cluster, and the host ``reviews.shop.svc.clusterset.local``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import attrs

from mesh_pilot.istio.kubernetes.objects import Object, ServiceObject, created_at, port_of, service_host
from mesh_pilot.model.net import is_ip
from mesh_pilot.model.service import Resolution, Service

CLUSTER_SET_DOMAIN = "clusterset.local"


class ClusterSetMode(Enum):
    """How far the API counts; each mode has what those before it have."""

    OFF = "off"
    EXPORTS = "exports"
    """Services that are not exported are for clients of the same cluster (ENABLE_MCS_SERVICE_DISCOVERY)."""
    HOSTS = "hosts"
    """Imported services have hosts of the cluster set (ENABLE_MCS_HOST)."""
    STRICT = "strict"
    """Hosts of the cluster reach endpoints of the same cluster only (ENABLE_MCS_CLUSTER_LOCAL)."""

    @property
    def has_hosts(self) -> bool:
        return self in (ClusterSetMode.HOSTS, ClusterSetMode.STRICT)

    def is_private(self, *, exported: bool, set_host: bool = False) -> bool:
        """True if a service's endpoints are for clients of the same cluster; ``set_host``: by its host of the set."""
        if self is ClusterSetMode.OFF:
            return False
        return not exported or (self is ClusterSetMode.STRICT and not set_host)


@attrs.frozen
class ServiceExportObject:
    """A service's endpoints are known to other clusters."""


@attrs.frozen
class ServiceImportObject:
    """A service of the cluster set."""

    service: Service
    """As it is where this cluster does not have it itself."""

    def of(self, own: ServiceObject | None) -> Service:
        """The service of the cluster set: as this cluster's own of that name, if there is one."""
        if own is None:
            return self.service
        return attrs.evolve(
            own.service,
            host=self.service.host,
            addresses=self.service.addresses,
            resolution=Resolution.CLIENT_SIDE,
            external=False,
            headless=False,
            external_addresses=(),
            external_ports=(),
        )


def read_import(found: Object, cluster_id: str) -> ServiceImportObject | None:
    """None for one without an address: its clients would resolve endpoints themselves."""
    metadata: Mapping[str, Any] = found["metadata"]
    spec = found.get("spec") or found  # v1beta1 has no spec
    addresses = tuple(sorted(address for address in spec.get("ips") or () if is_ip(address)))
    if not addresses:
        return None
    service = Service(
        host=service_host(metadata["name"], metadata["namespace"], CLUSTER_SET_DOMAIN),
        namespace=metadata["namespace"],
        ports=tuple(port_of(port) for port in spec.get("ports") or () if port.get("protocol") != "SCTP"),
        addresses=addresses,
        created=created_at(metadata),
        registry="Kubernetes",
        declared_by_users=False,
        namespaced_name=True,
        cluster_id=cluster_id,
    )
    return ServiceImportObject(service)
