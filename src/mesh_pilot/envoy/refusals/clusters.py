"""Clusters: what goes with their type, and their load balancing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from envoy.config.cluster.v3.cluster_pb2 import Cluster

from mesh_pilot.envoy.core.protobuf import type_name
from mesh_pilot.envoy.refusals.extensions import extension_type, is_ip, is_misplaced, upstream_socket
from mesh_pilot.envoy.refusals.listeners import bound_address
from mesh_pilot.envoy.refusals.pairs import Rule, not_less

_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_HTTP_KEYS = (_HTTP_OPTIONS, "envoy.upstreams.http.http_protocol_options")
_WITH_OPTIONS = ("envoy.extensions.upstreams", "envoy.extensions.filters.network")
_MAX_RING = 8_388_608
"""Envoy's maximum_ring_size if it is not set."""

_BASE_EJECTION = 30_000_000_000
"""Envoy's base_ejection_time, in nanoseconds, if it is not set."""

_MAX_TABLE = 5_000_011
"""The largest table_size."""


def _cluster(cluster: Any) -> Iterator[str]:
    if cluster.HasField("cluster_type"):
        if is_misplaced(name := extension_type(cluster.cluster_type), ("envoy.extensions.clusters",)):
            yield f"cluster_type.typed_config: {name} is not a type of cluster"
    else:
        yield from _type(cluster)
    yield from _load_balancing(cluster)
    yield from upstream_socket(cluster)
    for index, match in enumerate(cluster.transport_socket_matches):
        yield from (f"transport_socket_matches[{index}].{text}" for text in upstream_socket(match))
    yield from _protocols(cluster)
    if len(cluster.health_checks) > 1:
        yield f"health_checks: has {len(cluster.health_checks)} entries, allowed is 1"
    for index, limits in enumerate(cluster.circuit_breakers.per_host_thresholds):
        for field, _ in limits.ListFields():
            if field.name not in ("priority", "max_connections"):
                path = f"circuit_breakers.per_host_thresholds[{index}].{field.name}"
                yield f"{path}: only max_connections has an effect per host"
    if cluster.track_cluster_stats.per_endpoint_stats:
        yield "track_cluster_stats.per_endpoint_stats: excludes load reports, which bootstraps turn on"
    if (count := len(cluster.load_assignment.policy.drop_overloads)) > 1:
        yield f"load_assignment.policy.drop_overloads: has {count} entries, allowed is 1"
    yield from _resolvers("dns_resolvers", cluster.dns_resolvers)
    yield from _resolvers("dns_resolution_config.resolvers", cluster.dns_resolution_config.resolvers)


def _resolvers(field: str, resolvers: Iterable[Any]) -> Iterator[str]:
    for index, resolver in enumerate(resolvers):
        if resolver.HasField("socket_address"):
            if not is_ip(resolver.socket_address.address):
                yield f"{field}[{index}].socket_address.address: has to be an IP address"
            if resolver.socket_address.named_port:
                yield f"{field}[{index}].socket_address.named_port: has to be a number, port_value"


def _bind(config: Any) -> Iterator[str]:
    if not config.HasField("source_address"):
        for name in ("extra_source_addresses", "additional_source_addresses"):
            if getattr(config, name):
                yield f"{name}: needs a source_address"
        return
    host = config.source_address
    if not host.resolver_name and not is_ip(host.address):
        yield f"source_address.address: {host.address[:100]!r} is not an IP address"


def _protocols(cluster: Any) -> Iterator[str]:
    options = cluster.typed_extension_protocol_options
    for key, value in options.items():
        if is_misplaced(kind := type_name(value.type_url), _WITH_OPTIONS):
            yield f"typed_extension_protocol_options[{key}]: {kind} is not a protocol's options"
        if kind == _HTTP_OPTIONS and key not in _HTTP_KEYS:
            yield f"typed_extension_protocol_options[{key}]: has to be under the key {_HTTP_OPTIONS}"
    # The options of an extension win over the two older fields, which exclude each other without a selection.
    both = cluster.HasField("http_protocol_options") and cluster.HasField("http2_protocol_options")
    if both and not cluster.protocol_selection and not any(key in options for key in _HTTP_KEYS):
        yield "http2_protocol_options: goes with http_protocol_options only if protocol_selection says how to choose"
    may_be_http2 = cluster.HasField("http2_protocol_options") or any(key in options for key in _HTTP_KEYS)
    for index, health_check in enumerate(cluster.health_checks):
        if health_check.HasField("grpc_health_check") and not may_be_http2:
            yield f"health_checks[{index}].grpc_health_check: needs HTTP/2, which the cluster has no options for"


def _type(cluster: Any) -> Iterator[str]:
    kind = Cluster.DiscoveryType.Name(cluster.type) if cluster.type in Cluster.DiscoveryType.values() else ""
    # What goes with a type comes first, endpoints last: which addresses they may have depends on the type.
    if cluster.type == Cluster.EDS:
        if not cluster.eds_cluster_config.eds_config.WhichOneof("config_source_specifier"):
            yield "eds_cluster_config.eds_config: is missing; a cluster of type EDS needs it"
    elif cluster.HasField("eds_cluster_config"):
        yield f"eds_cluster_config: is for clusters of type EDS, not {kind}"
    if (cluster.type == Cluster.ORIGINAL_DST) != (cluster.lb_policy == Cluster.CLUSTER_PROVIDED):
        yield "lb_policy: CLUSTER_PROVIDED goes with the type ORIGINAL_DST, and only with it"
    hashing = cluster.common_lb_config.consistent_hashing_lb_config
    if cluster.type != Cluster.STRICT_DNS and hashing.use_hostname_for_hashing:
        yield f"common_lb_config.consistent_hashing_lb_config.use_hostname_for_hashing: goes not with the type {kind}"
    if cluster.type == Cluster.ORIGINAL_DST and cluster.HasField("load_assignment"):
        yield "load_assignment: a cluster of type ORIGINAL_DST has none"
    if cluster.type != Cluster.EDS:
        for number, locality in enumerate(cluster.load_assignment.endpoints):
            if locality.HasField("leds_cluster_locality_config"):
                yield f"load_assignment.endpoints[{number}].leds_cluster_locality_config: is for clusters of type EDS"
    if cluster.type in (Cluster.STATIC, Cluster.STRICT_DNS, Cluster.LOGICAL_DNS):
        yield from _endpoints(cluster, kind)


def _endpoints(cluster: Any, kind: str) -> Iterator[str]:
    localities = cluster.load_assignment.endpoints
    if cluster.type == Cluster.LOGICAL_DNS and [len(locality.lb_endpoints) for locality in localities] != [1]:
        yield "load_assignment: a cluster of type LOGICAL_DNS has exactly one endpoint"
    for number, locality in enumerate(localities):
        for index, member in enumerate(locality.lb_endpoints):
            path = f"load_assignment.endpoints[{number}].lb_endpoints[{index}].endpoint.address"
            if member.WhichOneof("host_identifier") == "endpoint_name":
                continue
            address = member.endpoint.address
            host = address.socket_address
            if not address.WhichOneof("address"):
                yield f"{path}: is missing"
            elif not address.HasField("socket_address"):
                continue
            elif cluster.type != Cluster.STATIC and host.resolver_name:
                yield f"{path}.socket_address.resolver_name: does not go with the type {kind}"
            elif cluster.type == Cluster.STATIC and not host.resolver_name:
                yield from bound_address(path, address)


def _load_balancing(cluster: Any) -> Iterator[str]:
    # With load_balancing_policy Envoy reads none of the older fields below, so none of their faults counts.
    if cluster.HasField("load_balancing_policy"):
        common = cluster.common_lb_config
        if any(common.HasField(name) for name in _LOCAL_LB):
            yield f"load_balancing_policy: does not go with {', '.join(_LOCAL_LB)} of common_lb_config"
        given = (p for p in cluster.load_balancing_policy.policies if p.HasField("typed_extension_config"))
        policies = [extension_type(policy.typed_extension_config) for policy in given]
        if all(is_misplaced(name, ("envoy.extensions.load_balancing_policies",)) for name in policies):
            yield "load_balancing_policy.policies: there is none"
        return
    if cluster.HasField("original_dst_lb_config"):
        config = cluster.original_dst_lb_config
        if config.http_header_name and not config.use_http_header:
            yield "original_dst_lb_config.http_header_name: needs use_http_header"
    if cluster.lb_subset_config.locality_weight_aware and not cluster.common_lb_config.HasField(_LOCAL_LB[1]):
        yield f"lb_subset_config.locality_weight_aware: needs {_LOCAL_LB[1]} in common_lb_config"
    if cluster.lb_policy == Cluster.LOAD_BALANCING_POLICY_CONFIG:
        yield "load_balancing_policy: is missing; lb_policy refers to it"
    if cluster.HasField("lb_subset_config") and cluster.lb_policy == Cluster.CLUSTER_PROVIDED:
        yield "lb_subset_config: does not go with CLUSTER_PROVIDED"
    if cluster.lb_policy == Cluster.MAGLEV and cluster.maglev_lb_config.HasField("table_size"):
        size = cluster.maglev_lb_config.table_size.value
        if size <= _MAX_TABLE and not _is_prime(size):
            yield f"maglev_lb_config.table_size: {size} is not a prime number"


_LOCAL_LB = ("zone_aware_lb_config", "locality_weighted_lb_config", "consistent_hashing_lb_config")


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def _subset(selector: Any) -> Iterator[str]:
    if selector.fallback_policy != selector.KEYS_SUBSET:
        if selector.fallback_keys_subset:
            yield "fallback_keys_subset: goes only with the fallback_policy KEYS_SUBSET"
        return
    if not selector.fallback_keys_subset or not set(selector.fallback_keys_subset) < set(selector.keys):
        yield "fallback_keys_subset: has to be a part of keys"


def _ring(config: Any) -> Iterator[str]:
    most = config.maximum_ring_size.value if config.HasField("maximum_ring_size") else _MAX_RING
    if config.HasField("minimum_ring_size") and config.minimum_ring_size.value > most:
        yield "minimum_ring_size: is more than maximum_ring_size"


def _http_health_check(health_check: Any) -> Iterator[str]:
    for name in ("expected_statuses", "retriable_statuses"):
        for index, statuses in enumerate(getattr(health_check, name)):
            if statuses.start >= statuses.end:
                yield f"{name}[{index}].end: has to be more than start"


def _payload(payload: Any) -> Iterator[str]:
    if payload.WhichOneof("payload") != "text":
        return
    try:
        bytes.fromhex(payload.text)
    except ValueError:
        yield f"text: {payload.text[:100]!r} is not in hexadecimal digits"


_CLUSTER = "envoy.config.cluster.v3"

RULES: Mapping[str, Rule] = {
    f"{_CLUSTER}.Cluster": _cluster,
    f"{_CLUSTER}.Cluster.RingHashLbConfig": _ring,
    f"{_CLUSTER}.Cluster.RefreshRate": not_less("max_interval", "base_interval"),
    f"{_CLUSTER}.OutlierDetection": not_less("max_ejection_time", "base_ejection_time", _BASE_EJECTION),
    "envoy.config.core.v3.BindConfig": _bind,
    f"{_CLUSTER}.Cluster.LbSubsetConfig.LbSubsetSelector": _subset,
    "envoy.config.core.v3.HealthCheck.Payload": _payload,
    "envoy.config.core.v3.HealthCheck.HttpHealthCheck": _http_health_check,
}
