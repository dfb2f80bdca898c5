"""The parts of a Pod that injection reads and changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from mesh_pilot.istio.reading.mesh import default_proxy
from mesh_pilot.kubernetes.webhooks.injection.annotations import STATUS_PORT
from mesh_pilot.kubernetes.webhooks.injection.merge import Pod
from mesh_pilot.kubernetes.webhooks.injection.probes import PROXY


class InjectionError(ValueError):
    """The reason why a Pod cannot have a sidecar, for its owner."""


@attrs.frozen(kw_only=True)
class InjectionMesh:
    """The properties of the mesh that a sidecar depends on."""

    mesh: Mapping[str, Any]
    """The MeshConfig in its JSON form, with its defaults."""
    proxy_config: Mapping[str, Any]
    """The ProxyConfig that is in force for the Pod, in its JSON form, without Istio's defaults."""


def agent_port(pod: Pod, mesh: InjectionMesh) -> int:
    """The agent's port for probes and metrics; 0: none."""
    own = annotations_of(pod).get(STATUS_PORT)
    return int(own if own is not None else mesh.proxy_config.get("statusPort") or default_proxy().status_port)


def annotations_of(pod: Pod) -> dict[str, str]:
    """The annotations of a Pod."""
    return (pod.get("metadata") or {}).get("annotations") or {}


def labels_of(pod: Pod) -> dict[str, str]:
    """The labels of a Pod."""
    return (pod.get("metadata") or {}).get("labels") or {}


def names_of(pod: Pod, name: str) -> set[str]:
    """The names in a list of containers, ``containers`` or ``initContainers``."""
    return {container.get("name", "") for container in (pod.get("spec") or {}).get(name) or ()}


def container_of(pod: Mapping[str, Any], name: str, container: str, *, top: bool = False) -> Mapping[str, Any] | None:
    """A container by its name, in a list of a Pod; with ``top``, of an object that has the list itself."""
    of: Iterable[Mapping[str, Any]] = (pod if top else pod.get("spec") or {}).get(name) or ()
    return next((each for each in of if each.get("name") == container), None)


def proxy_of(pod: Pod) -> Mapping[str, Any] | None:
    """The proxy's container, wherever it is."""
    return container_of(pod, "containers", PROXY) or container_of(pod, "initContainers", PROXY)


def variable_of(pod: Pod, name: str) -> str | None:
    """The value of a variable of the proxy's container."""
    variables = (proxy_of(pod) or {}).get("env") or ()
    return next((variable.get("value") for variable in variables if variable.get("name") == name), None)


def with_variables(pod: Pod, variables: Mapping[str, str]) -> Pod:
    """The Pod with variables of the proxy's container, at the end of the others."""
    if not variables:
        return pod
    spec = dict(pod["spec"])
    more = [{"name": name, "value": value} for name, value in sorted(variables.items())]
    for name in ("containers", "initContainers"):
        if spec.get(name):
            spec[name] = [
                {**one, "env": [*(v for v in one.get("env") or () if v.get("name") not in variables), *more]}
                if one.get("name") == PROXY
                else one
                for one in spec[name]
            ]
    return {**pod, "spec": spec}
