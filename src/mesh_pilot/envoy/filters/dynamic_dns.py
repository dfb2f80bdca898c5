"""Dynamic DNS: before a cluster of a service with resolution DYNAMIC_DNS, the host of a request is resolved.

Only where such a service may be reached; for requests to other clusters the filter does nothing.
"""

from __future__ import annotations

from envoy.extensions.filters.http.dynamic_forward_proxy.v3 import dynamic_forward_proxy_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2

from mesh_pilot.envoy.clusters.dns import dns_cache
from mesh_pilot.envoy.filters.common import http_filter
from mesh_pilot.mesh.mesh_defaults import cluster_defaults
from mesh_pilot.mesh.policies import PolicyContext, TrafficSide
from mesh_pilot.mesh.visibility import any_dynamic
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View

NAME = "envoy.filters.http.dynamic_forward_proxy"


def dynamic_dns(view: View, context: PolicyContext, protocol: Protocol) -> hcm_pb2.HttpFilter | None:
    if context.side is TrafficSide.INBOUND or not any_dynamic(view, context.namespace):
        return None
    cache = dns_cache(cluster_defaults(view))
    return http_filter(NAME, dynamic_forward_proxy_pb2.FilterConfig(dns_cache_config=cache))
