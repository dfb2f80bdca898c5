"""True if a Pod gets a sidecar: host network, namespaces of Kubernetes itself, label and annotation, selectors, policy.

The API server asks only about Pods that the MutatingWebhookConfiguration selects, by ``istio-injection`` and
``istio.io/rev`` of their namespaces and by their own labels; here is what Istio decides beyond that.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import attrs

# -- label selectors of Kubernetes (``matchLabels``, ``matchExpressions``), on labels that are there


@attrs.frozen
class LabelRequirement:
    """A requirement of a selector: the operator is ``In``, ``NotIn``, ``Exists`` or ``DoesNotExist``."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def holds(self, labels: Mapping[str, str]) -> bool:
        match self.operator:
            case "In":
                return self.key in labels and labels[self.key] in self.values
            case "NotIn":
                return self.key not in labels or labels[self.key] not in self.values
            case "Exists":
                return self.key in labels
        return self.key not in labels


Selector = tuple[LabelRequirement, ...]
"""All of them hold; an empty selector selects nothing here, as in Istio's injector."""

_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


def read_selector(data: object, path: str) -> Selector:
    """A selector in its YAML form. Raises ValueError, with the path of what is wrong."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{path}: expected a label selector")
    for name in data:
        if name not in ("matchLabels", "matchExpressions"):
            raise ValueError(f"{path}.{name}: a label selector has matchLabels and matchExpressions")
    labels = data.get("matchLabels") or {}
    if not isinstance(labels, Mapping):
        raise ValueError(f"{path}.matchLabels: expected an object")
    found = [LabelRequirement(str(key), "In", frozenset((str(value),))) for key, value in labels.items()]
    expressions = data.get("matchExpressions") or []
    if not isinstance(expressions, list):
        raise ValueError(f"{path}.matchExpressions: expected a list")
    for index, expression in enumerate(expressions):
        found.append(_read_expression(expression, f"{path}.matchExpressions[{index}]"))
    return tuple(found)


def selects(selector: Selector, labels: Mapping[str, str]) -> bool:
    """True if the selector is not empty and selects an object with these labels."""
    return bool(selector) and all(requirement.holds(labels) for requirement in selector)


def _read_expression(data: Any, path: str) -> LabelRequirement:
    if not isinstance(data, Mapping) or not isinstance(data.get("key"), str) or not data["key"]:
        raise ValueError(f"{path}: expected an object with a key")
    operator, values = data.get("operator"), data.get("values") or []
    if operator not in _OPERATORS:
        raise ValueError(f"{path}.operator: {operator!r} is not one of {', '.join(_OPERATORS)}")
    if not isinstance(values, list) or bool(values) != (operator in ("In", "NotIn")):
        raise ValueError(f"{path}.values: In and NotIn have values, the others none")
    return LabelRequirement(data["key"], str(operator), frozenset(map(str, values)))


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
    """The warning for the Pod's owner; empty if there is nothing to say."""


def decide(pod: Mapping[str, Any], namespace: str, rules: InjectionRules) -> InjectionDecision:
    """The decision about a Pod (JSON data) that is to be in a namespace."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    # As Istio's webhook: what can never work, then what the Pod says, then the selectors, never before always, at last
    # the policy.
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
