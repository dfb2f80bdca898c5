"""Revisions of a control plane: whose an object is. Source of the rule: Istio, label ``istio.io/rev``."""

from __future__ import annotations

from collections.abc import Mapping

LABEL = "istio.io/rev"
"""The label that gives an object to the control planes of one revision."""

DEFAULT = "default"
"""The revision of a control plane that was installed without one."""


def in_revision(labels: Mapping[str, object], revision: str) -> bool:
    """True if a control plane of this revision reads an object with these labels.

    An object without the label is everybody's, and a control plane without a revision (empty) reads all.
    """
    return not revision or labels.get(LABEL, revision) == revision


def config_map_name(revision: str) -> str:
    """The name of the ConfigMap with the mesh config of a revision."""
    return "istio" if revision in ("", DEFAULT) else f"istio-{revision}"
