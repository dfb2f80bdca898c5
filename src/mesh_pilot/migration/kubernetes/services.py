"""Services of a dump as ServiceEntries, and the Pods that they select as WorkloadEntries.

A Service with a selector whose endpoints are all known Pods becomes a ServiceEntry that selects WorkloadEntries, so
that a Pod that moves to a machine is one file; any other has its endpoints in itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from mesh_pilot.istio.kubernetes.objects import (
    EndpointsObject,
    PodObject,
    ServiceObject,
    object_name,
    read_object,
)
from mesh_pilot.istio.kubernetes.services import KubernetesServices
from mesh_pilot.istio.kubernetes.validation import check_object
from mesh_pilot.migration.base.fields import ForeignFields
from mesh_pilot.migration.base.left import reasons
from mesh_pilot.migration.base.making import NETWORKING, common_targets, endpoint_facts, make, port_name, service_entry
from mesh_pilot.migration.base.reading import ForeignObject
from mesh_pilot.migration.base.record import MigrationRecord, Spec, document
from mesh_pilot.model.config import Config, Severity
from mesh_pilot.model.events import Endpoints
from mesh_pilot.model.service import Endpoint, Health, Protocol, Service, TrafficDistribution

_READ = {"Service": "", "Endpoints": "", "Pod": "", "Node": "", "EndpointSlice": "discovery.k8s.io"}
_CLUSTERS_OWN = frozenset(("kube-system", "kube-public", "kube-node-lease"))
_OF_PODS_ONLY = frozenset(("pod-template-hash", "controller-revision-hash", "statefulset.kubernetes.io/pod-name"))
_DEFAULTS: Mapping[str, tuple[object, ...]] = {
    "sessionAffinity": ("None",),
    "internalTrafficPolicy": ("Cluster",),
    "externalTrafficPolicy": ("Cluster",),
    "ipFamilyPolicy": ("SingleStack",),
    "allocateLoadBalancerNodePorts": (True,),
    "publishNotReadyAddresses": (False,),
    "trafficDistribution": ("",),
}
"""The values that an API server writes into every Service."""
_READ_FIELDS = ("type", "clusterIP", "clusterIPs", "externalName", "selector", "ports", "ipFamilies")
_REASONS = reasons("kubernetes_service_fields")


class ClusterServices:
    """State: the Services, endpoints, Pods and Nodes of a dump."""

    def __init__(self, record: MigrationRecord, domain: str) -> None:
        self._record = record
        self._domain = domain
        self._join = KubernetesServices()
        self._services: dict[str, ForeignObject] = {}
        self._facts: dict[str, ServiceObject] = {}
        self._pods: dict[str, tuple[ForeignObject, PodObject]] = {}
        self._pods_at: dict[str, str] = {}
        self._with_endpoints: set[str] = set()
        self._own: set[str] = set()
        """Hosts of which the dump has a ServiceEntry."""
        self._made: dict[str, Spec] = {}
        """WorkloadEntries by the names of Pods."""

    def reads(self, group: str, kind: str) -> bool:
        """True for the kinds that are taken here."""
        return _READ.get(kind) == group

    def note(self, config: Config) -> None:
        """Note a ServiceEntry that the dump has itself."""
        if config.key.kind == "ServiceEntry":
            self._own |= set(config.spec.hosts)

    def put(self, kind: str, found: ForeignObject) -> None:
        """Take an object of one of these kinds."""
        data = _with_namespace(kind, found.data)
        try:
            problems = [each for each in check_object(kind, data, self._domain) if each.severity is Severity.ERROR]
            read = read_object(kind, data, self._domain) if not problems else None
            name = object_name(data)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            reason = f"is not as Kubernetes has it: {type(error).__name__} {error}"
            self._record.leave_object(found, reason, "dump it again")
            return
        for problem in problems:
            self._record.leave_object(found, f"{problem.reason}; the object is not taken", "fix it", path=problem.path)
        if read is None:
            if not problems:
                self._record.leave_object(found, "says nothing about a service", is_needless=True)
            return
        match read:
            case ServiceObject():
                if (own := _clusters_own(name, data)) is not None:
                    self._record.leave_object(found, own, is_needless=True)
                    return
                self._services[name], self._facts[name] = found, read
            case PodObject():
                self._pods[name] = (found, read)
                self._pods_at |= dict.fromkeys(read.addresses, name)
            case EndpointsObject():
                self._with_endpoints |= {read.service} if read.groups else set()
                self._record.take(kind)
            case _:
                self._record.take(kind)
        self._join.put(name, read)

    def finish(self) -> None:
        """Make the entries."""
        for name, found in sorted(self._services.items()):
            if self._facts[name].service.host in self._own:
                reason = "a ServiceEntry of the dump has its host; that one is taken"
                self._record.leave_object(found, reason, is_needless=True)
                continue
            if name not in self._with_endpoints:
                self._join_pods(name, self._facts[name])
            self._take(name, found)
        for name, (found, pod) in sorted(self._pods.items()):
            if name in self._made:
                made = self._made[name]
                if make(self._record, made, (found.name,), found.where):
                    self._record.take("Pod")
            else:
                reason = "no service that is taken has it as endpoint" if pod.serves else "no client can reach it"
                self._record.leave_object(found, reason, is_needless=True)

    def _join_pods(self, name: str, facts: ServiceObject) -> None:
        """Make the endpoints of a Service of which the dump has none out of the Pods that it selects."""
        selector = facts.service.selector
        namespace = name.partition("/")[0]
        if not selector or facts.external_name:
            return
        subsets = []
        for pod_name, (_, pod) in sorted(self._pods.items()):
            if pod_name.partition("/")[0] != namespace or not selector.items() <= pod.labels.items():
                continue
            if not pod.serves or not pod.addresses:
                continue
            named = dict(pod.ports)
            ports = [
                {"name": port.name, "port": named.get(port.target_name, 0) or port.target_port or port.number}
                for port in facts.service.ports
                if not port.target_name or port.target_name in named
            ]
            target = {"kind": "Pod", "name": pod_name.partition("/")[2], "namespace": namespace}
            subsets.append({"addresses": [{"ip": pod.addresses[0], "targetRef": target}], "ports": ports})
        metadata = {"name": name.partition("/")[2], "namespace": namespace}
        read = read_object("Endpoints", {"metadata": metadata, "subsets": subsets}, self._domain)
        if read is not None:
            self._join.put(name, read)

    def _take(self, name: str, found: ForeignObject) -> None:
        items = self._join.items(name)
        service = next(item for item in items if isinstance(item, Service))
        endpoints = [e for item in items if isinstance(item, Endpoints) for e in item.endpoints]
        healthy = [e for e in endpoints if e.health in (Health.HEALTHY, Health.DRAINING)]
        self._list_fields(found, service)
        ports = tuple(port for port in service.ports if port.protocol is not Protocol.UDP)
        if not ports:
            self._record.leave_object(found, "has no port of TCP", path="spec.ports")
            return
        service = attrs.evolve(service, ports=ports)
        short = name.partition("/")[2]
        # Only if every endpoint is a Pod of the dump can WorkloadEntries take the place of all of them.
        pods = {self._pods_at.get(endpoint.address, "") for endpoint in healthy}
        selects = bool(service.selector) and "" not in pods and not self._facts[name].external_name
        selector = dict(service.selector) if selects else None
        made = service_entry(service, healthy, short, selector=selector)
        if not make(self._record, made, (found.name,), found.where):
            return
        self._record.take("Service")
        if service.headless:
            reason = "a headless Service; clients get its endpoints from their proxy, not from DNS"
            self._record.change(found.name, reason)
        if not healthy:
            reason = "the dump has no endpoint that is ready; the ServiceEntry has none"
            self._record.leave_object(found, reason, "write a WorkloadEntry for each machine", path="endpoints")
        if selects:
            self._take_pods(healthy, service)

    def _take_pods(self, endpoints: list[Endpoint], service: Service) -> None:
        targets = common_targets(endpoints)
        names = {port.name: port_name(port) for port in service.ports}
        for endpoint in endpoints:
            pod_name = self._pods_at[endpoint.address]
            namespace, _, short = pod_name.partition("/")
            facts = endpoint_facts(endpoint)
            labels = {key: value for key, value in facts.get("labels", {}).items() if key not in _OF_PODS_ONLY}
            spec: Spec = {"address": endpoint.address, **facts, **({"labels": labels} if labels else {})}
            made = self._made.setdefault(
                pod_name, document(NETWORKING, "WorkloadEntry", namespace, short, spec, labels)
            )
            if endpoint.port != targets[endpoint.service_port] and endpoint.service_port in names:
                made["spec"].setdefault("ports", {})[names[endpoint.service_port]] = endpoint.port

    def _list_fields(self, found: ForeignObject, service: Service) -> None:
        def leave(path: str, reason: str, do: str) -> None:
            self._record.leave_object(found, reason, do, path=path)

        fields = ForeignFields(found.data.get("spec"), leave, "spec")
        fields.pass_over(*_READ_FIELDS)
        for name, defaults in _DEFAULTS.items():
            if found.data.get("spec", {}).get(name) in defaults:  # type: ignore[attr-defined]  # it was read as such
                fields.pass_over(name)
        for index, port in enumerate(found.data.get("spec", {}).get("ports") or ()):  # type: ignore[attr-defined]
            if port.get("protocol", "TCP") != "TCP":
                leave(f"spec.ports[{index}].protocol", "proxies carry TCP only", "")
            if port.get("nodePort"):
                self._record.change("all Services", "node ports are ports of the cluster's nodes, and are left out")
        fields.finish(_REASONS)
        if service.traffic_distribution is not TrafficDistribution.ANY and not fields.has("trafficDistribution"):
            leave("metadata.annotations", *_REASONS["trafficDistribution"])


def _with_namespace(kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
    if kind == "Node" or data["metadata"].get("namespace"):
        return data
    return {**data, "metadata": {**data["metadata"], "namespace": "default"}}


def _clusters_own(name: str, data: Mapping[str, Any]) -> str | None:
    """Why a Service is not of the mesh; None if it is."""
    namespace = name.partition("/")[0]
    labels = data["metadata"].get("labels") or {}
    if namespace in _CLUSTERS_OWN or name == "default/kubernetes":
        return "a Service of the cluster itself"
    if labels.get("app") == "istiod" or labels.get("istio") == "pilot":
        return "a Service of istiod, which mesh-pilot takes the place of"
    return None
