"""Workload selection: which objects apply to a proxy.

Istio has three levels. An object without a selector applies to its namespace; one in the root namespace applies to the
mesh; one with a selector applies to the workloads that have its labels. ``targetRefs`` select the proxies of a
Kubernetes Gateway by name. Of kinds that combine, such as AuthorizationPolicy, all objects of all levels apply
(``selected``); of others, such as Sidecar or PeerAuthentication, the oldest of a level (``oldest_general``,
``oldest_selecting``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mesh_pilot.api.istio.type.v1beta1 import PolicyTargetReference
from mesh_pilot.engine import derived
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.service import SERVICE_LABEL
from mesh_pilot.world.names import GATEWAY_NAME
from mesh_pilot.world.view import View

Labels = frozenset[tuple[str, str]]

NO_LABELS: Labels = frozenset()
"""One for all proxies: each new one takes 200 bytes."""

_SELECTING_KINDS = (
    "AuthorizationPolicy",
    "EnvoyFilter",
    "GlobalRateLimit",
    "LocalRateLimit",
    "PeerAuthentication",
    "RequestAuthentication",
    "Sidecar",
    "Telemetry",
    "WasmPlugin",
)
_GATEWAY = ("gateway.networking.k8s.io", "Gateway")


@derived
def selected(view: View, kind: str, namespace: str, labels: Labels) -> tuple[ConfigKey, ...]:
    """The objects of a kind that apply to a proxy: those of the root namespace first, then the oldest."""
    found = (c for where in dict.fromkeys((view.root_namespace, namespace)) for c in view.configs(kind, where))
    return tuple(config.key for config in found if applies(config, namespace, labels))


def oldest_general(view: View, kind: str, namespace: str) -> Config | None:
    """The oldest object of a namespace without a selector."""
    return next((config for config in view.configs(kind, namespace) if _is_general(config.spec)), None)


def oldest_selecting(view: View, kind: str, namespace: str, labels: Labels) -> Config | None:
    """The oldest object of a namespace with a selector that selects a workload of that namespace."""
    return next(selecting(view, kind, namespace, labels), None)


def selecting(view: View, kind: str, namespace: str, labels: Labels) -> Iterator[Config]:
    """The objects of a namespace with a selector that selects a workload of that namespace, the oldest first."""
    found = (config for config in view.configs(kind, namespace) if not _is_general(config.spec))
    return (config for config in found if applies(config, namespace, labels))


def applies(config: Config, namespace: str, labels: Labels) -> bool:
    """True if an object, of the root namespace or of a proxy's namespace, applies to a proxy with these labels."""
    if targets := _targets(config.spec):
        names = set(gateway_names(targets))
        return config.namespace == namespace and any(k == GATEWAY_NAME and v in names for k, v in labels)
    return _selector_labels(config.spec).items() <= labels


def selecting_labels(spec: Any) -> Iterator[str]:
    """The label keys by which an object selects workloads."""
    yield from _selector_labels(spec)
    if _targets(spec):
        yield GATEWAY_NAME


@derived
def selects_services(view: View) -> bool:
    """True if some object selects workloads by the services that they are registered as."""
    if any(label.startswith(SERVICE_LABEL) for label in view.selected_labels()):
        return True
    specs = (config.spec for kind in _SELECTING_KINDS for config in view.all_configs(kind))
    return any(label.startswith(SERVICE_LABEL) for spec in specs for label in selecting_labels(spec))


def gateway_names(targets: Iterable[PolicyTargetReference]) -> Iterator[str]:
    """The Kubernetes Gateways among targets. Others (services, classes of gateways) are for waypoints, which a mesh of
    sidecars lacks."""
    return (target.name for target in targets if (target.group, target.kind) == _GATEWAY)


def _is_general(spec: Any) -> bool:
    return not _targets(spec) and not _selector_labels(spec)


def _selector_labels(spec: Any) -> Mapping[str, str]:
    """The labels of ``selector`` or ``workloadSelector``; empty: every workload."""
    if (selector := getattr(spec, "selector", None)) is not None:
        labels: Mapping[str, str] = selector.match_labels
        return labels
    workload_selector = getattr(spec, "workload_selector", None)
    return workload_selector.labels if workload_selector is not None else {}


def _targets(spec: Any) -> list[PolicyTargetReference]:
    target = getattr(spec, "target_ref", None)
    targets: list[PolicyTargetReference] = getattr(spec, "target_refs", [])
    return targets if target is None else [target, *targets]
