"""Containers of the mesh that the user describes in a Pod, and those that were injected before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mesh_pilot.kubernetes.webhooks.injection.annotations import OVERRIDES, STATUS
from mesh_pilot.kubernetes.webhooks.injection.merge import Pod, overlaid
from mesh_pilot.kubernetes.webhooks.injection.pod_parts import annotations_of, container_of, names_of
from mesh_pilot.kubernetes.webhooks.injection.probes import PROXY

INIT = "istio-init"
AUTO = "auto"
"""The image of a container that the user describes, and whose image is ours."""


def without_injected(pod: Pod, status: Mapping[str, Any], status_port: int) -> Pod:
    """The Pod without the containers that were injected before."""
    spec = dict(pod.get("spec") or {})
    for name in ("initContainers", "containers"):
        injected = status.get(name) or ()
        if spec.get(name):
            spec[name] = [container for container in spec[name] if container.get("name") not in injected]
    annotations = {name: value for name, value in annotations_of(pod).items() if name != STATUS}
    if status and annotations.get("prometheus.io/port") == str(status_port):
        annotations = {name: value for name, value in annotations.items() if not name.startswith("prometheus.io/")}
    metadata = {**(pod.get("metadata") or {}), "annotations": annotations}
    return {**pod, "metadata": metadata, "spec": spec}


def with_overrides(pod: Pod, overrides: Mapping[str, Any]) -> Pod:
    """The Pod with the containers as the user wrote them."""
    spec = dict(pod["spec"])
    for name in ("initContainers", "containers"):
        there = names_of(pod, name)
        more = [container for container in overrides.get(name) or () if container.get("name") not in there]
        if more:
            spec[name] = [*(spec.get(name) or ()), *more]
    return {**pod, "spec": spec}


def moved_to_init(pod: Pod) -> Pod:
    """The Pod with what the user says of the proxy among the init containers, where a native sidecar is."""
    spec = dict(pod["spec"])
    moved = [container for container in spec["containers"] if container.get("name") == PROXY]
    spec["containers"] = [container for container in spec["containers"] if container.get("name") != PROXY]
    spec["initContainers"] = [*(spec.get("initContainers") or ()), *moved]
    return {**pod, "spec": spec}


def with_users_containers(
    pod: Pod,
    bare: Pod,
    made: Pod,
    status: Mapping[str, Any],
    existing: Mapping[str, Any],
    context: Mapping[str, Any],
) -> Pod:
    """The Pod with what the user wrote about injected containers laid over them, and noted for the next time."""
    overrides: dict[str, list[Any]] = {}
    spec = dict(pod["spec"])
    for name in ("containers", "initContainers"):
        for container in names_of(made, name):
            own = container_of(existing, name, container, top=True) or (
                container_of(bare, name, container)
                or (name == "initContainers" and container_of(bare, "containers", container))
            )
            if not own or (status and not existing):
                continue
            over = {key: value for key, value in own.items() if key != "image" or value != AUTO}
            # Noted as it is laid over, so that the next time is as the first.
            overrides.setdefault(name, []).append(over)
            spec[name] = [overlaid(one, over) if one.get("name") == container else one for one in spec[name]]
    pod = {**pod, "spec": spec}
    if overrides and not status:
        annotations = {**annotations_of(pod), OVERRIDES: json.dumps(overrides, separators=(",", ":"))}
        pod = {**pod, "metadata": {**pod["metadata"], "annotations": annotations}}
    return _with_proxys_user(pod, overrides, context)


def _with_proxys_user(pod: Pod, overrides: Mapping[str, list[Any]], context: Mapping[str, Any]) -> Pod:
    """The Pod whose rules let through the user that the proxy runs as, if the user of the mesh chose another."""
    own = next((c for containers in overrides.values() for c in containers if c.get("name") == PROXY), None)
    user = ((own or {}).get("securityContext") or {}).get("runAsUser")
    if user is None:
        return pod
    spec = dict(pod["spec"])
    if context["interception_mode"] == "TPROXY":  # it needs the rights of root
        for name in ("containers", "initContainers"):
            spec[name] = [
                {**one, "securityContext": {**one["securityContext"], "runAsUser": 0}}
                if one.get("name") == PROXY
                else one
                for one in spec.get(name) or ()
            ]
    if user != 0:
        spec["initContainers"] = [
            {**one, "args": _replaced_after(one["args"], "-u", str(user))}
            if one.get("name") == INIT and "-u" in (one.get("args") or ())
            else one
            for one in spec.get("initContainers") or ()
        ]
    return {**pod, "spec": {name: value for name, value in spec.items() if value != [] or name in pod["spec"]}}


def _replaced_after(arguments: list[str], flag: str, value: str) -> list[str]:
    index = arguments.index(flag) + 1
    return [*arguments[:index], value, *arguments[index + 1 :]]
