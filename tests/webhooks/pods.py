"""Pods for tests of injection, and an injector with an image."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import attrs

from mesh_pilot.cli.discovery.connection_flags import injection_settings
from mesh_pilot.istio.reading.encode_json import to_json
from mesh_pilot.istio.reading.mesh import default_mesh
from mesh_pilot.kubernetes.webhooks.injection.configuration import InjectionSettings, merged_values
from mesh_pilot.kubernetes.webhooks.injection.inject import Injected, InjectionMesh, Injector

IMAGE = "registry.example/mesh-pilot:1.0"
SETTINGS = injection_settings(IMAGE, "istio-system", "", "eu-1")
MESH = InjectionMesh(mesh=to_json(default_mesh()), proxy_config={})

_INJECTORS: dict[str, Injector] = {}


def pod(
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    containers: list[dict[str, Any]] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A Pod of a Deployment ``web``, as an API server sends it when it is created."""
    metadata: dict[str, Any] = {
        "generateName": "web-7d9f-",
        "namespace": "shop",
        "labels": {"app": "web", "pod-template-hash": "7d9f", **(labels or {})},
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7d9f", "controller": True}],
    }
    if annotations:
        metadata["annotations"] = dict(annotations)
    found = containers or [{"name": "web", "image": "web:1", "ports": [{"name": "http", "containerPort": 8080}]}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": found, **spec}}


def injector(settings: InjectionSettings = SETTINGS, values: Mapping[str, Any] | None = None) -> Injector:
    """An injector; compiled templates are shared by those of the same settings."""
    if values:
        settings = attrs.evolve(settings, values=merged_values(settings.values, values, "values"))
    if settings.templates:
        return Injector.of(settings)
    if "" not in _INJECTORS:
        _INJECTORS[""] = Injector.of(SETTINGS)
    return attrs.evolve(_INJECTORS[""], settings=settings)


def injected(
    found: dict[str, Any],
    *,
    by: Injector | None = None,
    proxy_config: Mapping[str, Any] | None = None,
    mesh: Mapping[str, Any] | None = None,
    **more: Any,
) -> Injected:
    """The result; what came in is as it was."""
    before = copy.deepcopy(found)
    seen = InjectionMesh(mesh={**MESH.mesh, **(mesh or {})}, proxy_config=proxy_config or {})
    result = (by or injector()).inject(found, "shop", seen, **more)
    assert found == before
    return result


def container(found: Mapping[str, Any], name: str = "istio-proxy") -> dict[str, Any]:
    """The container of a name, wherever it is."""
    spec = found["spec"]
    (one,) = (c for c in [*spec.get("initContainers", ()), *spec["containers"]] if c["name"] == name)
    return dict(one)


def variables(found: Mapping[str, Any], name: str = "istio-proxy") -> dict[str, str]:
    """The variables of a container that have their own value."""
    return {v["name"]: v["value"] for v in container(found, name).get("env", ()) if "value" in v}


def names(found: Mapping[str, Any], of: str) -> list[str]:
    return [each["name"] for each in found["spec"].get(of) or ()]
