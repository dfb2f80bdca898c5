"""Single Kubernetes objects, reduced to what a mesh needs.

Names, protocols and localities follow Istio's rules for Kubernetes ("Protocol Selection", "Locality Load Balancing").
The bodies are those of Galley's table of types: ``ServiceSpec``, ``Endpoints``, ``Pod`` and ``NodeSpec``. Names and
labels come from the metadata beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

import attrs

from mesh_pilot.api.k8s.io.api.core import v1 as core
from mesh_pilot.config.decode import Metadata
from mesh_pilot.model.service import Locality, Port, Protocol, Resolution, Service

EXPORT_TO_ANNOTATION = "networking.istio.io/exportTo"
LOCALITY_LABEL = "istio-locality"
NETWORK_LABEL = "topology.istio.io/network"
TEMPLATE_HASH_LABEL = "pod-template-hash"
_REGION_LABELS = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")
_ZONE_LABELS = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
_SUBZONE_LABELS = ("topology.istio.io/subzone",)

HEADLESS_CLUSTER_IP = "None"

_SERVER_FIRST_PORTS = frozenset((25, 53, 3306, 27017))
"""Ports of protocols in which the server speaks first. Without a declared protocol they are TCP: not sniffed."""

_APP_PROTOCOLS = {
    "kubernetes.io/h2c": Protocol.HTTP2,
    "kubernetes.io/ws": Protocol.HTTP,
    "kubernetes.io/wss": Protocol.TLS,
}


@attrs.frozen
class ServiceObject:
    """A Service, without endpoints."""

    service: Service
    with_unready: bool
    """``publishNotReadyAddresses``: unready addresses are endpoints too."""
    external_name: str = ""
    """Its target host, for type ExternalName."""


@attrs.frozen
class AddressPort:
    """One port at one address of an Endpoints object."""

    ip: str
    port: int
    service_port: str
    ready: bool
    pod: str = ""
    """``namespace/name``; empty if the address is not a pod's."""
    node: str = ""


@attrs.frozen
class EndpointsObject:
    """The addresses of the Service of the same name."""

    addresses: tuple[AddressPort, ...]


@attrs.frozen
class PodObject:
    """A pod's properties that its endpoints take on."""

    workload: str
    labels: Mapping[str, str] = attrs.field(hash=False)
    account: str = ""
    node: str = ""


@attrs.frozen
class NodeObject:
    locality: Locality


KubernetesObject = ServiceObject | EndpointsObject | PodObject | NodeObject

KubernetesBody = core.ServiceSpec | core.Endpoints | core.Pod | core.NodeSpec


def read_object(body: KubernetesBody, metadata: Metadata, domain: str) -> KubernetesObject:
    """The reduced form of a decoded object. ``domain``: the suffix of the host names of services."""
    match body:
        case core.ServiceSpec():
            return _service(body, metadata, domain)
        case core.Endpoints():
            return EndpointsObject(tuple(dict.fromkeys(_addresses(body))))
        case core.Pod():
            return _pod(body, metadata)
        case core.NodeSpec():
            names = (_REGION_LABELS, _ZONE_LABELS, _SUBZONE_LABELS)
            return NodeObject(Locality(*(_first(metadata.labels, alternatives) for alternatives in names)))
        case _:
            assert_never(body)


def service_host(name: str, namespace: str, domain: str) -> str:
    """``reviews.shop.svc.cluster.local``."""
    return f"{name}.{namespace}.svc.{domain}"


def _service(spec: core.ServiceSpec, metadata: Metadata, domain: str) -> ServiceObject:
    namespace = metadata.namespace
    external = spec.external_name if spec.type == "ExternalName" else ""
    headless = spec.cluster_ip == HEADLESS_CLUSTER_IP
    scopes = (scope.strip() for scope in metadata.annotations.get(EXPORT_TO_ANNOTATION, "").split(","))
    service = Service(
        host=service_host(metadata.name, namespace, domain),
        namespace=namespace,
        ports=tuple(_port(port) for port in spec.ports if port.protocol != "SCTP"),
        addresses=() if headless or external else tuple(filter(None, spec.cluster_ips or [spec.cluster_ip])),
        resolution=Resolution.DNS if external else Resolution.PASSTHROUGH if headless else Resolution.CLIENT_SIDE,
        external=bool(external),
        export_to=frozenset(namespace if scope == "." else scope for scope in scopes if scope),
        labels=metadata.labels,
        selector=spec.selector,
        created=metadata.created,
        registry="Kubernetes",
        declared_by_users=False,
        headless=headless and not external,
        namespaced_name=True,
    )
    return ServiceObject(service, spec.publish_not_ready_addresses, external)


def _port(port: core.ServicePort) -> Port:
    target = port.target_port.int_val if port.target_port is not None and port.target_port.type == 0 else 0
    return Port(port.port, port.name, _protocol(port), target)


def _protocol(port: core.ServicePort) -> Protocol:
    """The protocol that ``appProtocol`` declares, else the prefix of the port's name."""
    if port.protocol == "UDP":
        return Protocol.UDP
    if port.app_protocol:
        return _APP_PROTOCOLS.get(port.app_protocol) or Protocol.parse(port.app_protocol)
    name = port.name.lower()
    declared = Protocol.parse("grpc-web" if name.startswith("grpc-web") else name.partition("-")[0])
    return Protocol.TCP if declared is Protocol.AUTO and port.port in _SERVER_FIRST_PORTS else declared


def _addresses(body: core.Endpoints) -> list[AddressPort]:
    found: list[AddressPort] = []
    for subset in body.subsets:
        for ready, addresses in ((True, subset.addresses), (False, subset.not_ready_addresses)):
            for address in addresses:
                target = address.target_ref
                pod = f"{target.namespace}/{target.name}" if target is not None and target.kind == "Pod" else ""
                found += (
                    AddressPort(address.ip, port.port, port.name, ready, pod, address.node_name)
                    for port in subset.ports
                )
    return found


def _pod(body: core.Pod, metadata: Metadata) -> PodObject:
    name = metadata.name
    template = metadata.labels.get(TEMPLATE_HASH_LABEL)
    spec = body.spec or core.PodSpec()
    workload = name.rpartition(f"-{template}")[0] if template and f"-{template}" in name else name
    return PodObject(workload, metadata.labels, spec.service_account_name, spec.node_name)


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")
