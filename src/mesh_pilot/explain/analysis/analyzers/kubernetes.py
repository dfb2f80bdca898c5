"""Objects of Kubernetes in the same files: Services, Deployments, Pods, Namespaces; states that were written back."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping

from mesh_pilot.base.reading import as_object, as_objects
from mesh_pilot.explain.analysis import codes
from mesh_pilot.explain.analysis.findings import AnalysisMessage
from mesh_pilot.explain.analysis.mesh_context import AnalysisContext, found, full_name, listed
from mesh_pilot.explain.analysis.workloads import INJECT, PROXY_CONTAINER, Data, in_mesh_of
from mesh_pilot.model.config import Config
from mesh_pilot.model.service import Protocol

_MANAGED = "gateway.istio.io/managed"
_WAYPOINT = "istio.io-mesh-controller"
_CONTROLLERS = ("istio.io-gateway-controller", _WAYPOINT, "istio.io-eastwest-controller")
_APP_PROTOCOLS = {"kubernetes.io/h2c", "kubernetes.io/ws", "kubernetes.io/wss", "istio.io/hbone"}
_SYSTEM = ("istio-system", "kube-node-lease", "kube-public", "kube-system", "local-path-storage")
_KNOWN_PORTS = frozenset((3306, 27017, 53))
"""Ports that Istio takes for MySQL, MongoDB and DNS, whatever their name."""


def port_names(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Ports of Services whose name says no protocol."""
    for service in survey.of_kubernetes("Service"):
        if service.namespace in _SYSTEM or _is_istios(service) or service.labels.get(_MANAGED) in _CONTROLLERS:
            continue
        is_external = as_object(service.spec, "spec").get("type") == "ExternalName"
        for index, port in enumerate(as_objects(service.spec, "spec", "ports")):
            name = str(port.get("name", ""))
            if not (_is_unknown(port) or (name == "tcp" and is_external)):
                continue
            path = f"spec.ports[{index}]"
            if is_external:
                yield found(codes.EXTERNAL_NAME_PORT, service, path)
            else:
                arguments = name, port.get("port", 0), port.get("targetPort", 0)
                yield found(codes.PORT_NAME, service, path, *arguments)


def _is_istios(config: Config) -> bool:
    return "istio" in config.labels or config.labels.get("release") == "istio"


def _is_unknown(port: Data) -> bool:
    """True if Istio guesses the protocol of a port from its traffic."""
    if port.get("protocol") in ("UDP", "SCTP"):
        return port.get("protocol") == "SCTP"
    name = str(port.get("name", ""))
    if app := port.get("appProtocol"):
        if app in _APP_PROTOCOLS:
            return False
        name = str(app)
    if not name and port.get("port") in _KNOWN_PORTS:
        return False
    return not says_protocol(name)


def says_protocol(name: str) -> bool:
    """True if the name of a port is or begins with a protocol, as in ``http-web``."""
    name = name.lower()
    if name.startswith("grpc-web"):
        return True
    return Protocol.parse(name.partition("-")[0]) is not Protocol.AUTO


def deployments(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Deployments behind Services that contradict each other."""
    namespaces = {namespace.name: namespace.labels for namespace in survey.of_kubernetes("Namespace")}
    services: dict[str, list[Config]] = defaultdict(list)
    for service in survey.of_kubernetes("Service"):
        services[service.namespace].append(service)
    for config in survey.of_kubernetes("Deployment", "apps"):
        template = as_object(config.spec, "spec", "template")
        labels, annotations = as_object(template, "metadata", "labels"), as_object(template, "metadata", "annotations")
        if not in_mesh_of(annotations, labels, config.namespace, as_object(template, "spec"), namespaces):
            continue
        if config.labels.get(_MANAGED) == _WAYPOINT:
            continue
        before = [s for s in services[config.namespace] if _selects(s, labels)]
        yield from _protocols(config, before)
        yield from _target_ports(config, before)


def _selects(service: Config, labels: Data) -> bool:
    selector = as_object(service.spec, "spec", "selector")
    return bool(selector) and selector.items() <= labels.items()


def _protocols(config: Config, services: list[Config]) -> Iterator[AnalysisMessage]:
    by_port: dict[object, dict[object, list[str]]] = defaultdict(lambda: defaultdict(list))
    for service in services:
        for port in as_objects(service.spec, "spec", "ports"):
            by_port[port.get("port")][port.get("protocol") or "TCP"].append(full_name(service))
    for number, protocols in by_port.items():
        if len(protocols) > 1:
            names = listed(sorted(name for of_protocol in protocols.values() for name in of_protocol))
            yield found(codes.SEVERAL_PROTOCOLS, config, "", config.name, number, names)


def _target_ports(config: Config, services: list[Config]) -> Iterator[AnalysisMessage]:
    by_target: dict[str, dict[int, str]] = defaultdict(dict)
    for service in services:
        for port in as_objects(service.spec, "spec", "ports"):
            target = str(port.get("targetPort") or port.get("port"))
            by_target[target][int(port.get("port") or 0)] = full_name(service)
    for target, ports in by_target.items():
        if len(ports) > 1:
            names, numbers = listed(sorted(ports.values())), listed(sorted(ports))
            yield found(codes.CONFLICTING_TARGET_PORTS, config, "", config.name, names, target, numbers)


def reserved_users(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Pods whose application runs as the user of the proxy."""
    pods = [(pod, "spec") for pod in survey.of_kubernetes("Pod")]
    pods += [(config, "spec.template.spec") for config in survey.of_kubernetes("Deployment", "apps")]
    for config, path in pods:
        if _is_istios(config):
            continue
        spec = as_object(config.spec, *path.split("."))
        if as_object(spec, "securityContext").get("runAsUser") == 1337:
            yield found(codes.RESERVED_USER, config, f"{path}.securityContext.runAsUser")
            continue
        for index, container in enumerate(as_objects(spec, "containers")):
            is_own = container.get("name") in (PROXY_CONTAINER, "istio-operator")
            if not is_own and as_object(container, "securityContext").get("runAsUser") == 1337:
                yield found(codes.RESERVED_USER, config, f"{path}.containers[{index}].securityContext.runAsUser")
                break


def injection(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Namespaces and Pods of a Kubernetes cluster: who has a proxy."""
    if not survey.has_pods:
        return
    injected: set[str] = set()
    by_default = False
    # A namespace whose labels contradict each other is told so, and is judged by the rest of its labels all the same.
    for namespace in survey.of_kubernetes("Namespace"):
        if namespace.name == "istio-system":
            continue
        labels = namespace.labels
        legacy = labels.get("istio-injection")
        several = [f"istio-injection={legacy}"] if legacy is not None else []
        for label in ("istio.io/rev", "istio.io/dataplane-mode"):
            if label in labels and legacy in (None, "enabled"):
                several.append(f"{label}={labels[label]}")
        if len(several) > 1:
            yield found(codes.INJECTION_LABELS, namespace, "metadata.labels", listed(several))
        if labels.get("istio.io/dataplane-mode") == "ambient":
            continue
        by_default = _injected_by_default(survey, labels.get("istio.io/rev", ""), by_default)
        if not legacy and "istio.io/rev" not in labels:
            if by_default:
                yield found(codes.INJECTED_BY_DEFAULT, namespace, "")
            else:
                yield found(codes.NAMESPACE_NOT_INJECTED, namespace, "", namespace.name, namespace.name)
        elif legacy == "enabled":
            injected.add(namespace.name)
    for pod in survey.of_kubernetes("Pod"):
        if pod.namespace in injected and _lacks_proxy(pod):
            yield found(codes.POD_WITHOUT_PROXY, pod, "", full_name(pod))


def _lacks_proxy(pod: Config) -> bool:
    if pod.labels.get(INJECT, pod.annotations.get(INJECT, "")).lower() == "false":
        return False
    spec = as_object(pod.spec, "spec")
    containers = (*as_objects(spec, "containers"), *as_objects(spec, "initContainers"))
    if spec.get("hostNetwork"):
        return False
    return not any(c.get("name") == PROXY_CONTAINER and c.get("image") for c in containers)


def _injected_by_default(survey: AnalysisContext, revision: str, before: bool) -> bool:
    name = "istio-sidecar-injector"
    name = name if revision in ("", "default") else f"{name}-{revision}"
    for config in survey.of_kubernetes("ConfigMap"):
        if config.name == name:
            try:
                values = json.loads(str(as_object(config.spec, "data").get("values", "")))
            except ValueError:
                return before
            return as_object(values, "sidecarInjectorWebhook").get("enableNamespacesByDefault") is True
    return before


_WAYPOINT_BOUND = ("istio.io/WaypointBound",)
_ROUTE = ("Accepted", "Programmed", "ResolvedRefs")
_CONDITIONS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("", "Service"): _WAYPOINT_BOUND,
    ("networking.istio.io", "ServiceEntry"): _WAYPOINT_BOUND,
    ("networking.istio.io", "WorkloadEntry"): _WAYPOINT_BOUND,
    ("security.istio.io", "AuthorizationPolicy"): ("ZtunnelAccepted", "WaypointAccepted"),
    ("gateway.networking.k8s.io", "Gateway"): _ROUTE,
    ("gateway.networking.k8s.io", "HTTPRoute"): _ROUTE,
    ("gateway.networking.k8s.io", "GRPCRoute"): _ROUTE,
}
"""The conditions that are bad when False, by group and kind."""


def conditions(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Negative conditions in the status of objects, as a control plane wrote them."""
    for (group, kind), bad in _CONDITIONS.items():
        for config in survey.of_kubernetes(kind, group):
            stated = as_objects(config.spec, "status", "conditions")
            for parent in as_objects(config.spec, "status", "parents"):
                stated += as_objects(parent, "conditions")
            for condition in stated:
                type, reason = str(condition.get("type", "")), str(condition.get("reason", ""))
                is_partial = kind == "AuthorizationPolicy" and (type, reason) == (
                    "WaypointAccepted",
                    "PartiallyInvalid",
                )
                if (type in bad and str(condition.get("status")) == "False") or is_partial:
                    yield found(codes.NEGATIVE_CONDITION, config, "status", type, reason, condition.get("message", ""))
