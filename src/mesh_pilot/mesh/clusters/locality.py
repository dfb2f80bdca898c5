"""Locality load balancing: which endpoints a client prefers, by the localities of both.

Rules: Istio's LocalityLoadBalancerSetting (distribute, failover, failoverPriority); Envoy's priorities and locality
weights. The preference of a client is a small value: clients with equal preferences share encoded endpoints.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.mesh.proxy.scope import HOSTNAME_LABEL, ProxyLocality
from mesh_pilot.mesh.settings.mesh_defaults import ClusterDefaults
from mesh_pilot.model.service import (
    CLUSTER_LABEL,
    NETWORK_LABEL,
    NOWHERE,
    PLACE_LABELS,
    Endpoint,
    Locality,
    TrafficDistribution,
)

REGION_LABEL, ZONE_LABEL, SUBZONE_LABEL = PLACE_LABELS

_NEAREST_FIRST = {
    TrafficDistribution.SAME_ZONE: (NETWORK_LABEL, REGION_LABEL, ZONE_LABEL),
    TrafficDistribution.SAME_NODE: (NETWORK_LABEL, REGION_LABEL, ZONE_LABEL, SUBZONE_LABEL, HOSTNAME_LABEL),
}
"""The labels that a traffic distribution compares: what ``failoverPriority`` of a DestinationRule would list."""

ANY = "*"


_FailoverRule = api.LocalityLoadBalancerSettingFailover | api.ZoneAwareLoadBalancerSettingFailover


@attrs.frozen(cache_hash=True)
class Distribution:
    """A percentage of traffic for each group of localities; other localities get none."""

    percentages: tuple[tuple[str, int], ...]
    """Percentages by locality pattern."""


@attrs.frozen(cache_hash=True)
class Failover:
    """Nearest first: the same subzone, zone, region, then the failover region, then all others."""

    locality: Locality
    regions: tuple[str, ...]
    """The failover region; empty: all other regions are equal."""
    within_region: bool = True
    """False if a region is one priority, in which Envoy itself prefers the zone."""


@attrs.frozen(cache_hash=True)
class LabelPriority:
    """Endpoints first that match the most labels, in the order of the labels."""

    labels: tuple[tuple[str, str], ...]


@attrs.frozen(cache_hash=True)
class LabelsThenFailover:
    """Endpoints first that match the most labels; those that match equally many, nearest first."""

    labels: LabelPriority
    failover: Failover


Preference = Distribution | Failover | LabelPriority | LabelsThenFailover | None
"""None: all endpoints are equal."""


def preference(
    setting: api.LocalityLoadBalancerSetting | None, client: ProxyLocality, detects_outliers: bool
) -> Preference:
    """The preference of a client.

    Failover needs outlier detection: without it Envoy would never consider an endpoint unhealthy.
    """
    if setting is None:
        return None
    if setting.distribute:
        if client.locality == NOWHERE:
            return None
        for rule in setting.distribute:
            if matches(client.locality, rule.from_):
                return Distribution(tuple(sorted(rule.to.items())))
        return None
    if not detects_outliers:
        return None
    labels = _labels(client, setting.failover_priority)
    if labels is not None and not setting.failover:
        return labels
    return _by_both(labels, _regions(client, setting.failover))


def nearest_first(distribution: TrafficDistribution, client: ProxyLocality) -> Preference:
    """The preference for endpoints near a client, also of one that does not detect outliers: unready ones count."""
    return _labels(client, _NEAREST_FIRST[distribution])


def is_spread(load_balancer: api.LoadBalancerSettings | None, distribution: TrafficDistribution) -> bool:
    """True if the traffic distribution of a service decides: a rule's own settings win over it."""
    if distribution is TrafficDistribution.ANY:
        return False
    return load_balancer is None or (
        load_balancer.locality_lb_setting is None and load_balancer.zone_aware_lb_setting is None
    )


def zone_aware_preference(setting: api.ZoneAwareLoadBalancerSetting, client: ProxyLocality) -> Preference:
    """The preference under zone aware load balancing: a region is one priority, in which Envoy prefers its zone.

    Also of a client that does not detect outliers: Envoy compares zones in one priority only.
    """
    if setting.enabled is False:
        return None
    labels = _labels(client, setting.failover_priority)
    return _by_both(labels, _regions(client, setting.failover, within_region=False))


def matches(locality: Locality, pattern: str) -> bool:
    """True if a locality matches ``region/zone/subzone``, each part possibly ``*`` or omitted."""
    region, zone, subzone = Locality.parse(pattern)
    return (
        region in (ANY, locality.region) and zone in (ANY, "", locality.zone) and subzone in (ANY, "", locality.subzone)
    )


def label_of(endpoint: Endpoint, key: str) -> str:
    """A label of an endpoint, or of its topology; empty if it lacks the label."""
    value = endpoint.labels.get(key)
    if value is not None:
        return value
    return topology(endpoint.locality, endpoint.network, endpoint.cluster_id, endpoint.node).get(key, "")


def topology(locality: Locality, network: str, cluster_id: str = "", node: str = "") -> dict[str, str]:
    """The topology labels of a locality, network, cluster and node."""
    found = {
        REGION_LABEL: locality.region,
        ZONE_LABEL: locality.zone,
        SUBZONE_LABEL: locality.subzone,
        NETWORK_LABEL: network,
        CLUSTER_LABEL: cluster_id,
        HOSTNAME_LABEL: node,
    }
    return {k: v for k, v in found.items() if v}


# -- effect on endpoints


FAILOVER_LEVELS = 5
"""The number of distances."""


def failover_level(wanted: Failover, locality: Locality) -> int:
    """The distance of a locality: 0 is nearest."""
    own = wanted.locality
    if locality.region == own.region:
        if not wanted.within_region or locality == own:
            return 0
        return 1 if locality.zone == own.zone else 2
    return 3 if not wanted.regions or locality.region in wanted.regions else 4


def label_level(wanted: LabelPriority, endpoint: Endpoint) -> int:
    """The number of labels from the first mismatch on: 0 if an endpoint matches all."""
    for i, (key, value) in enumerate(wanted.labels):
        if label_of(endpoint, key) != value:
            return len(wanted.labels) - i
    return 0


def distributed_weights(wanted: Distribution, groups: Sequence[tuple[Locality, int]]) -> list[int | None]:
    """The weight of each locality, given the weight of its endpoints; None for one without traffic."""
    result: list[int | None] = [None] * len(groups)
    remaining = set(range(len(groups)))
    for pattern, percentage in wanted.percentages:
        chosen = [i for i in sorted(remaining) if matches(groups[i][0], pattern)]
        remaining.difference_update(chosen)
        total = sum(groups[i][1] for i in chosen)
        for i in chosen:
            weight = groups[i][1]
            result[i] = math.ceil(weight * percentage / total) or weight
    return result


def _labels(client: ProxyLocality, keys: Sequence[str]) -> LabelPriority | None:
    if not keys:
        return None
    own = {**dict(client.labels), **topology(client.locality, client.network, client.cluster_id, client.node)}
    return LabelPriority(tuple(_wanted_label(key, own) for key in keys))


def _regions(client: ProxyLocality, rules: Iterable[_FailoverRule], *, within_region: bool = True) -> Failover | None:
    if client.locality == NOWHERE:
        return None
    targets = tuple(rule.to for rule in rules if rule.from_ == client.locality.region)
    return Failover(client.locality, targets[:1], within_region)


def _by_both(labels: LabelPriority | None, failover: Failover | None) -> Preference:
    return LabelsThenFailover(labels, failover) if labels and failover else labels or failover


def _wanted_label(text: str, own: Mapping[str, str]) -> tuple[str, str]:
    """A label and the value to match: of ``label`` the client's own, or that of ``label=value``."""
    key, equals, value = text.partition("=")
    return (key, value if equals else own.get(key, ""))


def locality_setting(
    load_balancer: api.LoadBalancerSettings | None, defaults: ClusterDefaults
) -> api.LocalityLoadBalancerSetting | None:
    """The locality load balancing that applies: the rule's, else the mesh's; None if it is disabled."""
    own = load_balancer.locality_lb_setting if load_balancer else None
    setting = defaults.locality if own is None else own
    if setting is None or setting.enabled is False or zone_aware_setting(load_balancer, defaults) is not None:
        return None
    return setting


def zone_aware_setting(
    load_balancer: api.LoadBalancerSettings | None, defaults: ClusterDefaults
) -> api.ZoneAwareLoadBalancerSetting | None:
    """Zone aware load balancing: the rule's, else the mesh's, also one that is disabled.

    It replaces the locality load balancing next to it, even then. A rule with either replaces both of the mesh.
    """
    if load_balancer is not None and load_balancer.zone_aware_lb_setting is not None:
        return load_balancer.zone_aware_lb_setting
    if load_balancer is not None and load_balancer.locality_lb_setting is not None:
        return None
    return defaults.zone_aware
