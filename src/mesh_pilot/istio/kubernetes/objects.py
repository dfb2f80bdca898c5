"""Single Kubernetes objects, reduced to what a mesh needs.

Names, protocols and localities follow Istio's rules for Kubernetes ("Protocol Selection", "Locality Load Balancing").
An object has the form in which an API server writes it; `sources.mcp.galley` brings those of a Galley into that form.
Of each object only what is used is kept, and equal labels, names and localities are one object: there may be many pods.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import attrs

from mesh_pilot.model.config import EPOCH
from mesh_pilot.model.service import (
    Health,
    Locality,
    Port,
    Protocol,
    Resolution,
    Service,
    TrafficDistribution,
)
from mesh_pilot.model.spiffe import workload_path

Object = Mapping[str, Any]
"""An object as an API server writes it: ``metadata`` and, by kind, ``spec``, ``status``, ``subsets``, ..."""

EXPORT_TO_ANNOTATION = "networking.istio.io/exportTo"
TRAFFIC_DISTRIBUTION_ANNOTATION = "networking.istio.io/traffic-distribution"
IDENTITIES_ANNOTATION = "alpha.istio.io/canonical-serviceaccounts"
"""SPIFFE ids to expect of a service's endpoints."""
ACCOUNTS_ANNOTATION = "alpha.istio.io/kubernetes-serviceaccounts"
"""The same as service accounts of the service's namespace."""
NODE_SELECTOR_ANNOTATION = "traffic.istio.io/nodeSelector"
"""On a Service of type NodePort: it is a gateway, at the nodes with these labels (a JSON object)."""
NETWORK_LABEL = "topology.istio.io/network"
TEMPLATE_HASH_LABEL = "pod-template-hash"
SERVICE_NAME_LABEL = "kubernetes.io/service-name"
IMPORT_LABEL = "multicluster.kubernetes.io/service-name"
"""The label of an EndpointSlice for a service of other clusters, which is left out here."""
PERSISTENT_SESSION_LABELS = ("istio.io/persistent-session", "istio.io/persistent-session-header")
"""On a Service: requests of a session go on to an endpoint that terminates."""

_REGION_LABELS = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")
_ZONE_LABELS = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
_SUBZONE_LABELS = ("topology.istio.io/subzone",)

HEADLESS_CLUSTER_IP = "None"

_SERVER_FIRST_PORTS = frozenset((25, 53, 3306, 27017))
"""Ports of protocols in which the server speaks first. Without a declared protocol they are TCP: not sniffed."""

_APP_PROTOCOLS = {
    "kubernetes.io/h2c": Protocol.HTTP2,
    "kubernetes.io/ws": Protocol.HTTP,
    "kubernetes.io/wss": Protocol.HTTPS,
}

_DISTRIBUTIONS = {
    "preferclose": TrafficDistribution.SAME_ZONE,
    "prefersamezone": TrafficDistribution.SAME_ZONE,
    "prefersamenode": TrafficDistribution.SAME_NODE,
}

_CRON_JOB = re.compile(r"(.+)-\d{8,10}")
"""The name of a Job that a CronJob has made."""


@attrs.frozen
class ServiceObject:
    """A Service, without endpoints."""

    service: Service
    external_name: str = ""
    """The target host, for type ExternalName."""
    distribution: TrafficDistribution | None = None
    """The traffic distribution that it declares; None: that of its namespace."""
    node_selector: Mapping[str, str] | None = attrs.field(default=None, hash=False)
    """Labels of the nodes at which it is a gateway; None if it is not one of type NodePort."""

    @property
    def keeps_sessions(self) -> bool:
        """True if endpoints that terminate still serve their sessions."""
        return any(self.service.labels.get(label) for label in PERSISTENT_SESSION_LABELS)


@attrs.frozen
class EndpointAddress:
    """An address of a set of endpoints, with every port of its group."""

    ip: str
    health: Health = Health.HEALTHY
    """UNHEALTHY: not ready. DRAINING: it terminates and still serves. UNLISTED: it terminates."""
    pod: str = ""
    """``namespace/name``; empty if the address does not name one."""


@attrs.frozen
class AddressGroup:
    """Addresses that have the same ports."""

    ports: tuple[tuple[str, int], ...]
    """Names, as of the service's ports, and numbers."""
    addresses: tuple[EndpointAddress, ...]


@attrs.frozen
class EndpointsObject:
    """An EndpointSlice, or an Endpoints object: addresses of one Service."""

    service: str
    """``namespace/name``."""
    groups: tuple[AddressGroup, ...]


@attrs.frozen
class PodObject:
    """A pod's properties that its endpoints take on."""

    workload: str
    labels: Mapping[str, str] = attrs.field(hash=False)
    account: str = ""
    """The path of its SPIFFE id, ``ns/shop/sa/web``."""
    node: str = ""
    addresses: tuple[str, ...] = ()
    serves: bool = True
    """True if it is ready, and neither done nor about to go."""
    host_name: str = ""
    """``hostname.subdomain``, for a pod with a subdomain: its own name below that of the headless service."""
    ports: tuple[tuple[str, int], ...] = ()
    """The named TCP ports."""


@attrs.frozen
class NodeObject:
    locality: Locality
    labels: Mapping[str, str] = attrs.field(default=attrs.Factory(dict), hash=False)
    """The labels that can select it, if it has an external address."""
    external_address: str = ""


@attrs.frozen
class NamespaceObject:
    network: str = ""
    distribution: TrafficDistribution | None = None
    labels: Mapping[str, str] = attrs.field(factory=dict, hash=False)


KubernetesObject = ServiceObject | EndpointsObject | PodObject | NodeObject | NamespaceObject


def object_name(found: Object) -> str:
    """``namespace/name``, or ``name`` of a cluster-scoped object."""
    metadata = found["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


def read_object(kind: str, found: Object, domain: str, cluster_id: str = "") -> KubernetesObject | None:
    """The reduced form of an object; None if it is of no use. ``domain``: the suffix of the host names of services.

    Raises ValueError, LookupError, TypeError or AttributeError for an object that is not as Kubernetes has it.
    """
    if kind == "Service":
        return _service(found, domain, cluster_id)
    return _READERS[kind](found)


def service_host(name: str, namespace: str, domain: str) -> str:
    """``reviews.shop.svc.cluster.local``."""
    return f"{name}.{namespace}.svc.{domain}"


# -- services


def _service(found: Object, domain: str, cluster_id: str) -> ServiceObject:
    metadata, spec = found["metadata"], found.get("spec") or {}
    name, namespace = metadata["name"], metadata["namespace"]
    annotations = metadata.get("annotations") or {}
    kind = spec.get("type") or "ClusterIP"
    external = (spec.get("externalName") or "") if kind == "ExternalName" else ""
    # ExternalName comes first: Kubernetes lets such a Service have a cluster IP of "None", too, and it is not headless.
    headless = spec.get("clusterIP") == HEADLESS_CLUSTER_IP
    addresses = () if headless or external else tuple(filter(None, spec.get("clusterIPs") or [spec.get("clusterIP")]))
    service = Service(
        host=service_host(name, namespace, domain),
        namespace=namespace,
        ports=tuple(port_of(port) for port in spec.get("ports") or () if port.get("protocol") != "SCTP"),
        addresses=addresses,
        resolution=Resolution.DNS if external else Resolution.PASSTHROUGH if headless else Resolution.CLIENT_SIDE,
        external=bool(external),
        export_to=frozenset(
            namespace if scope == "." else scope for scope in _listed(annotations, EXPORT_TO_ANNOTATION)
        ),
        labels=_labels(metadata),
        selector=dict(spec.get("selector") or {}),
        subject_alt_names=(
            *_listed(annotations, IDENTITIES_ANNOTATION),
            *(workload_path(namespace, account) for account in _listed(annotations, ACCOUNTS_ANNOTATION)),
        ),
        created=created_at(metadata),
        registry="Kubernetes",
        declared_by_users=False,
        headless=headless and not external,
        namespaced_name=True,
        cluster_id=cluster_id,
        external_addresses=tuple(_external_addresses(kind, spec, found.get("status") or {})),
        external_ports=_node_ports(kind, spec, annotations),
        node_local=spec.get("internalTrafficPolicy") == "Local",
        external_name=external,
    )
    distribution = _DISTRIBUTIONS.get((spec.get("trafficDistribution") or "").lower()) or _distribution(annotations)
    return ServiceObject(service, external, distribution, _node_selector(kind, annotations))


def port_of(port: Mapping[str, Any]) -> Port:
    """A port of a Service or ServiceImport."""
    target = port.get("targetPort") or 0
    name = sys.intern(port.get("name") or "")
    number, target_name = (target, "") if isinstance(target, int) else (0, target)
    protocol, said_by = _protocol(port)
    return Port(int(port["port"]), name, protocol, number, target_name, said_by)


def _protocol(port: Mapping[str, Any]) -> tuple[Protocol, str]:
    """The protocol that ``appProtocol`` declares, else the prefix of the port's name; and which of them does."""
    if port.get("protocol") == "UDP":
        return Protocol.UDP, "protocol"
    declared = port.get("appProtocol") or ""
    if declared in _APP_PROTOCOLS:
        return _APP_PROTOCOLS[declared], "appProtocol"
    name = (declared or port.get("name") or "").lower()
    found = Protocol.parse("grpc-web" if name.startswith("grpc-web") else name.partition("-")[0])
    if found is Protocol.AUTO and port["port"] in _SERVER_FIRST_PORTS:
        return Protocol.TCP, "the port number"
    return found, "appProtocol" if declared else "the port name"


def _distribution(annotations: Mapping[str, str]) -> TrafficDistribution | None:
    """The traffic distribution of an annotation, which may also say that there is none; None without one."""
    text = annotations.get(TRAFFIC_DISTRIBUTION_ANNOTATION)
    return _DISTRIBUTIONS.get(text.lower(), TrafficDistribution.ANY) if text else None


def _external_addresses(kind: str, spec: Object, status: Object) -> Iterator[str]:
    if kind == "LoadBalancer":
        for ingress in (status.get("loadBalancer") or {}).get("ingress") or ():
            if address := ingress.get("ip") or ingress.get("hostname"):
                yield address
    yield from spec.get("externalIPs") or ()


def _node_ports(kind: str, spec: Object, annotations: Mapping[str, str]) -> tuple[tuple[int, int], ...]:
    if kind != "NodePort" or NODE_SELECTOR_ANNOTATION not in annotations:
        return ()
    return tuple((port["port"], port["nodePort"]) for port in spec.get("ports") or () if port.get("nodePort"))


def _node_selector(kind: str, annotations: Mapping[str, str]) -> Mapping[str, str] | None:
    """The selector of a gateway's nodes. One that can't be read selects all, as in Istio."""
    text = annotations.get(NODE_SELECTOR_ANNOTATION)
    if kind != "NodePort" or text is None:
        return None
    try:
        selector = json.loads(text)
    except ValueError:
        return {}
    return {str(key): str(value) for key, value in selector.items()} if isinstance(selector, dict) else {}


def _listed(annotations: Mapping[str, str], name: str) -> Iterator[str]:
    return filter(None, (part.strip() for part in (annotations.get(name) or "").split(",")))


# -- endpoints


def _endpoint_slice(found: Object) -> EndpointsObject | None:
    metadata = found["metadata"]
    labels = metadata.get("labels") or {}
    service = labels.get(SERVICE_NAME_LABEL)
    if not service or IMPORT_LABEL in labels or found.get("addressType") == "FQDN":
        return None
    namespace = metadata["namespace"]
    ports = tuple(_endpoint_ports(found.get("ports")))
    addresses: dict[EndpointAddress, None] = {}
    for endpoint in found.get("endpoints") or ():
        health = _health(endpoint.get("conditions") or {})
        pod = _pod_of(endpoint.get("targetRef"), namespace)
        for ip in endpoint["addresses"]:
            addresses[EndpointAddress(ip, health, pod)] = None
    return EndpointsObject(f"{namespace}/{service}", (AddressGroup(ports, tuple(addresses)),) if addresses else ())


def _health(conditions: Mapping[str, Any]) -> Health:
    """The health by the conditions of an EndpointSlice; a missing one stands for true (``terminating`` for false)."""
    if conditions.get("ready") is not False:
        return Health.HEALTHY
    if conditions.get("terminating") is True:
        return Health.DRAINING if conditions.get("serving") is not False else Health.UNLISTED
    return Health.UNHEALTHY


def _endpoints(found: Object) -> EndpointsObject:
    metadata = found["metadata"]
    namespace = metadata["namespace"]
    groups = []
    for subset in found.get("subsets") or ():
        addresses: dict[EndpointAddress, None] = {}
        for health, part in ((Health.HEALTHY, "addresses"), (Health.UNHEALTHY, "notReadyAddresses")):
            for address in subset.get(part) or ():
                pod = _pod_of(address.get("targetRef"), namespace)
                addresses[EndpointAddress(address["ip"], health, pod)] = None
        if addresses:
            groups.append(AddressGroup(tuple(_endpoint_ports(subset.get("ports"))), tuple(addresses)))
    return EndpointsObject(f"{namespace}/{metadata['name']}", tuple(groups))


def _endpoint_ports(ports: Iterable[Mapping[str, Any]] | None) -> Iterator[tuple[str, int]]:
    for port in ports or ():
        if port.get("port") and port.get("protocol") != "SCTP":
            yield sys.intern(port.get("name") or ""), port["port"]


def _pod_of(target: Mapping[str, Any] | None, namespace: str) -> str:
    if not target or target.get("kind") != "Pod":
        return ""
    return f"{target.get('namespace') or namespace}/{target['name']}"


# -- pods, nodes, namespaces


def _pod(found: Object) -> PodObject:
    metadata, spec, status = found["metadata"], found.get("spec") or {}, found.get("status") or {}
    namespace = metadata["namespace"]
    account, subdomain = spec.get("serviceAccountName"), spec.get("subdomain")
    return PodObject(
        workload=sys.intern(_workload(metadata)),
        labels=_labels(metadata),
        account=_account(namespace, account) if account else "",
        node=sys.intern(spec.get("nodeName") or ""),
        addresses=tuple(_pod_addresses(status)),
        serves=_serves(metadata, status),
        host_name=f"{spec.get('hostname') or metadata['name']}.{subdomain}" if subdomain else "",
        ports=tuple(_named_ports(spec)),
    )


def _workload(metadata: Mapping[str, Any]) -> str:
    """The name of a pod's Deployment, StatefulSet, ..., or its own."""
    name: str = metadata["name"]
    template = (metadata.get("labels") or {}).get(TEMPLATE_HASH_LABEL)
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller"):
            owned_by: str = owner["name"]
            if owner.get("kind") == "ReplicaSet" and template:
                return owned_by.removesuffix(f"-{template}")
            made = _CRON_JOB.fullmatch(owned_by) if owner.get("kind") == "Job" else None
            return made[1] if made else owned_by
    return name.rpartition(f"-{template}")[0] if template and f"-{template}" in name else name


def _pod_addresses(status: Object) -> Iterator[str]:
    first = status.get("podIP")
    if first:
        yield _text(first)
    for address in status.get("podIPs") or ():
        if address["ip"] != first:
            yield _text(address["ip"])


def _serves(metadata: Object, status: Object) -> bool:
    if status.get("phase") in ("Failed", "Succeeded") or metadata.get("deletionTimestamp"):
        return False
    conditions = status.get("conditions")
    return conditions is None or any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _named_ports(spec: Object) -> Iterator[tuple[str, int]]:
    """The named TCP ports of containers, also of those that run next to (init containers that are restarted)."""
    beside = (c for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always")
    names = set()
    for container in (*(spec.get("containers") or ()), *beside):
        for port in container.get("ports") or ():
            name = port.get("name")
            if name and name not in names and port.get("protocol", "TCP") == "TCP":
                names.add(name)
                yield sys.intern(name), port["containerPort"]


def _node(found: Object) -> NodeObject:
    metadata = found["metadata"]
    labels = metadata.get("labels") or {}
    locality = Locality(*(_first(labels, names) for names in (_REGION_LABELS, _ZONE_LABELS, _SUBZONE_LABELS)))
    addresses = (found.get("status") or {}).get("addresses") or ()
    external = next((a["address"] for a in addresses if a["type"] == "ExternalIP" and a.get("address")), "")
    return NodeObject(locality, dict(labels) if external else {}, external)


def _namespace(found: Object) -> NamespaceObject:
    metadata = found["metadata"]
    labels = dict(metadata.get("labels") or {})
    return NamespaceObject(labels.get(NETWORK_LABEL, ""), _distribution(metadata.get("annotations") or {}), labels)


_READERS: Mapping[str, Callable[[Object], KubernetesObject | None]] = {
    "EndpointSlice": _endpoint_slice,
    "Endpoints": _endpoints,
    "Pod": _pod,
    "Node": _node,
    "Namespace": _namespace,
}


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((_text(labels[name]) for name in names if labels.get(name)), "")


def _text(value: object) -> str:
    """A value that has to be a string: no API server has vouched for what comes from a file. Raises TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:40]!r} is not a string")
    return value


def created_at(metadata: Mapping[str, Any]) -> datetime:
    """When an object was made; any datetime stands as it is."""
    found = metadata.get("creationTimestamp")
    if not found:
        return EPOCH
    created = found if isinstance(found, datetime) else datetime.fromisoformat(found)
    return created if created.tzinfo else created.replace(tzinfo=UTC)


def _labels(metadata: Mapping[str, Any]) -> Mapping[str, str]:
    labels = metadata.get("labels")
    return _shared_labels(tuple(labels.items())) if labels else _NO_LABELS


_NO_LABELS: Mapping[str, str] = {}


@lru_cache(maxsize=4096)
def _shared_labels(items: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    """Labels as one object for all pods of a workload."""
    return {sys.intern(key): sys.intern(value) for key, value in items}


_account = lru_cache(maxsize=4096)(workload_path)
