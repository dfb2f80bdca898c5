"""Selectors of namespaces by their labels."""

from __future__ import annotations

from collections.abc import Mapping

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.api.k8s.io.gateway_api import v1 as api

NAME_LABEL = "kubernetes.io/metadata.name"
"""The label of a namespace with its own name."""


def selects(selector: api.LabelSelector | mesh_api.LabelSelector, labels: Mapping[str, str]) -> bool:
    """True if labels fulfil all terms of a selector. One with an unknown operator selects nothing."""
    return selector.match_labels.items() <= labels.items() and all(
        _holds(term, labels) for term in selector.match_expressions
    )


def _holds(term: api.LabelSelectorRequirement | mesh_api.LabelSelectorRequirement, labels: Mapping[str, str]) -> bool:
    match term.operator:
        case "In":
            return term.key in labels and labels[term.key] in term.values
        case "NotIn":
            return term.key not in labels or labels[term.key] not in term.values
        case "Exists":
            return term.key in labels
        case "DoesNotExist":
            return term.key not in labels
        case _:
            return False
