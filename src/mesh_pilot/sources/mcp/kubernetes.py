"""Kubernetes' own objects as a Galley offers them, each read by itself: what of it matters to a mesh.

Names, protocols and localities follow Istio's rules for Kubernetes services ("Protocol Selection", "Locality Load
Balancing"). The bodies are those of Galley's table of types: ``ServiceSpec``, ``Endpoints``, ``Pod`` and ``NodeSpec``;
names and labels are those of the envelope.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

import attrs

from mesh_pilot.api.k8s.io.api.core import v1 as core
from mesh_pilot.model.service import Locality, Port, Protocol, Resolution, Service
from mesh_pilot.sources.mcp.messages import Resource

EXPORT_TO = "networking.istio.io/exportTo"
LOCALITY = "istio-locality"
NETWORK = "topology.istio.io/network"
TEMPLATE_HASH = "pod-template-hash"
_REGIONS = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")
_ZONES = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
_SUBZONES = ("topology.istio.io/subzone",)

HEADLESS = "None"
"""The cluster IP of a service that has none."""

_PLAIN_PORTS = frozenset((25, 53, 3306, 27017))
"""Of protocols in which servers speak first: there, a port whose name does not say what it speaks is not sniffed."""

_APP_PROTOCOLS = {
    "kubernetes.io/h2c": Protocol.HTTP2,
    "kubernetes.io/ws": Protocol.HTTP,
    "kubernetes.io/wss": Protocol.TLS,
}


@attrs.frozen
class KubernetesService:
    """A Service, but for its endpoints."""

    service: Service
    with_unready: bool
    """Whether addresses that are not ready serve it too."""
    external_name: str = ""
    """The host that it stands for, if it is of type ExternalName."""


@attrs.frozen
class Address:
    """A port of an address that serves a Service."""

    ip: str
    port: int
    service_port: str
    ready: bool
    pod: str = ""
    """``namespace/name``; empty for what is no pod."""
    node: str = ""


@attrs.frozen
class KubernetesEndpoints:
    """The addresses of a Service of the same name."""

    addresses: tuple[Address, ...]


@attrs.frozen
class Pod:
    """What the pod at an address says of it."""

    workload: str
    labels: Mapping[str, str] = attrs.field(hash=False)
    account: str = ""
    node: str = ""


@attrs.frozen
class Node:
    locality: Locality


KubernetesValue = KubernetesService | KubernetesEndpoints | Pod | Node

Body = core.ServiceSpec | core.Endpoints | core.Pod | core.NodeSpec


def read_kubernetes(body: Body, resource: Resource, domain: str) -> KubernetesValue:
    """What a decoded body means, in the envelope that it came in. Raises ValueError for what can't be."""
    match body:
        case core.ServiceSpec():
            return _service(body, resource, domain)
        case core.Endpoints():
            return KubernetesEndpoints(tuple(dict.fromkeys(_addresses(body))))
        case core.Pod():
            return _pod(body, resource)
        case core.NodeSpec():
            region, zone, subzone = (_first(resource.labels, names) for names in (_REGIONS, _ZONES, _SUBZONES))
            return Node(Locality(region, zone, subzone))
        case _:
            assert_never(body)


def _service(spec: core.ServiceSpec, resource: Resource, domain: str) -> KubernetesService:
    namespace, _, name = resource.name.rpartition("/")
    if not namespace or not name:
        raise ValueError(f"{resource.name!r} is not namespace/name")
    external = spec.external_name if spec.type == "ExternalName" else ""
    headless = spec.cluster_ip == HEADLESS
    said = resource.annotations.get(EXPORT_TO, "")
    export_to = frozenset(namespace if e.strip() == "." else e.strip() for e in said.split(",") if e.strip())
    service = Service(
        host=f"{name}.{namespace}.svc.{domain}",
        namespace=namespace,
        ports=tuple(_port(port) for port in spec.ports if port.protocol != "SCTP"),
        addresses=() if headless or external else tuple(filter(None, spec.cluster_ips or [spec.cluster_ip])),
        resolution=Resolution.DNS if external else Resolution.PASSTHROUGH if headless else Resolution.CLIENT_SIDE,
        external=bool(external),
        export_to=export_to,
        labels=resource.labels,
        selector=spec.selector,
        created=resource.created,
        registry="Kubernetes",
    )
    return KubernetesService(service, spec.publish_not_ready_addresses, external)


def _port(port: core.ServicePort) -> Port:
    target = port.target_port.int_val if port.target_port is not None and port.target_port.type == 0 else 0
    return Port(port.port, port.name, _protocol(port), target)


def _protocol(port: core.ServicePort) -> Protocol:
    """As ``appProtocol`` says, else as the name begins."""
    if port.protocol == "UDP":
        return Protocol.UDP
    if port.app_protocol:
        return _APP_PROTOCOLS.get(port.app_protocol) or Protocol.parse(port.app_protocol)
    name = port.name.lower()
    said = Protocol.parse("grpc-web" if name.startswith("grpc-web") else name.partition("-")[0])
    return Protocol.TCP if said is Protocol.AUTO and port.port in _PLAIN_PORTS else said


def _addresses(body: core.Endpoints) -> list[Address]:
    found: list[Address] = []
    for subset in body.subsets:
        for ready, addresses in ((True, subset.addresses), (False, subset.not_ready_addresses)):
            for address in addresses:
                target = address.target_ref
                pod = f"{target.namespace}/{target.name}" if target is not None and target.kind == "Pod" else ""
                found += (
                    Address(address.ip, port.port, port.name, ready, pod, address.node_name) for port in subset.ports
                )
    return found


def _pod(body: core.Pod, resource: Resource) -> Pod:
    name = resource.name.rpartition("/")[2]
    template = resource.labels.get(TEMPLATE_HASH)
    spec = body.spec or core.PodSpec()
    workload = name.rpartition(f"-{template}")[0] if template and f"-{template}" in name else name
    return Pod(workload, resource.labels, spec.service_account_name, spec.node_name)


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")
