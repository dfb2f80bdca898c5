"""Locality load balancing: which endpoints a client prefers, by where both are.

Rules: Istio's LocalityLoadBalancerSetting (distribute, failover, failoverPriority); Envoy's priorities and locality
weights. What a client prefers is worked out for its place first, to a small value: clients for which it is the same
share endpoints' bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.mesh.mesh_defaults import ClusterDefaults
from mesh_pilot.mesh.proxy.scope import ProxyLocality
from mesh_pilot.model.service import NOWHERE, Endpoint, Locality

REGION_LABEL = "topology.kubernetes.io/region"
ZONE_LABEL = "topology.kubernetes.io/zone"
SUBZONE_LABEL = "topology.istio.io/subzone"
NETWORK_LABEL = "topology.istio.io/network"
CLUSTER_LABEL = "topology.istio.io/cluster"

ANY = "*"


@attrs.frozen(cache_hash=True)
class Distribution:
    """So much of the traffic to each group of localities; others get none."""

    shares: tuple[tuple[str, int], ...]
    """Locality pattern -> percent."""


@attrs.frozen(cache_hash=True)
class Failover:
    """The nearest first: same subzone, zone, region, then the region to fail over to, then all others."""

    locality: Locality
    regions: tuple[str, ...]
    """Where to fail over to from this region; empty: all other regions are equal."""
    within_region: bool = True
    """Whether zones and subzones count (else a region is one, and Envoy itself prefers the zone)."""


@attrs.frozen(cache_hash=True)
class LabelPriority:
    """Those first that have the most labels, in their order, as wanted."""

    labels: tuple[tuple[str, str], ...]


Preference = Distribution | Failover | LabelPriority | None
"""None: all are equal."""


def preference(
    setting: api.LocalityLoadBalancerSetting | None, place: ProxyLocality, detects_outliers: bool
) -> Preference:
    """What a client at a place prefers.

    Failover needs outlier detection: without it Envoy would never find an endpoint bad enough to leave.
    """
    if setting is None:
        return None
    if setting.distribute:
        if place.locality == NOWHERE:
            return None
        for rule in setting.distribute:
            if matches(place.locality, rule.from_):
                return Distribution(tuple(sorted(rule.to.items())))
        return None
    if not detects_outliers:
        return None
    return _failover(place, setting.failover_priority, [(f.from_, f.to) for f in setting.failover])


def zone_aware_preference(
    setting: api.ZoneAwareLoadBalancerSetting, place: ProxyLocality, detects_outliers: bool
) -> Preference:
    """The same under zone aware load balancing: a region is one priority, in which Envoy prefers its own zone."""
    if not detects_outliers:
        return None
    found = _failover(place, setting.failover_priority, [(f.from_, f.to) for f in setting.failover])
    return attrs.evolve(found, within_region=False) if isinstance(found, Failover) else found


def matches(locality: Locality, pattern: str) -> bool:
    """Whether a locality is covered by ``region/zone/subzone``, each part possibly ``*`` or left out."""
    region, zone, subzone = Locality.parse(pattern)
    return (
        region in (ANY, locality.region) and zone in (ANY, "", locality.zone) and subzone in (ANY, "", locality.subzone)
    )


def label_of(endpoint: Endpoint, key: str) -> str:
    """A label of an endpoint, with those of its topology filled in; empty if it has none such."""
    value = endpoint.labels.get(key)
    return value if value is not None else topology(endpoint.locality, endpoint.network).get(key, "")


def topology(locality: Locality, network: str, cluster_id: str = "") -> dict[str, str]:
    """The labels that say where something runs."""
    found = {
        REGION_LABEL: locality.region,
        ZONE_LABEL: locality.zone,
        SUBZONE_LABEL: locality.subzone,
        NETWORK_LABEL: network,
        CLUSTER_LABEL: cluster_id,
    }
    return {k: v for k, v in found.items() if v}


# -- what it does to endpoints


def failover_level(wanted: Failover, locality: Locality) -> int:
    """How far away a locality is: 0 is nearest."""
    own = wanted.locality
    if locality.region == own.region:
        if not wanted.within_region or locality == own:
            return 0
        return 1 if locality.zone == own.zone else 2
    return 3 if not wanted.regions or locality.region in wanted.regions else 4


def label_level(wanted: LabelPriority, endpoint: Endpoint) -> int:
    """How many of the labels, from the last, an endpoint lacks after its first mismatch: 0 has them all."""
    for i, (key, value) in enumerate(wanted.labels):
        if label_of(endpoint, key) != value:
            return len(wanted.labels) - i
    return 0


def distributed_weights(wanted: Distribution, groups: Sequence[tuple[Locality, int]]) -> list[int | None]:
    """The weight of each locality, given those it has by its endpoints; None for one that gets no traffic."""
    result: list[int | None] = [None] * len(groups)
    left = set(range(len(groups)))
    for pattern, share in wanted.shares:
        chosen = [i for i in sorted(left) if matches(groups[i][0], pattern)]
        left.difference_update(chosen)
        total = sum(groups[i][1] for i in chosen)
        for i in chosen:
            weight = groups[i][1]
            result[i] = math.ceil(weight * share / total) or weight
    return result


def _failover(place: ProxyLocality, by_labels: Sequence[str], regions: Iterable[tuple[str, str]]) -> Preference:
    if by_labels:
        own = {**dict(place.labels), **topology(place.locality, place.network, place.cluster_id)}
        return LabelPriority(tuple(_wanted_label(label, own) for label in by_labels))
    if place.locality == NOWHERE:
        return None
    targets = tuple(to for origin, to in regions if origin == place.locality.region)
    return Failover(place.locality, targets[:1])


def _wanted_label(text: str, own: Mapping[str, str]) -> tuple[str, str]:
    """``label`` (the client's own value is wanted) or ``label=value``."""
    key, equals, value = text.partition("=")
    return (key, value if equals else own.get(key, ""))


def locality_setting(
    load_balancer: api.LoadBalancerSettings | None, defaults: ClusterDefaults
) -> api.LocalityLoadBalancerSetting | None:
    """The locality load balancing that applies: the rule's, else the mesh's; None where it is off."""
    own = load_balancer.locality_lb_setting if load_balancer else None
    setting = defaults.locality if own is None else own
    if setting is None or setting.enabled is False or zone_aware_setting(load_balancer, defaults) is not None:
        return None
    return setting


def zone_aware_setting(
    load_balancer: api.LoadBalancerSettings | None, defaults: ClusterDefaults
) -> api.ZoneAwareLoadBalancerSetting | None:
    """Zone aware load balancing, if it is on (it is only where somebody says so); it takes the place of locality's."""
    if load_balancer is not None and load_balancer.zone_aware_lb_setting is not None:
        own = load_balancer.zone_aware_lb_setting
        return None if own.enabled is False else own
    if load_balancer is not None and load_balancer.locality_lb_setting is not None:
        return None
    mesh = defaults.zone_aware
    return mesh if mesh is not None and mesh.enabled else None
