"""A registry's service as a synthetic ServiceEntry, for control planes that read from this one.

A ServiceEntry cannot express everything: unhealthy endpoints are left out, and an endpoint that lacks one of the
service's ports seems to have it.
"""

from __future__ import annotations

from collections.abc import Iterable

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.model.net import UNIX_PREFIX
from mesh_pilot.model.service import TLS_MODE_LABEL, UNSPECIFIED, Endpoint, Health, Resolution, Service

_RESOLUTION = {
    Resolution.PASSTHROUGH: api.ServiceEntryResolution.NONE,
    Resolution.CLIENT_SIDE: api.ServiceEntryResolution.STATIC,
    Resolution.DNS: api.ServiceEntryResolution.DNS,
    Resolution.DNS_ROUND_ROBIN: api.ServiceEntryResolution.DNS_ROUND_ROBIN,
    Resolution.DYNAMIC_DNS: api.ServiceEntryResolution.DYNAMIC_DNS,
}


def synthetic_entry(service: Service, endpoints: Iterable[Endpoint]) -> api.ServiceEntry:
    """The ServiceEntry that declares a service and its healthy endpoints."""
    location = api.ServiceEntryLocation
    return api.ServiceEntry(
        hosts=[service.host],
        addresses=[address for address in service.addresses if address != UNSPECIFIED],
        ports=[
            api.ServicePort(
                number=port.number, name=port.name, protocol=port.protocol.value, target_port=port.target_port
            )
            for port in service.ports
        ],
        location=location.MESH_EXTERNAL if service.external else location.MESH_INTERNAL,
        resolution=_RESOLUTION[service.resolution],
        endpoints=_workloads(endpoints),
        export_to=sorted(service.export_to),
        subject_alt_names=list(service.subject_alt_names),
    )


def _workloads(endpoints: Iterable[Endpoint]) -> list[api.WorkloadEntry]:
    """One workload for the endpoints that differ in nothing but the service port.

    An endpoint with a second address port for the same service port needs a second workload (``rank``).
    """
    found: dict[object, api.WorkloadEntry] = {}
    for endpoint in endpoints:
        if endpoint.health is not Health.HEALTHY:
            continue
        attributes = (
            endpoint.address,
            tuple(sorted(endpoint.labels.items())),
            endpoint.locality,
            endpoint.network,
            endpoint.weight,
            endpoint.service_account,
            endpoint.tls_mode,
        )
        rank = 0
        while (attributes, rank) in found and endpoint.service_port in found[attributes, rank].ports:
            rank += 1
        entry = found.setdefault((attributes, rank), _workload(endpoint))
        if not endpoint.is_unix:
            entry.ports[endpoint.service_port] = endpoint.port
    return list(found.values())


def _workload(endpoint: Endpoint) -> api.WorkloadEntry:
    account = endpoint.service_account.rpartition("/sa/")[2]
    labels = dict(endpoint.labels)
    if endpoint.tls_mode or account:
        labels.setdefault(TLS_MODE_LABEL, endpoint.tls_mode or "disabled")
    return api.WorkloadEntry(
        address=f"{UNIX_PREFIX}{endpoint.address}" if endpoint.is_unix else endpoint.address,
        labels=labels,
        locality=str(endpoint.locality),
        network=endpoint.network,
        weight=endpoint.weight,
        service_account=account,
    )
