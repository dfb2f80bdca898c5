"""Objects that are not served: those of Kubernetes, as context, and refused ones that can be read all the same."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import attrs

from mesh_pilot.base.reading import as_object
from mesh_pilot.explain.analysis.workloads import Data
from mesh_pilot.istio.kinds import KindError, lookup
from mesh_pilot.istio.reading.decode_json import read_message
from mesh_pilot.istio.reading.problems import Problems, TooManyErrorsError
from mesh_pilot.istio.reading.yaml import Document
from mesh_pilot.model.config import EPOCH, Config, ConfigKey, Origin

_CLUSTER_SCOPED = frozenset(
    ("Namespace", "Node", "CustomResourceDefinition", "GatewayClass", "MutatingWebhookConfiguration")
)
_CONTEXT: Mapping[str, frozenset[str]] = {
    "": frozenset(("ConfigMap", "Namespace", "Node", "Pod", "Secret", "Service")),
    "apps": frozenset(("Deployment",)),
    "gateway.networking.k8s.io": frozenset(("Gateway", "GRPCRoute", "HTTPRoute")),
}
"""Kinds of Kubernetes that analyzers read, by group."""


def is_context(api_version: str, kind: str) -> bool:
    """True for the kinds of Kubernetes that analyzers read."""
    return kind in _CONTEXT.get(api_version.rpartition("/")[0], ())


def context_object(document: Document, origin: Origin) -> Config | None:
    """An object of Kubernetes as a Config whose ``spec`` is all of it, as plain data; None for others."""
    data = document.data
    api_version, kind = str(data.get("apiVersion", "")), str(data.get("kind", ""))
    if not is_context(api_version, kind) and "istio.io/" not in api_version:
        return None
    metadata = as_object(data, "metadata")
    namespace = "" if kind in _CLUSTER_SCOPED else str(metadata.get("namespace") or "default")
    return Config(
        ConfigKey(kind, namespace, str(metadata.get("name", ""))),
        data,
        labels=_texts(as_object(metadata, "labels")),
        annotations=_texts(as_object(metadata, "annotations")),
        api_version=api_version,
        origin=attrs.evolve(origin, line=document.line),
    )


def unchecked_config(document: Document, origin: Origin) -> Config | None:
    """A refused object of Istio's, as far as it can be read; None if it cannot."""
    data = document.data
    metadata = as_object(data, "metadata")
    try:
        kind = lookup(str(data.get("apiVersion", "")), str(data.get("kind", "")))
        if kind is None or not isinstance(metadata.get("name"), str):
            return None
        spec = read_message(kind.message, data.get("spec") or {}, "spec", Problems())
    except (KindError, TooManyErrorsError):
        return None
    if spec is None:
        return None
    created = metadata.get("creationTimestamp")
    return Config(
        ConfigKey(kind.name, str(metadata.get("namespace") or "default"), str(metadata["name"])),
        spec,
        created=_time(created) if isinstance(created, str) else EPOCH,
        labels=_texts(as_object(metadata, "labels")),
        annotations=_texts(as_object(metadata, "annotations")),
        api_version=str(data.get("apiVersion")),
        origin=attrs.evolve(origin, line=document.line),
    )


def _texts(values: Data) -> dict[str, str]:
    return {str(key): str(value) for key, value in values.items()}


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return EPOCH
    return found if found.tzinfo is not None else EPOCH
