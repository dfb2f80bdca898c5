"""Rules that many kinds share: visibility (`exportTo`), selectors and targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import betterproto2

from mesh_pilot.api.istio.networking.v1alpha3 import DestinationRule
from mesh_pilot.api.istio.networking.v1alpha3 import WorkloadSelector as NetworkingSelector
from mesh_pilot.api.istio.security.v1beta1 import AuthorizationPolicy, AuthorizationPolicyAction
from mesh_pilot.api.istio.type.v1beta1 import PolicyTargetReference, WorkloadSelector
from mesh_pilot.istio.meaning.weighted_round_robin import WEIGHTED_ROUND_ROBIN
from mesh_pilot.istio.rules.context import Context, check, error, warning
from mesh_pilot.istio.rules.names import is_dns_label, label_key_reason, label_value_reason
from mesh_pilot.model.config import Problem

TARGETS = {
    ("gateway.networking.k8s.io", "Gateway"),
    ("gateway.networking.k8s.io", "GatewayClass"),
    ("", "Service"),
    ("core", "Service"),
    ("networking.istio.io", "ServiceEntry"),
}
"""Group and kind of the objects that a `targetRef` may name."""

DRY_RUN = "istio.io/dry-run"
"""Annotation of an AuthorizationPolicy that is evaluated but not enforced."""

REVISION = "istio.io/rev"
"""Label with the revision: which of several Istio control planes reads the object."""

_BOOLEANS = ("1", "t", "T", "TRUE", "true", "True", "0", "f", "F", "FALSE", "false", "False")


def check_metadata(spec: betterproto2.Message, context: Context) -> Iterator[Problem]:
    """Annotations and labels with a meaning in Istio, for any kind."""
    if REVISION in context.labels:
        reason = "has no effect but in a Kubernetes, with --revision: objects of all revisions are read"
        yield warning(f"metadata.labels[{REVISION}]", reason)
    if WEIGHTED_ROUND_ROBIN in context.annotations and not isinstance(spec, DestinationRule):
        yield error(f"metadata.annotations[{WEIGHTED_ROUND_ROBIN}]", "is for DestinationRule only")
    if DRY_RUN not in context.annotations:
        return
    path, value = f"metadata.annotations[{DRY_RUN}]", context.annotations[DRY_RUN]
    if not isinstance(spec, AuthorizationPolicy):
        yield error(path, "is for AuthorizationPolicy only")
    elif spec.action not in (AuthorizationPolicyAction.ALLOW, AuthorizationPolicyAction.DENY):
        yield error(path, f"goes with action ALLOW and DENY only, not {spec.action.name}")
    elif value not in _BOOLEANS:
        yield error(path, f'"{value}" is neither true nor false')


def check_export_to(export_to: Sequence[str], context: Context, *, service: bool = False) -> Iterator[Problem]:
    """`exportTo`: `.`, `*`, namespaces; `~` (no one) for services only."""
    seen: set[str] = set()
    dotted = "." in export_to
    for index, entry in enumerate(export_to):
        path = f"spec.exportTo[{index}]"
        namespace = context.namespace if entry == "." else entry
        if namespace in seen:
            also = f' (".", the namespace "{namespace}" itself)' if dotted and entry != "*" else ""
            yield error(path, f'"{entry}" is given twice{also}')
        seen.add(namespace)
        if entry == "~" and not service:
            yield error(path, '"~" (export to no one) is for ServiceEntry only')
        elif entry not in (".", "*", "~") and not is_dns_label(entry):
            yield error(path, f'"{entry}" is not a namespace; allowed are ".", "*" and names of namespaces')
    if len(export_to) > 1:
        for entry, meaning in (("*", "everyone"), ("~", "no one")):
            if entry in export_to:
                yield error("spec.exportTo", f'"{entry}" ({meaning}) can\'t be combined with other entries')


def check_selector(path: str, labels: Mapping[str, str]) -> Iterator[Problem]:
    """Labels that select workloads: no empty keys, no wildcards."""
    for key, value in labels.items():
        here = f"{path}[{key}]"
        if not key:
            yield error(here, "a label to select by must have a key")
        elif "*" in key or "*" in value:
            yield error(here, f'wildcards don\'t work in a selector: "{key}: {value}"')
        else:
            yield from check(here, label_key_reason(key))
            yield from check(here, label_value_reason(value))


def check_workload_selector(selector: NetworkingSelector | None) -> Iterator[Problem]:
    """`workloadSelector` of the networking kinds."""
    if selector is None:
        return
    if not selector.labels:
        yield warning("spec.workloadSelector.labels", "is empty: every workload of the namespace is selected")
    yield from check_selector("spec.workloadSelector.labels", selector.labels)


def check_match_labels(selector: WorkloadSelector | None, path: str = "spec.selector") -> Iterator[Problem]:
    """`selector` of the other kinds."""
    if selector is None:
        return
    if not selector.match_labels:
        yield warning(f"{path}.matchLabels", "is empty: every workload of the namespace is selected")
    yield from check_selector(f"{path}.matchLabels", selector.match_labels)


def check_targets(
    selected: bool,
    target: PolicyTargetReference | None,
    targets: Sequence[PolicyTargetReference],
    context: Context,
    selector_name: str = "selector",
) -> Iterator[Problem]:
    """`targetRef` and `targetRefs`, of which only one may be there, and only without a selector."""
    given = [
        name for name, there in ((selector_name, selected), ("targetRef", target), ("targetRefs", targets)) if there
    ]
    if target is not None and "targetRef" not in given:
        given.append("targetRef")
    if len(given) > 1:
        yield error(f"spec.{given[1]}", f"only one of {', '.join(given)} may be set")
    if target is not None:
        yield from _check_target("spec.targetRef", target, context)
    for index, reference in enumerate(targets):
        yield from _check_target(f"spec.targetRefs[{index}]", reference, context)


def warn_of_waypoints(
    target: PolicyTargetReference | None, targets: Sequence[PolicyTargetReference]
) -> Iterator[Problem]:
    """Warnings for targets that need a waypoint: there are none here."""
    paths = [("spec.targetRef", target)] if target is not None else []
    paths += [(f"spec.targetRefs[{index}]", reference) for index, reference in enumerate(targets)]
    for path, reference in paths:
        if (reference.group, reference.kind) in TARGETS and reference.kind != "Gateway":
            yield warning(
                path, f"has no effect: a {reference.kind} has its policies at a waypoint, and there are no waypoints"
            )


def _check_target(path: str, target: PolicyTargetReference, context: Context) -> Iterator[Problem]:
    if not target.kind:
        yield error(f"{path}.kind", "is missing")
    if not target.name:
        yield error(f"{path}.name", "is missing")
    if target.namespace:
        yield error(f"{path}.namespace", "can't be set: a target is always in the namespace of the object")
    if target.kind and (target.group, target.kind) not in TARGETS:
        known = ", ".join(
            sorted(f"{group}/{kind}" if group else kind for group, kind in TARGETS - {("core", "Service")})
        )
        yield error(path, f"{target.group or 'core'}/{target.kind} can't be a target; known: {known}")
