"""Probes and lifecycle handlers of the application, led through the agent.

The kubelet has no certificate of the mesh, so Envoy would refuse its probes under mutual TLS. They go to the agent's
port, which is not redirected, and the agent asks the application; ``ISTIO_KUBE_APP_PROBERS`` tells it how. Source of
the rules: Istio, "Health Checking of Istio Services".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from mesh_pilot.kubernetes.webhooks.injection.merge import Pod

VARIABLE = "ISTIO_KUBE_APP_PROBERS"
PROXY = "istio-proxy"
"""The name of the sidecar's container."""

_METHODS = ("httpGet", "tcpSocket", "grpc")


@attrs.frozen
class _ProbeKind:
    """Probes of a container, or the handlers of its lifecycle."""

    folder: str
    endings: Mapping[str, str]
    """The last parts of their paths at the agent, by field."""
    methods: Sequence[str]

    def has_method(self, probe: Mapping[str, Any]) -> bool:
        return any(isinstance(probe.get(method), Mapping) for method in self.methods)

    def path(self, container: Mapping[str, Any], name: str) -> str:
        return f"/{self.folder}/{container.get('name')}/{self.endings[name]}"


_PROBES = _ProbeKind(
    "app-health", {"readinessProbe": "readyz", "livenessProbe": "livez", "startupProbe": "startupz"}, _METHODS
)
_HANDLERS = _ProbeKind("app-lifecycle", {"preStop": "prestopz", "postStart": "poststartz"}, _METHODS[:2])


def app_probers(pod: Pod, status_port: int) -> dict[str, Any]:
    """The agent's probes by path: those of the Pod, with named ports as numbers.

    Left out: commands, probes that go to the agent already, and ports by a name that no port of the container has.
    """
    found = {}
    for container in _applications(pod):
        ports = {port["name"]: port.get("containerPort") for port in container.get("ports") or () if port.get("name")}
        for path, probe in _probes_of(container):
            method = next(name for name in _METHODS if name in probe)
            action = dict(probe[method])
            if method != "grpc":
                port = action.get("port")
                action["port"] = ports.get(port) if isinstance(port, str) and not port.isdigit() else port
            if action.get("port") is None or (method != "grpc" and action["port"] in (status_port, str(status_port))):
                continue
            timeout = probe.get("timeoutSeconds")
            found[path] = {method: action, **({"timeoutSeconds": timeout} if timeout else {})}
    return found


def rewritten(pod: Pod, port: int) -> Pod:
    """The Pod with its probes and handlers led to the agent's port."""
    spec = dict(pod["spec"])
    for name in ("containers", "initContainers"):
        if spec.get(name):
            spec[name] = [_rewritten_container(container, port) for container in spec[name]]
    return {**pod, "spec": spec}


def as_variable(probers: Mapping[str, Any]) -> str:
    return json.dumps(probers, sort_keys=True, separators=(",", ":"))


def _applications(pod: Pod) -> Iterator[Mapping[str, Any]]:
    spec = pod.get("spec") or {}
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        if container.get("name") != PROXY:
            yield container


def _probes_of(container: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The probes and handlers that can be led through the agent, each with its path there."""
    for probes, kind in ((container, _PROBES), (container.get("lifecycle") or {}, _HANDLERS)):
        for name in kind.endings:
            if isinstance(probe := probes.get(name), Mapping) and kind.has_method(probe):
                yield kind.path(container, name), probe


def _rewritten_container(container: Mapping[str, Any], port: int) -> Mapping[str, Any]:
    if container.get("name") == PROXY:
        return container
    found = dict(container)
    for probes, kind in ((found, _PROBES), (dict(container.get("lifecycle") or {}), _HANDLERS)):
        for name in kind.endings:
            if isinstance(probe := probes.get(name), Mapping) and kind.has_method(probe):
                probes[name] = _to_agent(probe, kind.path(container, name), port)
        if kind is _HANDLERS and probes:
            found["lifecycle"] = probes
    return found


def _to_agent(probe: Mapping[str, Any], path: str, port: int) -> dict[str, Any]:
    """The same probe by HTTP at the agent, which speaks to the application as the probe would."""
    found = {name: value for name, value in probe.items() if name not in _METHODS}
    own = {name: value for name, value in (probe.get("httpGet") or {}).items() if name not in ("path", "port")}
    if own.get("scheme") == "HTTPS":
        own["scheme"] = "HTTP"
    return {**found, "httpGet": {**own, "path": path, "port": port}}
