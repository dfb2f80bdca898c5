"""Workloads as objects select them: the fewest selectors that tell them apart, each with its proxies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

import attrs

from mesh_pilot.explain.plan.picture import ConnectedProxy
from mesh_pilot.explain.suggestions.observed import Observed
from mesh_pilot.istio.rules.names import is_dns_label
from mesh_pilot.mesh.proxy.keys import ProxyKeys, proxy_facts, proxy_keys
from mesh_pilot.mesh.proxy.metric_source import CANONICAL_SERVICE
from mesh_pilot.mesh.proxy.workload_record import effective_workload
from mesh_pilot.mesh.selection.workloads import Labels
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.counts import counted
from mesh_pilot.model.proxy import NodeType, Proxy
from mesh_pilot.model.service import SERVICE_LABEL
from mesh_pilot.traffic.table import CallingWorkload
from mesh_pilot.world.view import View

NAMED = 3
"""Names that are told where there are many."""


@attrs.frozen
class KeyedProxy:
    """A connected proxy, with the keys of its configuration."""

    proxy: Proxy
    keys: ProxyKeys
    labels: Labels
    """All by which objects may select it, as the registry has them."""
    workload: CallingWorkload | None
    """None: it does not report."""

    @property
    def is_sidecar(self) -> bool:
        return self.proxy.type is NodeType.SIDECAR


@attrs.frozen
class SelectedWorkloads:
    """The workloads that one selector selects."""

    namespace: str
    selector: Labels
    """None: all of the namespace."""
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
    return [_keyed(view, proxy, seen) for proxy in sorted(found.values(), key=lambda proxy: (proxy.name, proxy.id))]


def _keyed(view: View, proxy: Proxy, seen: Observed) -> KeyedProxy:
    facts = proxy_facts(proxy)
    known = effective_workload(view, facts.claim, facts.said, router=proxy.type is NodeType.ROUTER)
    labels = known.labels | known.record.services
    return KeyedProxy(proxy, proxy_keys(view, facts), labels, seen.reporters.get(proxy.id))


class WorkloadSelectors:
    """The workloads of sidecars by the selectors that find them; gateways are left out.

    A selector finds all that have its labels, whatever else they have. A workload that another's selector finds has
    no other: of two Sidecars only the oldest would count, and an AuthorizationPolicy of the other would shut it off
    from its callers.
    """

    def __init__(self, seen: Observed, proxies: Sequence[KeyedProxy]) -> None:
        self._sidecars = [each for each in proxies if each.is_sidecar]
        routers = {each.workload for each in proxies if not each.is_sidecar}
        self._workloads = [each for each in seen.workloads() if each not in routers]
        every: defaultdict[CallingWorkload, list[Labels]] = defaultdict(list)
        for proxy in self._sidecars:
            if proxy.workload is not None:
                every[proxy.workload].append(proxy.labels)
        # The labels that all proxies of a workload have; its own where no proxy of it is connected.
        self._labels = {
            each: frozenset.intersection(*every[each]) if each in every else frozenset(each.labels)
            for each in self._workloads
        }
        self._selectors = {each: _selector(each, labels) for each, labels in self._labels.items()}

    def groups(self, namespace: str = "") -> Iterator[SelectedWorkloads]:
        """The workloads of a namespace, or of all, by their selectors."""
        for where in sorted({each.namespace for each in self._workloads if namespace in ("", each.namespace)}):
            workloads = [each for each in self._workloads if each.namespace == where]
            every = dict.fromkeys(filter(None, (self._selectors[each] for each in workloads)))
            least = [labels for labels in every if not any(other < labels for other in every)]
            here = [each for each in self._sidecars if each.proxy.namespace == where]
            for selector in sorted(least, key=sorted):
                members = [each for each in workloads if selector <= self._labels[each]]
                yield SelectedWorkloads(where, selector, members, [e for e in here if selector <= e.labels])

    def without_labels(self, namespace: str = "") -> list[CallingWorkload]:
        """The workloads that no label tells from others."""
        return [each for each in self._workloads if not self._selectors[each] and namespace in ("", each.namespace)]


def _selector(workload: CallingWorkload, labels: Labels) -> Labels:
    """The labels that select a workload. Its node may say others than its registry has, and the registry's count."""
    own = frozenset(workload.labels)
    if own <= labels:
        return own
    canonical = next(((key, value) for name in CANONICAL_SERVICE for key, value in sorted(labels) if key == name), None)
    service = next((each for each in sorted(labels) if each[0].startswith(SERVICE_LABEL)), None)
    found = canonical or service
    return frozenset((found,)) if found else frozenset()


def free_name(name: str, namespace: str, kind: str, taken: Collection[ConfigKey]) -> ConfigKey:
    """A key of this name, or of the next that no object has; workloads may have names that objects may not."""
    name = name if is_dns_label(name) else "workload"
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
