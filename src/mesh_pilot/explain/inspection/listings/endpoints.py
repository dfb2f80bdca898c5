"""Endpoints, as ``istioctl proxy-config endpoints`` lists them: with their health where a live Envoy told it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import attrs

from mesh_pilot.base.reading import as_object, as_objects, as_string
from mesh_pilot.explain.inspection.dump import (
    ConfigDump,
    DumpedResource,
    DumpState,
    Message,
    number_of,
)
from mesh_pilot.explain.inspection.listings.clusters import discovery_type
from mesh_pilot.explain.inspection.listings.listing import Listing, Row, listing
from mesh_pilot.model.resource import CLUSTER, ENDPOINT

COLUMNS = ("ENDPOINT", "STATUS", "OUTLIER CHECK", "CLUSTER", "LOCALITY")

HEALTHY = "HEALTHY"
UNHEALTHY = "UNHEALTHY"


@attrs.frozen
class EndpointFilter:
    """The endpoints to list; what is empty lets all through."""

    address: str = ""
    port: int = 0
    cluster: str = ""
    status: str = ""


@attrs.frozen
class HostOfCluster:
    """An endpoint of a cluster."""

    address: str
    """IP address, ``unix://`` path, or ``envoy://`` listener."""
    port: int
    status: str
    """Envoy's HealthStatus; ``HEALTHY`` also where nothing says that it is not."""
    outlier: str
    """``OK`` or ``FAILED``; empty where only a live Envoy could tell."""
    cluster: str
    locality: str
    resource: DumpedResource

    @property
    def shown(self) -> str:
        host = f"[{self.address}]" if ":" in self.address and self.port else self.address
        return f"{host}:{self.port}" if self.port else self.address


def list_endpoints(dump: ConfigDump, wanted: EndpointFilter) -> Listing:
    """The endpoints by address, port and cluster."""
    found = [host for host in hosts_of(dump) if _admits(wanted, host)]
    found.sort(key=lambda host: (host.address, host.port, host.cluster))
    rows = (Row((h.shown, h.status, h.outlier, h.cluster, h.locality), h.resource) for h in found)
    return listing(dump, COLUMNS, rows)


def hosts_of(dump: ConfigDump) -> Iterator[HostOfCluster]:
    """The endpoints of all clusters: as Envoy sees its hosts where that is known, else as it was told."""
    clusters = dump.clusters
    if dump.host_statuses:
        for name, statuses in dump.host_statuses.items():
            resource = dump.endpoints.get(name) or clusters.get(name) or DumpedResource(ENDPOINT, name, {})
            yield from (_live_host(name, status, resource) for status in statuses)
        return
    assignments = dump.of(ENDPOINT)
    known = {resource.name for resource in assignments}
    inline = (_inline(cluster) for cluster in dump.of(CLUSTER) if cluster.name not in known)
    for resource in chain(assignments, (each for each in inline if each is not None)):
        if resource.state is DumpState.REFUSED:
            continue
        for group in as_objects(resource.message, "endpoints"):
            where = locality(group.get("locality"))
            for each in as_objects(group, "lb_endpoints"):
                address, port = address_of(as_object(each, "endpoint").get("address"))
                status = _status(each.get("health_status"))
                yield HostOfCluster(address, port, status, "", resource.name, where, resource)


def _inline(cluster: DumpedResource) -> DumpedResource | None:
    """The load assignment within a cluster that does not get its endpoints over EDS."""
    assignment = as_object(cluster.message, "load_assignment")
    if discovery_type(cluster) == "EDS" or not assignment:
        return None
    return attrs.evolve(cluster, type_url=ENDPOINT, message=assignment)


def _live_host(cluster: str, status: Message, resource: DumpedResource) -> HostOfCluster:
    address, port = address_of(status.get("address"))
    health = as_object(status, "health_status")
    failed = any(health.get(name) is True for name in ("failed_active_health_check", "failed_active_degraded_check"))
    return HostOfCluster(
        address,
        port,
        UNHEALTHY if failed else _status(health.get("eds_health_status")),
        "FAILED" if health.get("failed_outlier_check") is True else "OK",
        cluster,
        locality(status.get("locality")),
        resource,
    )


def _status(value: object) -> str:
    """Envoy takes hosts of unknown health for healthy."""
    status = as_string(value)
    return status if status not in ("", "UNKNOWN") else HEALTHY


def address_of(value: object) -> tuple[str, int]:
    """The address and port of Envoy's ``Address``; the port is 0 for what has none."""
    address = as_object(value)
    if socket := as_object(address, "socket_address"):
        return as_string(socket, "address"), number_of(socket.get("port_value"))
    if path := as_string(address, "pipe", "path"):
        return f"unix://{path}", 0
    internal = as_object(address, "envoy_internal_address")
    if name := as_string(internal, "server_listener_name"):
        return f"envoy://{name}/{as_string(internal, 'endpoint_id')}", 0
    return "unknown", 0


def locality(value: object) -> str:
    """A locality as Istio writes it: ``region/zone/subzone``."""
    place = as_object(value)
    return "/".join(as_string(place, name) for name in ("region", "zone", "sub_zone")).rstrip("/")


def _admits(wanted: EndpointFilter, host: HostOfCluster) -> bool:
    return (
        wanted.address.lower() in ("", host.address.lower(), host.shown.lower())
        and wanted.port in (0, host.port)
        and wanted.cluster.lower() in ("", host.cluster.lower())
        and wanted.status.lower() in ("", host.status.lower())
    )
