"""The ports at which workloads serve, and the services that they serve there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from mesh_pilot.base.reading import as_object, as_objects
from mesh_pilot.explain.analysis.input import AnalysisInput
from mesh_pilot.explain.analysis.workloads import KnownWorkload, Workloads
from mesh_pilot.model.service import Protocol


@attrs.frozen
class ServedAt:
    """A port of a service at workloads with the same labels."""

    namespace: str
    labels: Mapping[str, str]
    """The labels of the workloads."""
    number: int
    """The port that the workloads listen on."""
    service_port: int
    """The port that clients of the service use."""
    protocol: Protocol
    host: str


class PortsServed:
    """All ports of services, by the workloads that serve them."""

    def __init__(self, picture: AnalysisInput, workloads: Workloads) -> None:
        self._all = tuple({_identity(each): each for each in _ports_served(picture, workloads)}.values())

    def of(self, namespace: str, labels: Mapping[str, str]) -> tuple[ServedAt, ...]:
        """The ports of the workloads that labels select in a namespace, or in all (empty)."""
        wanted = labels.items()
        return tuple(p for p in self._all if namespace in ("", p.namespace) and wanted <= p.labels.items())


def _identity(port: ServedAt) -> tuple[object, ...]:
    return (port.namespace, frozenset(port.labels.items()), port.number, port.service_port, port.host)


def _ports_served(picture: AnalysisInput, workloads: Workloads) -> Iterator[ServedAt]:
    for key, endpoints in picture.endpoints.items():
        service = picture.services.get(key)
        ports = {port.name: port for port in service.ports} if service is not None else {}
        for endpoint in endpoints:
            port = ports.get(endpoint.service_port)
            if port is not None and endpoint.port:
                where = endpoint.namespace or key.namespace
                yield ServedAt(where, endpoint.labels, endpoint.port, port.number, port.protocol, key.host)
    # Services of a dump have no endpoints in the picture: their selectors say who serves.
    for config in picture.of_kubernetes("Service"):
        selector = {str(k): str(v) for k, v in as_object(config.spec, "spec", "selector").items()}
        selected = workloads.matching(config.namespace, selector) if selector else ()
        for data in as_objects(config.spec, "spec", "ports"):
            number, target = data.get("port"), data.get("targetPort", data.get("port"))
            if isinstance(number, int) and isinstance(target, int):
                protocol = Protocol.parse(str(data.get("appProtocol") or str(data.get("name", "")).partition("-")[0]))
                host = f"{config.name}.{config.namespace}.svc.{picture.domain}"
                yield from (_at(workload, target, number, protocol, host) for workload in selected)


def _at(workload: KnownWorkload, number: int, service_port: int, protocol: Protocol, host: str) -> ServedAt:
    return ServedAt(workload.namespace, workload.labels, number, service_port, protocol, host)
