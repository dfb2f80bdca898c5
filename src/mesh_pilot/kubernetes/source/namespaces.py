"""The namespaces that are read: mesh config ``discoverySelectors`` against the labels of a cluster's namespaces. Pure.

    chosen = NamespaceFilter()
    chosen.select(mesh.discovery_selectors)
    turned = chosen.replace({"shop": {"team": "shop"}})     # namespaces that are read now, or no longer
    chosen.allows("shop")

Without selectors all namespaces are read, also those that it was never told of. Selectors are in force once it knows
the namespaces: until then `is_ready` is False, and the choice is that of before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mesh_pilot.api.istio.mesh.v1alpha1 import LabelSelector, LabelSelectorRequirement

Labels = Mapping[str, str]


class NamespaceFilter:
    """The choice of namespaces of one cluster.

    State: the selectors that are wanted and those in force; the labels of the namespaces, None while they are unknown.
    """

    def __init__(self) -> None:
        self._wanted: tuple[LabelSelector, ...] = ()
        self._selectors: tuple[LabelSelector, ...] = ()
        self._labels: dict[str, Labels] | None = None

    def __repr__(self) -> str:
        known = "unknown" if self._labels is None else f"{sum(map(self.allows, self._labels))} of {len(self._labels)}"
        return f"<NamespaceFilter {known} by {len(self._wanted)} selectors>"

    @property
    def is_needed(self) -> bool:
        """True if there are selectors: somebody must tell it the namespaces."""
        return bool(self._wanted)

    @property
    def is_ready(self) -> bool:
        """True if the selectors are in force."""
        return self._labels is not None or not self._wanted

    def allows(self, namespace: str) -> bool:
        """True if the objects of a namespace are read; those of none always are."""
        if not namespace or not self._selectors:
            return True
        labels = self._labels.get(namespace) if self._labels is not None else None
        return labels is not None and any(selects(selector, labels) for selector in self._selectors)

    def select(self, selectors: Sequence[LabelSelector]) -> frozenset[str]:
        """Other selectors. The known namespaces of which it changes whether they are read."""
        self._wanted = tuple(selectors)
        if self._labels is None:
            return frozenset()
        before = {name for name in self._labels if self.allows(name)}
        self._selectors = self._wanted
        return frozenset(name for name in self._labels if (name in before) != self.allows(name))

    def replace(self, namespaces: Mapping[str, Labels]) -> frozenset[str]:
        """These are all namespaces. Those of which it changes whether they are read."""
        known = (self._labels or {}).keys() | namespaces.keys()
        before = {name for name in known if self.allows(name)}
        self._labels, self._selectors = dict(namespaces), self._wanted
        return frozenset(name for name in known if (name in before) != self.allows(name))

    def put(self, namespace: str, labels: Labels | None) -> frozenset[str]:
        """A namespace has these labels, or is gone (None). Itself, if that changes whether it is read."""
        if self._labels is None:
            return frozenset()
        before = self.allows(namespace)
        if labels is None:
            self._labels.pop(namespace, None)
        else:
            self._labels[namespace] = labels
        return frozenset([namespace] if before != self.allows(namespace) else ())


def selects(selector: LabelSelector, labels: Labels) -> bool:
    """True if a selector of Kubernetes matches labels; an empty one matches all."""
    return selector.match_labels.items() <= labels.items() and all(
        _meets(requirement, labels) for requirement in selector.match_expressions
    )


def _meets(requirement: LabelSelectorRequirement, labels: Labels) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return False
