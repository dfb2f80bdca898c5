"""Which policies are for a proxy: those of its namespace and of the root namespace that select it.

AuthorizationPolicy and RequestAuthentication have the same ways to select: labels, all of the namespace (of the root
namespace: all of the mesh), or a Kubernetes Gateway by its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from mesh_pilot.api.istio.type.v1beta1 import PolicyTargetReference, WorkloadSelector
from mesh_pilot.envoy.scope import Labels
from mesh_pilot.incremental import derived
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.world.view import View

GATEWAY_NAME = "gateway.networking.k8s.io/gateway-name"
"""The label by which the proxies of a Kubernetes Gateway are known."""
_GATEWAY = ("gateway.networking.k8s.io", "Gateway")


class Selecting(Protocol):
    """A spec that says which workloads it is for."""

    selector: WorkloadSelector | None
    target_ref: PolicyTargetReference | None
    target_refs: list[PolicyTargetReference]


@derived
def selected(view: View, kind: str, namespace: str, labels: Labels) -> tuple[ConfigKey, ...]:
    """The policies of a kind for a proxy, those of the root namespace first, then the oldest."""
    return tuple(config.key for config in _candidates(view, kind, namespace) if _selects(config, namespace, labels))


def selecting_labels(spec: Selecting) -> Iterator[str]:
    """The label keys by which a policy picks workloads."""
    if spec.selector is not None:
        yield from spec.selector.match_labels
    if _targets(spec):
        yield GATEWAY_NAME


def _candidates(view: View, kind: str, namespace: str) -> tuple[Config, ...]:
    root = view.root_namespace
    mesh = view.configs(kind, root)
    return mesh if namespace == root else (*mesh, *view.configs(kind, namespace))


def _selects(config: Config, namespace: str, labels: Labels) -> bool:
    spec: Selecting = config.spec
    targets = _targets(spec)
    if targets:
        # Others (services, classes of gateways) are for waypoints, which there are none of.
        names = {target.name for target in targets if (target.group, target.kind) == _GATEWAY}
        return config.namespace == namespace and any(k == GATEWAY_NAME and v in names for k, v in labels)
    return spec.selector is None or spec.selector.match_labels.items() <= labels


def _targets(spec: Selecting) -> list[PolicyTargetReference]:
    return [*([spec.target_ref] if spec.target_ref is not None else []), *spec.target_refs]
