"""DestinationRules: which one a client follows for a service, and the traffic policy for each port and subset.

Rules: Istio's DestinationRule reference, and Pilot's order where several rules name a host. The client's namespace
is asked first, then the service's, then the root namespace; in each the most specific host wins. Rules for the same
host in one namespace are merged: the oldest decides, younger ones add subsets that it lacks and a policy if it has
none. A rule with a workloadSelector is for clients of its own namespace with these labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import TypeVar

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.proxy.scope import Labels
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.world.names import host_covers
from mesh_pilot.world.view import View

T = TypeVar("T")

DestinationRuleRef = tuple[ConfigKey, ...]
"""The DestinationRules that together are one rule, the deciding one first; empty: no rule. Small and hashable:
clients that follow the same rules share what is made from them."""

NO_RULE: DestinationRuleRef = ()


@attrs.frozen
class MergedRule:
    """Merged DestinationRules."""

    policy: api.TrafficPolicy | None = None
    subsets: Mapping[str, api.Subset] = attrs.field(factory=dict)
    """By name, in the order in which they are declared."""


@attrs.frozen
class Policy:
    """What a rule says for one port and subset; a field is None where nothing is said."""

    load_balancer: api.LoadBalancerSettings | None = None
    connection_pool: api.ConnectionPoolSettings | None = None
    outlier_detection: api.OutlierDetection | None = None
    tls: api.ClientTlsSettings | None = None
    tunnel: api.TrafficPolicyTunnelSettings | None = None
    proxy_protocol: api.TrafficPolicyProxyProtocol | None = None
    retry_budget: api.TrafficPolicyRetryBudget | None = None


NO_POLICY = Policy()


def destination_rule_ref(view: View, namespace: str, labels: Labels | None, service: ServiceKey) -> DestinationRuleRef:
    """The rule that a client follows for a service. Called as it is: most services have none to remember.

    ``labels`` are the client's (``Scope.labels``); None where the rule is asked for by the service's own side, for
    which rules with a workloadSelector do not count.
    """
    return _chosen(view, namespace, labels, service) if _rules_covering(view, service.host) else NO_RULE


@derived
def _chosen(view: View, namespace: str, labels: Labels | None, service: ServiceKey) -> DestinationRuleRef:
    found = NO_RULE
    for entry in _entries_for(view, _rules_covering(view, service.host), namespace, service):
        if entry.selector is None:
            found = entry.configs
        elif labels is not None and entry.configs[0].namespace == namespace and entry.selector <= labels:
            return entry.configs
    return found


@derived
def rule(view: View, ref: DestinationRuleRef) -> MergedRule:
    """What the DestinationRules of a reference say together."""
    policy: api.TrafficPolicy | None = None
    subsets: dict[str, api.Subset] = {}
    for key in ref:
        config = view.config(key)
        if config is None:
            continue
        spec: api.DestinationRule = config.spec
        policy = _first(policy, spec.traffic_policy)
        for subset in spec.subsets:
            subsets.setdefault(subset.name, subset)
    return MergedRule(policy, subsets)


@derived
def covers_many(view: View, ref: DestinationRuleRef) -> bool:
    """Whether a rule is written for a wildcard, so that many services may follow it."""
    configs = (view.config(key) for key in ref)
    return any(config.spec.host.startswith("*") for config in configs if config is not None)


@derived
def subset_names(view: View, ref: DestinationRuleRef) -> tuple[str, ...]:
    """The subsets of a rule, in the order in which they are declared."""
    return tuple(rule(view, ref).subsets)


@derived
def subset_labels(view: View, ref: DestinationRuleRef, subset: str) -> Labels | None:
    """The labels that endpoints of a subset have (none: all endpoints); None when there is no such subset."""
    if not subset:
        return frozenset()
    found = rule(view, ref).subsets.get(subset)
    return None if found is None else frozenset(found.labels.items())


@derived
def policy(view: View, ref: DestinationRuleRef, port: int, subset: str = "") -> Policy:
    """The traffic policy for a port (by number) and a subset (empty: the service as a whole)."""
    if not ref:
        return NO_POLICY
    merged = rule(view, ref)
    result = _overlay(NO_POLICY, merged.policy, port)
    chosen = merged.subsets.get(subset)
    return _overlay(result, chosen.traffic_policy, port) if chosen else result


def client_policy(view: View, ref: DestinationRuleRef, port: int, subset: str = "") -> Policy:
    """``policy`` as a client follows it: where the rule says nothing, the mesh's default."""
    result = policy(view, ref, port, subset)
    connection_pool, outlier_detection = _mesh_default(view)
    if connection_pool is None and outlier_detection is None:
        return result
    return attrs.evolve(
        result,
        connection_pool=_first(result.connection_pool, connection_pool),
        outlier_detection=_first(result.outlier_detection, outlier_detection),
    )


@derived
def passes_through(view: View, ref: DestinationRuleRef, port: int, subset: str = "") -> bool:
    """Whether a rule turns load balancing off: connections go where the client meant them to."""
    balancer = policy(view, ref, port, subset).load_balancer
    return balancer is not None and balancer.simple == api.LoadBalancerSettingsSimpleLb.PASSTHROUGH


@derived
def _mesh_default(view: View) -> tuple[api.ConnectionPoolSettings | None, api.OutlierDetection | None]:
    default = view.mesh().default_traffic_policy
    return (None, None) if default is None else (default.connection_pool, default.outlier_detection)


def _overlay(under: Policy, over: api.TrafficPolicy | None, port: int) -> Policy:
    """What ``over`` sets replaces what ``under`` has, whole; settings of a port replace all that ports may set."""
    if over is None:
        return under
    result = Policy(
        load_balancer=_first(over.load_balancer, under.load_balancer),
        connection_pool=_first(over.connection_pool, under.connection_pool),
        outlier_detection=_first(over.outlier_detection, under.outlier_detection),
        tls=_first(over.tls, under.tls),
        tunnel=_first(over.tunnel, under.tunnel),
        proxy_protocol=_first(over.proxy_protocol, under.proxy_protocol),
        retry_budget=_first(over.retry_budget, under.retry_budget),
    )
    for settings in over.port_level_settings:
        if settings.port is not None and settings.port.number == port:
            result = attrs.evolve(
                result,
                load_balancer=settings.load_balancer,
                connection_pool=settings.connection_pool,
                outlier_detection=settings.outlier_detection,
                tls=settings.tls,
            )
    return result


def _first(one: T | None, other: T | None) -> T | None:
    """The first that is there; an empty message is there (``outlierDetection: {}`` means its defaults)."""
    return other if one is None else one


# -- which rule


class _Pool(Enum):
    """Which rules of a namespace are asked."""

    LOCAL = "all that their own namespace may see"
    EXPORTED = "those that others may see too"
    PRIVATE = "those that nobody else sees"


@attrs.frozen
class _Head:
    """What of a DestinationRule decides whom it is for; an edit of its policy leaves this alone."""

    key: ConfigKey
    export_to: frozenset[str]
    """Namespaces and ``*``."""
    declared: bool
    """Whether it says itself to whom it is exported."""
    selector: Labels | None

    @property
    def private(self) -> bool:
        return self.export_to == {self.key.namespace}


_Covering = tuple[tuple[_Head, ...], ...]
"""The rules that may be for a host, by the host that they are written for, most specific first."""


@attrs.frozen
class _Entry:
    """Rules of one namespace, host and selector."""

    configs: DestinationRuleRef
    selector: Labels | None
    export_to: frozenset[str]
    declared: bool

    def visible_to(self, namespace: str) -> bool:
        return "*" in self.export_to or namespace in self.export_to


@derived
def _heads(view: View, host: str) -> tuple[_Head, ...]:
    configs = view.destination_rules(host)
    default = _default_export(view) if configs else ()
    return tuple(_head(config.key, config.spec, default) for config in configs)


def _head(key: ConfigKey, spec: api.DestinationRule, default: tuple[str, ...]) -> _Head:
    selector = spec.workload_selector
    # A rule for some workloads is never exported, whatever it says: not by itself, and not merged into another.
    said = spec.export_to if selector is None else ["."]
    return _Head(
        key=key,
        export_to=frozenset(key.namespace if e == "." else e for e in said or default),
        declared=bool(said),
        selector=None if selector is None else frozenset(selector.match_labels.items()),
    )


@derived
def _default_export(view: View) -> tuple[str, ...]:
    return tuple(view.mesh().default_destination_rule_export_to) or ("*",)


@derived
def _rules_covering(view: View, host: str) -> _Covering:
    """The rules that may be for a service's host: for most there are none."""
    wildcards = (w for w in view.wildcard_rule_hosts() if w != host and host_covers(w, host))
    found = (_heads.compute(view, host), *(_heads(view, wildcard) for wildcard in wildcards))
    return tuple(heads for heads in found if heads)


def _entries_for(view: View, covering: _Covering, namespace: str, service: ServiceKey) -> tuple[_Entry, ...]:
    """The rules among which a client of a namespace chooses for a service, by workloadSelector."""
    root = view.root_namespace
    # In the root namespace the rules for everybody are no more the client's own than anyone's: only private ones are.
    own = _most_specific(covering, namespace, _Pool.PRIVATE if namespace == root else _Pool.LOCAL)
    if own:
        return own
    for owner in dict.fromkeys((service.namespace, root)):
        exported = _most_specific(covering, owner, _Pool.EXPORTED)
        visible = tuple(e for e in exported if e.visible_to(namespace))
        if visible:
            return visible
    return ()


def _most_specific(covering: _Covering, namespace: str, pool: _Pool) -> tuple[_Entry, ...]:
    return next((entries for heads in covering if (entries := _merged(heads, namespace, pool))), ())


def _merged(heads: tuple[_Head, ...], namespace: str, pool: _Pool) -> tuple[_Entry, ...]:
    """The rules of one namespace for exactly one host, merged where their selectors allow; oldest first.

    For clients of its own namespace a rule with a selector also lends its subsets to an older rule without one, as in
    Pilot.
    """
    entries: list[_Entry] = []
    for head in _pooled(heads, namespace, pool):
        separate = True
        for i, entry in enumerate(entries):
            if entry.selector is not None and head.selector is not None and entry.selector != head.selector:
                continue
            if entry.selector == head.selector:
                separate = False
            adopts = head.declared and not entry.declared
            entries[i] = attrs.evolve(
                entry,
                configs=(*entry.configs, head.key),
                export_to=head.export_to if adopts else entry.export_to,
                declared=entry.declared or head.declared,
            )
        if separate:
            entries.append(_Entry((head.key,), head.selector, head.export_to, head.declared))
    return tuple(entries)


def _pooled(heads: tuple[_Head, ...], namespace: str, pool: _Pool) -> Iterator[_Head]:
    for head in heads:
        if head.key.namespace != namespace:
            continue
        match pool:
            case _Pool.LOCAL:
                chosen = not head.declared or "*" in head.export_to or namespace in head.export_to
            case _Pool.EXPORTED:
                chosen = not head.private
            case _Pool.PRIVATE:
                chosen = head.private
        if chosen:
            yield head
