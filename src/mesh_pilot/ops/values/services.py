"""Services, merged over their registries, and their endpoints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import attrs

from mesh_pilot.model.json import SPREAD, Json, as_json, called
from mesh_pilot.model.service import Endpoint, Health, Service, ServiceKey
from mesh_pilot.ops.values.assessments import Assessment
from mesh_pilot.ops.values.service_use import ServiceUse


@attrs.frozen
class DeclaredPort:
    """A port of a service."""

    number: int
    name: str
    protocol: str


@attrs.frozen
class EndpointState:
    """An endpoint with its health."""

    address: str
    additional_addresses: Sequence[str] = attrs.field(metadata=called("additionalAddresses"))
    port: int
    service_port: str = attrs.field(metadata=called("servicePort"))
    """The name of the port of the service that it serves."""
    labels: Mapping[str, str]
    locality: str
    network: str
    weight: int
    health: str
    service_account: str = attrs.field(metadata=called("serviceAccount"))

    @classmethod
    def of(cls, endpoint: Endpoint) -> EndpointState:
        return cls(
            endpoint.address,
            endpoint.additional_addresses,
            endpoint.port,
            endpoint.service_port,
            endpoint.labels,
            str(endpoint.locality),
            endpoint.network,
            endpoint.weight,
            endpoint.health.value,
            endpoint.service_account,
        )


@attrs.frozen
class ServiceEndpoint:
    """An endpoint with the name of its service."""

    service: str
    namespace: str
    endpoint: EndpointState = attrs.field(metadata=SPREAD)


@attrs.frozen
class DeclaredService:
    """A service as it is declared, without its endpoints."""

    host: str
    namespace: str
    registry: str
    resolution: str
    external: bool
    """True for one outside the mesh."""
    addresses: Sequence[str]
    ports: Sequence[DeclaredPort]
    export_to: Sequence[str] = attrs.field(metadata=called("exportTo"))
    config: str | None
    """The object that declares it; null for one of a registry."""

    @classmethod
    def of(cls, service: Service) -> DeclaredService:
        return cls(
            service.host,
            service.namespace,
            service.registry,
            service.resolution.value,
            service.external,
            service.addresses,
            [DeclaredPort(port.number, port.name, port.protocol.value) for port in service.ports],
            sorted(service.export_to),
            str(service.config) if service.config else None,
        )


@attrs.frozen
class ServiceSummary:
    """A service in a list."""

    service: DeclaredService = attrs.field(metadata=SPREAD)
    assessment: Assessment = attrs.field(metadata=SPREAD)
    health: Mapping[str, int]
    """The number of endpoints by health."""
    endpoints: int
    healthy: int
    use: ServiceUse = attrs.field(metadata=SPREAD)

    @classmethod
    def of(
        cls, service: Service, endpoints: Sequence[Endpoint], assessment: Assessment, use: ServiceUse
    ) -> ServiceSummary:
        health, healthy = health_of(endpoints), Health.HEALTHY.value
        return cls(DeclaredService.of(service), assessment, health, len(endpoints), health.get(healthy, 0), use)


@attrs.frozen
class ServiceState:
    """A service with its endpoints and their health."""

    service: DeclaredService = attrs.field(metadata=SPREAD)
    assessment: Assessment = attrs.field(metadata=SPREAD)
    health: Mapping[str, int]
    endpoints_total: int
    endpoints: Sequence[EndpointState]
    """The endpoints that were asked for."""
    use: ServiceUse = attrs.field(metadata=SPREAD)
    called_by: Sequence[str]
    """The first of the clients, by name."""


def health_of(endpoints: Iterable[Endpoint]) -> dict[str, int]:
    """The number of endpoints by health."""
    return dict(Counter(each.health.value for each in endpoints))


def service_json(service: Service) -> Json:
    return as_json(DeclaredService.of(service))


def endpoints_json(key: ServiceKey, endpoints: Iterable[Endpoint]) -> Json:
    """The endpoints of a service."""
    shown = [as_json(EndpointState.of(each)) for each in endpoints]
    return {"service": key.host, "namespace": key.namespace, "endpoints": shown}
