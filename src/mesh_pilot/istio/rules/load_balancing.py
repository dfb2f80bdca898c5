"""Rules for load balancing, locality and failover."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.api.istio.networking.v1alpha3 import LoadBalancerSettingsSimpleLb as Simple
from mesh_pilot.istio.rules.context import check, check_parts, check_values, error, warning
from mesh_pilot.istio.rules.names import empty_reason
from mesh_pilot.istio.rules.overlaps import overlapping_localities
from mesh_pilot.istio.rules.values import (
    MAX_DURATION,
    duration_or_zero_reason,
    duration_reason,
    header_size_reason,
    header_text_reason,
    percent_reason,
)
from mesh_pilot.model.config import Problem

MAX_TABLE = 5_000_011
"""Envoy's largest Maglev table."""

MAX_RING = 8 * 1024 * 1024
"""Envoy's largest hash ring."""

WARMING = (Simple.UNSPECIFIED, Simple.ROUND_ROBIN, Simple.LEAST_REQUEST, Simple.LEAST_CONN)
"""Load balancers that support slow start."""

_YIELDING = (Simple.UNSPECIFIED, Simple.ROUND_ROBIN)

_TOPOLOGY = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone", "topology.istio.io/subzone")


def check_load_balancer(
    path: str, settings: api.LoadBalancerSettings | None, outliers: api.OutlierDetection | None
) -> Iterator[Problem]:
    """`loadBalancer` of a policy; `outliers` is its outlier detection."""
    if settings is None:
        return
    yield from check_parts(path, settings, _check_hash, "consistent_hash")
    yield from check_parts(path, settings, _check_utilization, "backend_utilization")
    yield from check_locality(f"{path}.localityLbSetting", settings.locality_lb_setting, outliers)
    yield from check_zone_aware(f"{path}.zoneAwareLbSetting", settings.zone_aware_lb_setting, outliers)
    if settings.zone_aware_lb_setting is not None and settings.locality_lb_setting is not None:
        yield error(f"{path}.zoneAwareLbSetting", "localityLbSetting and zoneAwareLbSetting exclude each other")
    if settings.warmup_duration_secs is not None:
        if settings.warmup is not None:
            yield error(f"{path}.warmup", "warmupDurationSecs and warmup exclude each other")
        yield from check(f"{path}.warmupDurationSecs", duration_reason(settings.warmup_duration_secs))
    yield from check_parts(path, settings, _check_warmup, "warmup")
    warms = settings.warmup_duration_secs is not None or settings.warmup is not None
    if warms and (settings.consistent_hash is not None or (settings.simple or Simple.UNSPECIFIED) not in WARMING):
        name = "warmup" if settings.warmup is not None else "warmupDurationSecs"
        yield warning(f"{path}.{name}", "has no effect: only ROUND_ROBIN and LEAST_REQUEST warm up")


def yields_to_weights(settings: api.LoadBalancerSettings | None) -> bool:
    """True if client-side weighted round robin may take its place: none is chosen, or round robin."""
    return settings is None or (
        settings.consistent_hash is None and (settings.simple or Simple.UNSPECIFIED) in _YIELDING
    )


def _check_utilization(path: str, settings: api.LoadBalancerSettingsBackendUtilizationLb) -> Iterator[Problem]:
    yield from check_values(path, settings, duration_or_zero_reason, "weight_stabilization_period")
    yield from check_values(path, settings, duration_reason, "weight_expiration_period", "weight_update_period")
    yield from check_values(path, settings, empty_reason, "metric_names_for_computing_utilization")


def _check_warmup(path: str, warmup: api.WarmupConfiguration) -> Iterator[Problem]:
    yield from check_values(path, warmup, duration_reason, "duration", required=True)
    yield from check_values(path, warmup, percent_reason, "minimum_percent")
    if warmup.aggression is not None and not 0 < warmup.aggression < float("inf"):
        yield error(f"{path}.aggression", f"{warmup.aggression:g} is not a number above 0")


def _check_hash(path: str, settings: api.LoadBalancerSettingsConsistentHashLb) -> Iterator[Problem]:
    keys = (
        settings.http_header_name,
        settings.http_cookie,
        settings.use_source_ip or None,
        settings.http_query_parameter_name,
    )
    if all(key is None for key in keys):
        known = "httpHeaderName, httpCookie, useSourceIp and httpQueryParameterName"
        yield warning(path, f"has none of {known}: without an EnvoyFilter that hashes, endpoints are chosen at random")
    yield from check_values(path, settings, empty_reason, "http_header_name", "http_query_parameter_name")
    yield from check(f"{path}.httpHeaderName", header_text_reason(settings.http_header_name or ""))
    yield from check_parts(path, settings, _check_cookie, "http_cookie")
    yield from check_parts(path, settings, _check_maglev, "maglev")
    # minimumRingSize is the deprecated place of the other; Istio reads it where there is no ringHash.
    ring = settings.ring_hash.minimum_ring_size if settings.ring_hash is not None else settings.minimum_ring_size
    if ring > MAX_RING:
        name = "ringHash.minimumRingSize" if settings.ring_hash is not None else "minimumRingSize"
        yield error(f"{path}.{name}", f"{ring} is too large, allowed are up to {MAX_RING}")


def _check_cookie(path: str, cookie: api.LoadBalancerSettingsConsistentHashLbHttpCookie) -> Iterator[Problem]:
    if not cookie.name:
        yield error(f"{path}.name", "is missing")
    if cookie.ttl is not None and cookie.ttl < timedelta(0):
        yield error(f"{path}.ttl", "must not be negative")
    elif cookie.ttl is not None and cookie.ttl > MAX_DURATION:
        yield error(f"{path}.ttl", f"must be at most {int(MAX_DURATION.total_seconds())}s")
    names: set[str] = set()
    for index, attribute in enumerate(cookie.attributes):
        here = f"{path}.attributes[{index}]"
        if not attribute.name:
            yield error(f"{here}.name", "is missing")
        elif attribute.name in names:
            yield error(f"{here}.name", f'"{attribute.name}" is given twice')
        names.add(attribute.name)
        for name, value in (("name", attribute.name), ("value", attribute.value)):
            yield from check(f"{here}.{name}", header_text_reason(value) or header_size_reason(value))


def _check_maglev(path: str, maglev: api.LoadBalancerSettingsConsistentHashLbMagLev) -> Iterator[Problem]:
    size = maglev.table_size
    if not size:
        yield error(f"{path}.tableSize", "is missing")
    elif size > MAX_TABLE:
        yield error(f"{path}.tableSize", f"{size} is too large, allowed are up to {MAX_TABLE}")
    elif not _is_prime(size):
        yield error(f"{path}.tableSize", f"{size} is not a prime number")


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % factor for factor in range(2, int(number**0.5) + 1))


def check_locality(
    path: str, setting: api.LocalityLoadBalancerSetting | None, outliers: api.OutlierDetection | None
) -> Iterator[Problem]:
    """`localityLbSetting`, of a policy or of the mesh."""
    if setting is None:
        return
    # Istio's three ways exclude each other, but failoverPriority may go with failover as long as only one orders
    # regions.
    if setting.distribute and setting.failover:
        yield error(f"{path}.failover", "distribute and failover exclude each other")
    if setting.distribute and setting.failover_priority:
        yield error(f"{path}.failoverPriority", "distribute and failoverPriority exclude each other")
    if setting.failover and setting.failover_priority:
        for index, label in enumerate(setting.failover_priority):
            if label in _TOPOLOGY:
                yield error(f"{path}.failoverPriority[{index}]", f"failover and the label {label} exclude each other")
    for index, distribute in enumerate(setting.distribute):
        here = f"{path}.distribute[{index}]"
        for locality, weight in distribute.to.items():
            if not 1 <= weight <= 100:
                yield error(f"{here}.to[{locality}]", f"{weight} is not a weight, allowed are 1 to 100")
        if (total := sum(distribute.to.values())) != 100:
            yield error(f"{here}.to", f"the weights add up to {total}, not 100")
        yield from _check_localities(f"{here}.to", list(distribute.to))
    yield from _check_localities(f"{path}.distribute", [distribute.from_ for distribute in setting.distribute])
    yield from _check_failover(path, setting, outliers)


def check_zone_aware(
    path: str, setting: api.ZoneAwareLoadBalancerSetting | None, outliers: api.OutlierDetection | None
) -> Iterator[Problem]:
    """`zoneAwareLbSetting`, of a policy or of the mesh."""
    if setting is None:
        return
    for index, label in enumerate(setting.failover_priority):
        if label in _TOPOLOGY:
            reason = f"{label} has no place here: Envoy prefers the zone, and failover orders the regions"
            yield error(f"{path}.failoverPriority[{index}]", reason)
    yield from _check_failover(path, setting, outliers)


def _check_failover(
    path: str,
    setting: api.LocalityLoadBalancerSetting | api.ZoneAwareLoadBalancerSetting,
    outliers: api.OutlierDetection | None,
) -> Iterator[Problem]:
    if (setting.failover or setting.failover_priority) and outliers is None:
        yield warning(path, "failover needs an outlierDetection next to it to know which endpoints fail")
    rules: Sequence[api.LocalityLoadBalancerSettingFailover | api.ZoneAwareLoadBalancerSettingFailover] = (
        setting.failover
    )
    for index, failover in enumerate(rules):
        here = f"{path}.failover[{index}]"
        if failover.from_ == failover.to:
            yield error(here, "from and to must be different regions")
        for name, region in (("from", failover.from_), ("to", failover.to)):
            if "*" in region or "/" in region:
                yield error(f"{here}.{name}", f'"{region}" is not a region; zones and wildcards don\'t work here')


def _check_localities(path: str, localities: Sequence[str]) -> Iterator[Problem]:
    """Each is well-formed, and none contains another."""
    good: list[str] = []
    for locality in localities:
        parts = locality.split("/")
        if "*" in locality.removesuffix("*"):
            yield error(path, f'"{locality}": a wildcard can only be the end of a locality')
        elif len(parts) > 3 or not all(parts):
            yield error(path, f'"{locality}" is not of the form region/zone/subzone with the right parts optional')
        else:
            good.append(locality)
    for later, earlier in overlapping_localities(good):
        yield error(path, f'"{good[later]}" and "{good[earlier]}" overlap')
