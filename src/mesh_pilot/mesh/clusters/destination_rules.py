"""DestinationRules: which one applies to a client and service, and its traffic policy for each port and subset.

Rules: Istio's DestinationRule reference, and Pilot's order for several rules of a host. The client's namespace comes
first, then the service's, then the root namespace; in each the most specific host wins. Rules for the same host in one
namespace are merged if they have the same exportTo: the oldest decides, younger ones add subsets that it lacks, and a
policy if it has none. Policies of the Gateway API (BackendTLSPolicy) fill the fields that rules leave, however old. Of
rules with different exportTo the youngest that a client sees counts. A rule with a workloadSelector applies to clients
of its namespace with these labels.

Why a reference, the keys of the rules that apply, is a separate value: which rules apply depends on namespaces, labels
and hosts, what they say on their specs. Most edits change the latter only, and then no client's choice is made again;
and clients with equal references share clusters, routes and endpoints, however they came to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from operator import attrgetter
from typing import TypeVar

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.engine import derived
from mesh_pilot.istio.meaning.weighted_round_robin import (
    WEIGHTED_ROUND_ROBIN,
    WeightedRoundRobin,
    read_weighted_round_robin,
    weighted_by_utilization,
)
from mesh_pilot.istio.rules.load_balancing import yields_to_weights
from mesh_pilot.mesh.selection.workloads import Labels
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.hosts import host_covers
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.world.names import OWN_NAMESPACE, export_namespaces, exported_to
from mesh_pilot.world.view import View

T = TypeVar("T")

_H2UpgradePolicy = api.ConnectionPoolSettingsHttpSettingsH2UpgradePolicy

DestinationRuleRef = tuple[ConfigKey, ...]
"""The keys of DestinationRules that are merged into one, the oldest first; empty: no rule. Small and hashable: clients
with the same rules share what is derived from them."""

NO_RULE: DestinationRuleRef = ()


@attrs.frozen
class MergedRule:
    """Merged DestinationRules."""

    policy: api.TrafficPolicy | None = None
    subsets: Mapping[str, api.Subset] = attrs.field(factory=dict)
    """Subsets by name, in the order in which they are declared."""
    weights: WeightedRoundRobin | None = None
    """Settings of the oldest rule that has the annotation."""


@attrs.frozen
class Policy:
    """The traffic policy of a rule for one port and subset; None for a field that the rule does not set."""

    load_balancer: api.LoadBalancerSettings | None = None
    connection_pool: api.ConnectionPoolSettings | None = None
    outlier_detection: api.OutlierDetection | None = None
    tls: api.ClientTlsSettings | None = None
    tunnel: api.TrafficPolicyTunnelSettings | None = None
    proxy_protocol: api.TrafficPolicyProxyProtocol | None = None
    retry_budget: api.TrafficPolicyRetryBudget | None = None
    session: api.HttpSession | None = None
    weights: WeightedRoundRobin | None = None
    """Client-side weighted round robin in place of the load balancer: its ``backendUtilization``, or by an annotation,
    for all ports and subsets that do not choose another one."""


NO_POLICY = Policy()

_FIELDS = tuple(name for name in attrs.fields_dict(Policy) if name != "weights")
_OF_PORTS = ("load_balancer", "connection_pool", "outlier_detection", "tls")
"""The fields that the settings of a port have, too."""


def destination_rule_ref(view: View, namespace: str, labels: Labels | None, service: ServiceKey) -> DestinationRuleRef:
    """The rule that applies to a client and service. Not derived: most services have no rules to choose from.

    ``labels`` are the client's (``OutboundScope.labels``); None for the server side, to which rules with a
    workloadSelector do not apply.
    """
    return _chosen(view, namespace, labels, service) if _rules_covering(view, service.host) else NO_RULE


@derived
def _chosen(view: View, namespace: str, labels: Labels | None, service: ServiceKey) -> DestinationRuleRef:
    found = NO_RULE
    for group in _groups_for(view, _rules_covering(view, service.host), namespace, service):
        if group.selector is None:
            found = group.configs
        elif labels is not None and group.configs[0].namespace == namespace and group.selector <= labels:
            return group.configs
    return found


@derived
def merged_rule(view: View, ref: DestinationRuleRef) -> MergedRule:
    """The merged DestinationRules of a reference."""
    policy: api.TrafficPolicy | None = None
    made: api.TrafficPolicy | None = None
    subsets: dict[str, api.Subset] = {}
    weights: WeightedRoundRobin | None = None
    for key in ref:
        config = view.config(key)
        if config is None:
            continue
        spec: api.DestinationRule = config.spec
        written = spec.traffic_policy
        if written is not None and config.made_from:
            made = _first(made, _verified(written))
        else:
            policy = _first(policy, written)
        for subset in spec.subsets:
            subsets.setdefault(subset.name, subset)
        if weights is None and WEIGHTED_ROUND_ROBIN in config.annotations:
            weights = read_weighted_round_robin(config.annotations[WEIGHTED_ROUND_ROBIN])
    return MergedRule(_filled(policy, made), subsets, weights)


def _filled(policy: api.TrafficPolicy | None, made: api.TrafficPolicy | None) -> api.TrafficPolicy | None:
    """The settings of DestinationRules, and for the rest those of policies of the Gateway API."""
    if policy is None or made is None:
        return _first(policy, made)
    own = {each.port.number: each for each in policy.port_level_settings if each.port is not None}
    added = [each for each in made.port_level_settings if each.port is not None and each.port.number not in own]
    theirs = {each.port.number: each for each in made.port_level_settings if each.port is not None}
    ports = [_with_rest(each, theirs[number]) if number in theirs else each for number, each in own.items()]
    return replace(_with_rest(policy, made), port_level_settings=[*ports, *added])


_Settings = TypeVar("_Settings", api.TrafficPolicy, api.TrafficPolicyPortTrafficPolicy)


def _with_rest(policy: _Settings, made: _Settings) -> _Settings:
    """A policy with another one's fields where it has none."""
    names = [each.name for each in fields(made) if each.init and getattr(policy, each.name) is None]
    return replace(policy, **{name: getattr(made, name) for name in names})


def _verified(policy: api.TrafficPolicy) -> api.TrafficPolicy:
    """A policy made of BackendTLSPolicies: certificates have to be for the host name that is asked for, unless other
    names are given. In a DestinationRule that users write, identities of the ServiceEntry come before ``sni``."""
    ports = [replace(each, tls=_with_name(each.tls)) for each in policy.port_level_settings]
    return replace(policy, tls=_with_name(policy.tls), port_level_settings=ports)


def _with_name(tls: api.ClientTlsSettings | None) -> api.ClientTlsSettings | None:
    if tls is None or tls.subject_alt_names or not tls.sni:
        return tls
    return replace(tls, subject_alt_names=[tls.sni])


@derived
def has_policy_tls(view: View, ref: DestinationRuleRef, port: int, subset: str = "") -> bool:
    """True if the TLS for a port and subset is that of a BackendTLSPolicy."""
    tls = traffic_policy(view, ref, port, subset).tls
    configs = (view.config(key) for key in ref)
    made = (config.spec.traffic_policy for config in configs if config is not None and config.made_from)
    policies = [_verified(policy) for policy in made if policy is not None]
    return tls is not None and any(
        tls in (policy.tls, *(each.tls for each in policy.port_level_settings)) for policy in policies
    )


@derived
def covers_many(view: View, ref: DestinationRuleRef) -> bool:
    """True if a rule has a wildcard host, so that it may apply to many services."""
    configs = (view.config(key) for key in ref)
    return any(config.spec.host.startswith("*") for config in configs if config is not None)


@derived
def subset_names(view: View, ref: DestinationRuleRef) -> tuple[str, ...]:
    """The subsets of a rule, in the order in which they are declared."""
    return tuple(merged_rule(view, ref).subsets)


@derived
def subset_labels(view: View, ref: DestinationRuleRef, subset: str) -> Labels | None:
    """The labels of a subset's endpoints (empty: all endpoints); None if there is no such subset."""
    if not subset:
        return frozenset()
    found = merged_rule(view, ref).subsets.get(subset)
    return None if found is None else frozenset(found.labels.items())


@derived
def traffic_policy(view: View, ref: DestinationRuleRef, port: int, subset: str = "") -> Policy:
    """The traffic policy for a port (by number) and a subset (empty: the service as a whole)."""
    if not ref:
        return NO_POLICY
    merged = merged_rule(view, ref)
    result = _overlay(NO_POLICY, merged.policy, port)
    if chosen := merged.subsets.get(subset):
        result = _overlay(result, chosen.traffic_policy, port)
    utilization = result.load_balancer.backend_utilization if result.load_balancer is not None else None
    if utilization is not None:
        return attrs.evolve(result, weights=weighted_by_utilization(utilization))
    if merged.weights is not None and yields_to_weights(result.load_balancer):
        return attrs.evolve(result, weights=merged.weights)
    return result


def client_policy(view: View, ref: DestinationRuleRef, port: int, subset: str = "") -> Policy:
    """The traffic policy for clients: fields that the rule does not set have the mesh's defaults."""
    result = traffic_policy(view, ref, port, subset)
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
    """True if a rule turns load balancing off (PASSTHROUGH): connections go to their original destination."""
    balancer = traffic_policy(view, ref, port, subset).load_balancer
    return balancer is not None and balancer.simple == api.LoadBalancerSettingsSimpleLb.PASSTHROUGH


@derived
def may_upgrade(view: View, host: str, port: int) -> bool:
    """True if a rule makes some clients use HTTP/2 for a port, whatever the port's protocol (``h2UpgradePolicy``)."""
    refs = [(meta.key,) for metas in _rules_covering(view, host) for meta in metas]
    return any(
        _upgrades(traffic_policy(view, ref, port, subset)) for ref in refs for subset in ("", *subset_names(view, ref))
    )


def _upgrades(policy: Policy) -> bool:
    http = policy.connection_pool.http if policy.connection_pool is not None else None
    return http is not None and http.h2_upgrade_policy is _H2UpgradePolicy.UPGRADE


@derived
def _mesh_default(view: View) -> tuple[api.ConnectionPoolSettings | None, api.OutlierDetection | None]:
    default = view.mesh().default_traffic_policy
    return (None, None) if default is None else (default.connection_pool, default.outlier_detection)


def _overlay(under: Policy, over: api.TrafficPolicy | None, port: int) -> Policy:
    """A policy with the fields that ``over`` sets. The settings of a port replace all fields that ports can have.

    They also replace the PROXY protocol of ``over`` itself, but not that of the policy under it.
    """
    if over is None:
        return under
    result = Policy(**{name: _first(getattr(over, name), getattr(under, name)) for name in _FIELDS})
    for settings in over.port_level_settings:
        if settings.port is not None and settings.port.number == port:
            of_port = {name: getattr(settings, name) for name in _OF_PORTS}
            result = attrs.evolve(result, proxy_protocol=under.proxy_protocol, **of_port)
    return result


def _first(one: T | None, other: T | None) -> T | None:
    """The first that is not None. An empty message counts: ``outlierDetection: {}`` means its defaults."""
    return other if one is None else one


# -- which rule


@attrs.frozen
class _RuleMeta:
    """The fields of a DestinationRule that decide where it applies. An edit of its policy leaves them alone."""

    key: ConfigKey
    export_to: frozenset[str]
    """See ``export_namespaces``."""
    written: frozenset[str]
    """The ``exportTo`` of the rule, as it is written; empty: none."""
    selector: Labels | None

    @property
    def private(self) -> bool:
        """True if no other namespace may see it."""
        return self.export_to == {self.key.namespace}

    @property
    def is_for_own(self) -> bool:
        """True if its own namespace may see it."""
        return not self.written or exported_to(self.export_to, self.key.namespace)


_Covering = tuple[tuple[_RuleMeta, ...], ...]
"""The rules that may apply to a service's host, grouped by their own host, the most specific first."""


@attrs.frozen
class _RuleGroup:
    """Merged rules of one namespace, host and selector."""

    configs: DestinationRuleRef
    selector: Labels | None
    export_to: frozenset[str]
    written: frozenset[str]

    def visible_to(self, namespace: str) -> bool:
        return exported_to(self.export_to, namespace)


@derived
def _rule_metas(view: View, host: str) -> tuple[_RuleMeta, ...]:
    configs = view.destination_rules(host)
    default = _default_export(view) if configs else ()
    return tuple(_rule_meta(config.key, config.spec, default) for config in configs)


def _rule_meta(key: ConfigKey, spec: api.DestinationRule, default: tuple[str, ...]) -> _RuleMeta:
    selector = spec.workload_selector
    # A rule with a workloadSelector is never exported, neither alone nor merged into another.
    declared = spec.export_to if selector is None else [OWN_NAMESPACE]
    return _RuleMeta(
        key=key,
        export_to=export_namespaces(declared, default, key.namespace),
        written=frozenset(declared),
        selector=None if selector is None else frozenset(selector.match_labels.items()),
    )


@derived
def _default_export(view: View) -> tuple[str, ...]:
    return tuple(view.mesh().default_destination_rule_export_to)


@derived
def _rules_covering(view: View, host: str) -> _Covering:
    """The rules that may apply to a service's host; for most hosts there are none."""
    wildcards = (w for w in view.wildcard_rule_hosts() if w != host and host_covers(w, host))
    found = (_rule_metas.compute(view, host), *(_rule_metas(view, wildcard) for wildcard in wildcards))
    return tuple(metas for metas in found if metas)


def _groups_for(view: View, covering: _Covering, namespace: str, service: ServiceKey) -> tuple[_RuleGroup, ...]:
    """The rules for clients of a namespace and a service, which differ in their workloadSelector."""
    root = view.root_namespace
    # Exported rules of the root namespace are for the whole mesh: only private ones are the client's own.
    is_own = attrgetter("private" if namespace == root else "is_for_own")
    if local := _most_specific(covering, namespace, is_own):
        return local
    for exporter in dict.fromkeys((service.namespace, root)):
        exported = _most_specific(covering, exporter, lambda meta: not meta.private)
        visible = tuple(e for e in exported if e.visible_to(namespace))
        if visible:
            return visible
    return ()


_IsCandidate = Callable[["_RuleMeta"], bool]


def _most_specific(covering: _Covering, namespace: str, is_candidate: _IsCandidate) -> tuple[_RuleGroup, ...]:
    return next((groups for metas in covering if (groups := _merged(metas, namespace, is_candidate))), ())


def _merged(metas: tuple[_RuleMeta, ...], namespace: str, is_candidate: _IsCandidate) -> tuple[_RuleGroup, ...]:
    """The rules of one namespace and host, merged if they are for the same clients; oldest first.

    A rule that is exported to more namespaces than an older one adds to that, and is alone for the others: it comes
    first, so that clients of both have the merged one.
    """
    groups: list[_RuleGroup] = []
    for meta in metas:
        if meta.key.namespace != namespace or not is_candidate(meta):
            continue
        is_merged = is_wider = False
        for i, group in enumerate(groups):
            if group.selector != meta.selector:
                continue
            if group.written == meta.written:
                is_merged = True
            elif group.written and group.written < meta.written:
                is_wider = True
            else:
                continue
            groups[i] = attrs.evolve(group, configs=(*group.configs, meta.key))
        if not is_merged:
            alone = _RuleGroup((meta.key,), meta.selector, meta.export_to, meta.written)
            groups.insert(0 if is_wider else len(groups), alone)
    return tuple(groups)
