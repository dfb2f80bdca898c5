"""Load balancing and outlier detection of clusters.

Rules: Istio's DestinationRule ``loadBalancer`` and ``outlierDetection``; Envoy's load balancing and outlier detection.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.core.v3 import base_pb2
from envoy.extensions.load_balancing_policies.client_side_weighted_round_robin.v3 import (
    client_side_weighted_round_robin_pb2,
)
from envoy.extensions.load_balancing_policies.least_request.v3.least_request_pb2 import LeastRequest
from envoy.extensions.load_balancing_policies.round_robin.v3.round_robin_pb2 import RoundRobin
from envoy.extensions.load_balancing_policies.wrr_locality.v3.wrr_locality_pb2 import WrrLocality
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.core.protobuf import duration, percent, uint32, uint64
from mesh_pilot.istio.meaning.weighted_round_robin import WeightedRoundRobin
from mesh_pilot.mesh.clusters.locality import is_spread, locality_setting, zone_aware_setting
from mesh_pilot.mesh.settings.mesh_defaults import ClusterDefaults
from mesh_pilot.model.service import TrafficDistribution

Simple = api.LoadBalancerSettingsSimpleLb
LEAST_REQUEST = (Simple.LEAST_REQUEST, Simple.LEAST_CONN)
"""Both names of the policy."""

DEFAULT_RING_SIZE = 1024

WEIGHTED_ROUND_ROBIN = "envoy.load_balancing_policies.client_side_weighted_round_robin"
WRR_LOCALITY = "envoy.load_balancing_policies.wrr_locality"

_SLOW_START_AGGRESSION = "mesh_pilot.slow_start_aggression"
"""Runtime key by which an operator can override it; Envoy requires one."""


def apply_load_balancing(
    cluster: Cluster,
    load_balancer: api.LoadBalancerSettings | None,
    defaults: ClusterDefaults,
    distribution: TrafficDistribution = TrafficDistribution.ANY,
    *,
    has_local_cluster: bool = False,
) -> None:
    """Set the load balancing policy; the default is LEAST_REQUEST. Call after the cluster's type and its outlier
    detection are set.

    ``distribution``: that of the service. ``has_local_cluster``: Envoy routes by zone unless it is told not to.
    """
    zone_aware = zone_aware_setting(load_balancer, defaults)
    if is_spread(load_balancer, distribution):
        cluster.common_lb_config.locality_weighted_lb_config.SetInParent()
    elif zone_aware is not None:
        config = cluster.common_lb_config.zone_aware_lb_config
        config.SetInParent()
        if zone_aware.enabled is False:
            config.routing_enabled.SetInParent()
        if zone_aware.min_cluster_size is not None:
            config.min_cluster_size.CopyFrom(uint64(zone_aware.min_cluster_size))
    elif _weighs_localities(
        locality_setting(load_balancer, defaults), detects_outliers=cluster.HasField("outlier_detection")
    ):
        cluster.common_lb_config.locality_weighted_lb_config.SetInParent()
    elif has_local_cluster:
        cluster.common_lb_config.zone_aware_lb_config.routing_enabled.SetInParent()
    if cluster.type == Cluster.ORIGINAL_DST or cluster.HasField("cluster_type"):
        cluster.lb_policy = Cluster.CLUSTER_PROVIDED
    elif load_balancer is not None and load_balancer.consistent_hash is not None:
        _apply_consistent_hash(cluster, load_balancer.consistent_hash)
    else:
        _apply_simple(cluster, load_balancer)


def apply_weights(cluster: Cluster, weights: WeightedRoundRobin, *, by_locality: bool) -> None:
    """Have endpoints chosen by the loads that they report, in place of the cluster's load balancing policy.

    ``by_locality``: localities are chosen by their weights first, which takes a policy around this one. Clusters whose
    endpoints are what the client connected to have nothing to choose from, and keep theirs.
    """
    if cluster.lb_policy == Cluster.CLUSTER_PROVIDED:
        return
    picking = client_side_weighted_round_robin_pb2.ClientSideWeightedRoundRobin(
        metric_names_for_computing_utilization=weights.metric_names,
        blackout_period=_optional(weights.blackout_period),
        weight_expiration_period=_optional(weights.weight_expiration_period),
        weight_update_period=_optional(weights.weight_update_period),
    )
    if weights.error_utilization_penalty is not None:
        picking.error_utilization_penalty.value = weights.error_utilization_penalty
    slow_start = (
        cluster.round_robin_lb_config if cluster.lb_policy == Cluster.ROUND_ROBIN else cluster.least_request_lb_config
    )
    if slow_start.HasField("slow_start_config"):
        picking.slow_start_config.ParseFromString(slow_start.slow_start_config.SerializeToString())
    # Envoy refuses such a cluster if its old fields say anything about localities.
    for field in ("locality_weighted_lb_config", "zone_aware_lb_config"):
        cluster.common_lb_config.ClearField(field)
    policies = cluster.load_balancing_policy.policies
    if by_locality:
        around = WrrLocality()
        _add(around.endpoint_picking_policy.policies, WEIGHTED_ROUND_ROBIN, picking)
        _add(policies, WRR_LOCALITY, around)
    else:
        _add(policies, WEIGHTED_ROUND_ROBIN, picking)


def apply_least_request(cluster: Cluster) -> None:
    """Have a gRPC client choose the endpoint with fewer calls, where its library can, else in turn."""
    around = WrrLocality()
    _add(around.endpoint_picking_policy.policies, "envoy.load_balancing_policies.least_request", LeastRequest())
    _add(around.endpoint_picking_policy.policies, "envoy.load_balancing_policies.round_robin", RoundRobin())
    _add(cluster.load_balancing_policy.policies, WRR_LOCALITY, around)


def _add(policies: Any, name: str, config: Message) -> None:
    extension = policies.add().typed_extension_config
    extension.name = name
    extension.typed_config.Pack(config)


def _optional(value: timedelta | None) -> Duration | None:
    return None if value is None else duration(value)


def _weighs_localities(setting: api.LocalityLoadBalancerSetting | None, *, detects_outliers: bool) -> bool:
    """True if endpoints are chosen by locality first. Otherwise it would disturb the choice by the policy."""
    if setting is None:
        return False
    return bool(setting.distribute or (detects_outliers and (setting.failover or setting.failover_priority)))


def apply_outlier_detection(cluster: Cluster, outlier: api.OutlierDetection | None) -> None:
    """Set when endpoints are ejected, and the panic threshold below which ejected ones are used again."""
    if outlier is None:
        return
    detection = cluster.outlier_detection
    detection.enforcing_success_rate.CopyFrom(uint32(0))
    if outlier.consecutive_5xx_errors is not None:
        detection.consecutive_5xx.CopyFrom(uint32(outlier.consecutive_5xx_errors))
        detection.enforcing_consecutive_5xx.CopyFrom(uint32(100 if outlier.consecutive_5xx_errors else 0))
    if outlier.consecutive_gateway_errors is not None:
        detection.consecutive_gateway_failure.CopyFrom(uint32(outlier.consecutive_gateway_errors))
        enforcing = uint32(100 if outlier.consecutive_gateway_errors else 0)
        detection.enforcing_consecutive_gateway_failure.CopyFrom(enforcing)
    if outlier.interval is not None:
        detection.interval.CopyFrom(duration(outlier.interval))
    if outlier.base_ejection_time is not None:
        detection.base_ejection_time.CopyFrom(duration(outlier.base_ejection_time))
    if outlier.max_ejection_percent > 0:
        detection.max_ejection_percent.CopyFrom(uint32(outlier.max_ejection_percent))
    if outlier.split_external_local_origin_errors:
        detection.split_external_local_origin_errors = True
        if outlier.consecutive_local_origin_failures:
            detection.consecutive_local_origin_failure.CopyFrom(uint32(outlier.consecutive_local_origin_failures))
            detection.enforcing_consecutive_local_origin_failure.CopyFrom(uint32(100))
        detection.enforcing_local_origin_success_rate.CopyFrom(uint32(0))
    if outlier.failure_percentage_threshold is not None:
        detection.failure_percentage_threshold.CopyFrom(uint32(outlier.failure_percentage_threshold))
        enforcing = uint32(100 if outlier.failure_percentage_threshold else 0)
        detection.enforcing_failure_percentage.CopyFrom(enforcing)
    # Always set (Istio's default is 0): Envoy's 50 % is too much for services of a few endpoints.
    cluster.common_lb_config.healthy_panic_threshold.CopyFrom(percent(float(outlier.min_health_percent)))


def _apply_simple(cluster: Cluster, load_balancer: api.LoadBalancerSettings | None) -> None:
    slow_start = _slow_start(load_balancer)
    match load_balancer.simple if load_balancer else None:
        case Simple.RANDOM:
            cluster.lb_policy = Cluster.RANDOM
        case Simple.ROUND_ROBIN:
            cluster.lb_policy = Cluster.ROUND_ROBIN
            if slow_start is not None:
                cluster.round_robin_lb_config.slow_start_config.CopyFrom(slow_start)
        case _:
            cluster.lb_policy = Cluster.LEAST_REQUEST
            if slow_start is not None:
                cluster.least_request_lb_config.slow_start_config.CopyFrom(slow_start)


def _slow_start(load_balancer: api.LoadBalancerSettings | None) -> Cluster.SlowStartConfig | None:
    """The warm-up of new endpoints; None if there is none."""
    if load_balancer is None:
        return None
    warmup = load_balancer.warmup
    if warmup is not None and warmup.duration is not None:
        config = Cluster.SlowStartConfig(slow_start_window=duration(warmup.duration))
        if warmup.minimum_percent is not None:
            config.min_weight_percent.CopyFrom(percent(warmup.minimum_percent))
        if warmup.aggression is not None:
            aggression = base_pb2.RuntimeDouble(default_value=warmup.aggression, runtime_key=_SLOW_START_AGGRESSION)
            config.aggression.CopyFrom(aggression)
        return config
    if load_balancer.warmup_duration_secs is not None:
        return Cluster.SlowStartConfig(slow_start_window=duration(load_balancer.warmup_duration_secs))
    return None


def _apply_consistent_hash(cluster: Cluster, consistent: api.LoadBalancerSettingsConsistentHashLb) -> None:
    if consistent.maglev is not None:
        cluster.lb_policy = Cluster.MAGLEV
        if consistent.maglev.table_size:
            cluster.maglev_lb_config.table_size.CopyFrom(uint64(consistent.maglev.table_size))
        return
    cluster.lb_policy = Cluster.RING_HASH
    cluster.ring_hash_lb_config.minimum_ring_size.CopyFrom(uint64(minimum_ring_size(consistent) or DEFAULT_RING_SIZE))


def minimum_ring_size(consistent: api.LoadBalancerSettingsConsistentHashLb) -> int:
    """The ring size that a rule sets, in ``ringHash`` or in the deprecated field; 0: none."""
    return consistent.ring_hash.minimum_ring_size if consistent.ring_hash else consistent.minimum_ring_size
