"""Workloads as objects select them: the fewest selectors that tell them apart, each with its proxies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import attrs

from mesh_pilot.explain.plan.picture import ConnectedProxy
from mesh_pilot.explain.suggestions.observed import Observed
from mesh_pilot.mesh.proxy.keys import ProxyKeys, proxy_facts, proxy_keys
from mesh_pilot.mesh.selection.workloads import Labels
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.counts import counted
from mesh_pilot.model.proxy import NodeType, Proxy
from mesh_pilot.traffic.table import CallingWorkload
from mesh_pilot.world.view import View

NAMED = 3
"""Names that are told where there are many."""


@attrs.frozen
class KeyedProxy:
    """A connected proxy, with the keys of its configuration."""

    proxy: Proxy
    keys: ProxyKeys
    workload: CallingWorkload | None
    """None: it does not report."""

    @property
    def labels(self) -> Labels:
        """All by which objects select it."""
        return self.keys.workload.labels


@attrs.frozen
class SelectedWorkloads:
    """The workloads that one selector selects."""

    namespace: str
    selector: Labels
    """Empty: all of the namespace."""
    members: Sequence[CallingWorkload]
    proxies: Sequence[KeyedProxy]
    """The connected proxies that it selects."""

    @property
    def name(self) -> str:
        """``shop/web``."""
        return f"{self.namespace}/{self.members[0].name}" if self.selector else self.namespace

    @property
    def silent(self) -> Sequence[str]:
        """The names of its proxies that do not report."""
        return tuple(each.proxy.name for each in self.proxies if each.workload is None)


def keyed_proxies(view: View, proxies: Sequence[ConnectedProxy], seen: Observed) -> list[KeyedProxy]:
    """The connected proxies with their keys, by name."""
    found = {each.proxy.id: each.proxy for each in proxies}
    return [
        KeyedProxy(proxy, proxy_keys(view, proxy_facts(proxy)), seen.reporters.get(proxy.id))
        for proxy in sorted(found.values(), key=lambda proxy: (proxy.name, proxy.id))
    ]


def selected_workloads(seen: Observed, proxies: Sequence[KeyedProxy]) -> Iterator[SelectedWorkloads]:
    """The workloads of sidecars by the selectors that find them. Those without labels are left out.

    A selector finds all that have its labels, whatever else they have. A workload that another's selector finds has
    no other: of two Sidecars only the oldest would count, and an AuthorizationPolicy of the other would shut it
    off from its callers.
    """
    routers = {each.workload for each in proxies if each.proxy.type is NodeType.ROUTER}
    by_namespace: defaultdict[str, list[CallingWorkload]] = defaultdict(list)
    for workload in seen.workloads():
        if workload not in routers:
            by_namespace[workload.namespace].append(workload)
    for namespace, workloads in sorted(by_namespace.items()):
        every = dict.fromkeys(frozenset(each.labels) for each in workloads if each.labels)
        least = [labels for labels in every if not any(other < labels for other in every)]
        here = [each for each in proxies if each.proxy.type is NodeType.SIDECAR and each.proxy.namespace == namespace]
        for selector in sorted(least, key=sorted):
            members = [each for each in workloads if selector <= frozenset(each.labels)]
            yield SelectedWorkloads(namespace, selector, members, [e for e in here if selector <= e.labels])


def free_name(name: str, namespace: str, kind: str, taken: Mapping[ConfigKey, object] | set[ConfigKey]) -> ConfigKey:
    """A key of this name, or of the next that no object has."""
    number, key = 1, ConfigKey(kind, namespace, name)
    while key in taken:
        number += 1
        key = ConfigKey(kind, namespace, f"{name}-{number}")
    return key


def named(names: Sequence[str]) -> str:
    """``web, api and 12 others``."""
    shown = [*names[:NAMED]] if len(names) > NAMED + 1 else [*names]
    more = [counted(len(names) - len(shown), "other")] if len(names) > len(shown) else []
    *first, last = [*shown, *more]
    return f"{', '.join(first)} and {last}" if first else last


def silent_proxies(proxies: Sequence[ConnectedProxy], seen: Observed) -> list[str]:
    """The names of the connected proxies that do not report."""
    return sorted({each.proxy.name for each in proxies if each.proxy.id not in seen.reporters})
