"""Clusters whose endpoints Envoy resolves by DNS: they contain their endpoints, which are names.

An Envoy that starts waits until each of its names is resolved, so that the first request finds endpoints. While name
servers are away it would wait for a minute and serve no request: so it gives up after ``_QUERY_TRIES`` of
``_QUERY_TIMEOUT`` for each name server, starts without those endpoints, and asks again soon. (Without waiting,
``wait_for_warm_on_init: false``, the first requests would get 503 though name servers answer.)
"""

from __future__ import annotations

from datetime import timedelta

import attrs
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.extensions.clusters.dynamic_forward_proxy.v3 import cluster_pb2 as dynamic_pb2
from envoy.extensions.common.dynamic_forward_proxy.v3.dns_cache_pb2 import DnsCacheConfig
from envoy.extensions.network.dns_resolver.cares.v3.cares_dns_resolver_pb2 import CaresDnsResolverConfig

from mesh_pilot.envoy.core.protobuf import any_of, duration, uint32, uint64
from mesh_pilot.envoy.endpoints.assignments import encode_assignment
from mesh_pilot.envoy.endpoints.viewpoints import EndpointViewpoint, cluster_tls_mode
from mesh_pilot.mesh.clusters.destination_rules import subset_labels
from mesh_pilot.mesh.clusters.locality import Preference
from mesh_pilot.mesh.clusters.upstreams import Upstream
from mesh_pilot.mesh.settings.mesh_defaults import DNS_REFRESH_RATE, ClusterDefaults, cluster_defaults
from mesh_pilot.model.service import Port
from mesh_pilot.world.view import View

DNS_JITTER = timedelta(milliseconds=100)
"""Spreads the resolutions of a fleet that started together."""

DYNAMIC_CLUSTER = "envoy.clusters.dynamic_forward_proxy"
DYNAMIC_CACHE = "dynamic"
"""Name of the DNS cache that all dynamic clusters, and the filters before them, share, at the default refresh rate."""


_RESOLVER = "envoy.network.dns_resolver.cares"
_QUERY_TIMEOUT = timedelta(seconds=1)
_QUERY_TRIES = 2
"""Envoy's resolver waits twice as long for the second, so 3 s for one name server."""
_UDP_MAX_QUERIES = 100
"""Istio's: a socket that is used forever is one flow for a firewall or load balancer."""
_RETRY_AFTER, _RETRY_AT_MOST = timedelta(seconds=2), timedelta(seconds=10)
"""When a name that could not be resolved is asked for again. Envoy would wait for ``dns_refresh_rate``."""


@attrs.frozen(cache_hash=True)
class DnsClient:
    """The parts of a client that DNS clusters depend on."""

    preference: Preference
    """The preference between localities."""
    ipv4: bool
    ipv6: bool
    own_resolver: bool = False
    """True if its bootstrap says how names are resolved."""


def apply_dns(
    view: View, message: Cluster, upstream: Upstream, port: Port, dns_client: DnsClient, *, logical: bool
) -> None:
    """Set type and endpoints of a DNS cluster. Without endpoints it still exists, so that routes find their cluster."""
    defaults = cluster_defaults(view)
    labels = subset_labels(view, upstream.rule, upstream.subset) or frozenset()
    viewpoint = EndpointViewpoint(preference=dns_client.preference)
    if upstream.by_sni:
        mode = cluster_tls_mode(view, upstream.rule, upstream.port, upstream.subset, by_sni=True)
        viewpoint = attrs.evolve(viewpoint, tls_mode=mode, mesh_tls_only=True)
    encoded = encode_assignment(view, message.name, upstream.service, port.name, labels, viewpoint)
    message.load_assignment.MergeFromString(encoded)
    count = sum(len(locality.lb_endpoints) for locality in message.load_assignment.endpoints)
    # Envoy wants exactly one endpoint in a LOGICAL_DNS cluster.
    message.type = Cluster.LOGICAL_DNS if logical and count == 1 else Cluster.STRICT_DNS
    # With both families Envoy connects to whichever address of a name answers first (RFC 8305).
    one_family = Cluster.V4_ONLY if dns_client.ipv4 else Cluster.V6_ONLY
    message.dns_lookup_family = Cluster.ALL if dns_client.ipv4 and dns_client.ipv6 else one_family
    message.dns_refresh_rate.CopyFrom(duration(defaults.dns_refresh_rate))
    message.respect_dns_ttl = True
    message.dns_jitter.CopyFrom(duration(DNS_JITTER))
    message.dns_failure_refresh_rate.base_interval.CopyFrom(duration(_RETRY_AFTER))
    message.dns_failure_refresh_rate.max_interval.CopyFrom(duration(_RETRY_AT_MOST))
    if not dns_client.own_resolver:
        resolver = CaresDnsResolverConfig(
            query_timeout_seconds=uint64(int(_QUERY_TIMEOUT.total_seconds())),
            query_tries=uint32(_QUERY_TRIES),
            udp_max_queries=uint32(_UDP_MAX_QUERIES),
        )
        message.typed_dns_resolver_config.name = _RESOLVER
        message.typed_dns_resolver_config.typed_config.CopyFrom(any_of(resolver))


def apply_dynamic_dns(message: Cluster, defaults: ClusterDefaults, *, verified: bool = True) -> None:
    """Make a cluster resolve the host of each request, which a filter before it determines.

    ``verified``: its TLS, if any, asks for that host and verifies it (``verify_requested_host``).
    """
    config = dynamic_pb2.ClusterConfig(
        dns_cache_config=dns_cache(defaults), allow_insecure_cluster_options=not verified
    )
    message.cluster_type.name = DYNAMIC_CLUSTER
    message.cluster_type.typed_config.CopyFrom(any_of(config))
    message.lb_policy = Cluster.CLUSTER_PROVIDED


def dns_cache(defaults: ClusterDefaults) -> DnsCacheConfig:
    """The DNS cache. Envoy wants the same definition in clusters and in the filters before them.

    Envoy never changes a cache, so one with another refresh rate has another name.
    """
    rate = defaults.dns_refresh_rate
    return DnsCacheConfig(
        name=DYNAMIC_CACHE if rate == DNS_REFRESH_RATE else f"{DYNAMIC_CACHE}_{rate // timedelta(milliseconds=1)}ms",
        dns_lookup_family=Cluster.V4_PREFERRED,
        dns_refresh_rate=duration(rate),
    )
