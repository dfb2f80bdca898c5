"""Label selectors of Kubernetes (``matchLabels``, ``matchExpressions``), on labels that are there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs


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
        raise ValueError(f"{path}.operator: {operator!r} is none of {', '.join(_OPERATORS)}")
    if not isinstance(values, list) or bool(values) != (operator in ("In", "NotIn")):
        raise ValueError(f"{path}.values: In and NotIn have values, the others none")
    return LabelRequirement(data["key"], str(operator), frozenset(map(str, values)))
