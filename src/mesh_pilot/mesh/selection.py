"""Which policies are for a proxy: those of its namespace and of the root namespace that select it.

AuthorizationPolicy, RequestAuthentication and Telemetry have the same ways to select: labels, all of the namespace
(of the root namespace: all of the mesh), or a Kubernetes Gateway by its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from mesh_pilot.api.istio.type.v1beta1 import PolicyTargetReference, WorkloadSelector
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.proxy.scope import Labels
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.world.names import GATEWAY_NAME
from mesh_pilot.world.view import View

_GATEWAY = ("gateway.networking.k8s.io", "Gateway")


class Selecting(Protocol):
    """A spec that says which workloads it is for."""

    selector: WorkloadSelector | None
    target_ref: PolicyTargetReference | None
    target_refs: list[PolicyTargetReference]


@derived
def selected(view: View, kind: str, namespace: str, labels: Labels) -> tuple[ConfigKey, ...]:
    """The policies of a kind for a proxy, those of the root namespace first, then the oldest."""
    return tuple(config.key for config in _candidates(view, kind, namespace) if selects(config, namespace, labels))


def selecting_labels(spec: Selecting) -> Iterator[str]:
    """The label keys by which a policy picks workloads."""
    if spec.selector is not None:
        yield from spec.selector.match_labels
    if spec.target_ref is not None or spec.target_refs:
        yield GATEWAY_NAME


def is_general(spec: Selecting) -> bool:
    """Whether it is for all proxies of its namespace (of the root namespace: of the mesh)."""
    return spec.target_ref is None and not spec.target_refs and not (spec.selector and spec.selector.match_labels)


def selects(config: Config, namespace: str, labels: Labels) -> bool:
    """Whether a policy is for a proxy of a namespace with these labels; it is one of that or of the root namespace."""
    spec: Selecting = config.spec
    targets = [*([spec.target_ref] if spec.target_ref is not None else []), *spec.target_refs]
    if targets:
        # Others (services, classes of gateways) are for waypoints, which there are none of.
        names = {target.name for target in targets if (target.group, target.kind) == _GATEWAY}
        return config.namespace == namespace and any(k == GATEWAY_NAME and v in names for k, v in labels)
    return spec.selector is None or spec.selector.match_labels.items() <= labels


def _candidates(view: View, kind: str, namespace: str) -> tuple[Config, ...]:
    root = view.root_namespace
    mesh = view.configs(kind, root)
    return mesh if namespace == root else (*mesh, *view.configs(kind, namespace))
