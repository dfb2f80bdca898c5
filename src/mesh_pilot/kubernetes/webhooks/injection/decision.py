"""Whether a Pod gets a sidecar: host network, namespaces of Kubernetes itself, label and annotation, selectors, policy.

The API server asks only about Pods that the MutatingWebhookConfiguration selects, by ``istio-injection`` and
``istio.io/rev`` of their namespaces and by their own labels; here is what Istio decides beyond that.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import attrs

from mesh_pilot.kubernetes.webhooks.injection.selectors import Selector, selects

INJECT = "sidecar.istio.io/inject"
"""The label, and the older annotation, with ``true`` or ``false``."""

SYSTEM_NAMESPACES = frozenset({"kube-system", "kube-public", "kube-node-lease", "local-path-storage"})
"""Namespaces that get no sidecars, whatever their Pods say."""


class InjectionPolicy(StrEnum):
    """The rule for Pods that say nothing themselves."""

    ENABLED = "enabled"
    DISABLED = "disabled"


@attrs.frozen
class InjectionRules:
    """The settings of the decision."""

    policy: InjectionPolicy = InjectionPolicy.ENABLED
    never: tuple[Selector, ...] = ()
    """Pods that get none, unless they ask for it; before ``always``."""
    always: tuple[Selector, ...] = ()


@attrs.frozen
class InjectionDecision:
    """A decision, and the reason for people."""

    injects: bool
    reason: str
    warning: str = ""
    """For the Pod's owner; empty if there is nothing to say."""


def decide(pod: Mapping[str, Any], namespace: str, rules: InjectionRules) -> InjectionDecision:
    """The decision about a Pod (JSON data) that is to be in a namespace."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    if spec.get("hostNetwork"):
        return InjectionDecision(False, "it uses the host's network")
    if namespace in SYSTEM_NAMESPACES:
        return InjectionDecision(False, f"namespace {namespace} is Kubernetes' own")
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    said = labels.get(INJECT, annotations.get(INJECT, ""))
    kind = "label" if INJECT in labels else "annotation"
    if said in ("true", "false"):
        return InjectionDecision(said == "true", f"{kind} {INJECT} is {said}")
    warning = f'{kind} {INJECT} is "{said}", neither true nor false, and has no effect' if said else ""
    if any(selects(selector, labels) for selector in rules.never):
        return InjectionDecision(False, "neverInjectSelector selects it", warning)
    if any(selects(selector, labels) for selector in rules.always):
        return InjectionDecision(True, "alwaysInjectSelector selects it", warning)
    return InjectionDecision(rules.policy is InjectionPolicy.ENABLED, f"the policy is {rules.policy.value}", warning)
