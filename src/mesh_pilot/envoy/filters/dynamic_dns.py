"""Dynamic DNS: resolves a request's host before it is sent to the cluster of a service with resolution DYNAMIC_DNS.

The filter is only there if the namespace can see such a service, or undeclared hosts are resolved
(ALLOW_ANY_DYNAMIC_DNS); it ignores requests to other clusters.
"""

from __future__ import annotations

from envoy.extensions.filters.http.dynamic_forward_proxy.v3 import dynamic_forward_proxy_pb2
from google.protobuf import any_pb2

from mesh_pilot.envoy.clusters.dns import dns_cache
from mesh_pilot.envoy.core.protobuf import any_of
from mesh_pilot.envoy.filters.translator import FilterTranslator
from mesh_pilot.mesh.policies.context import PolicyContext, TrafficSide
from mesh_pilot.mesh.reach.unknown_hosts import resolves_unknown_hosts
from mesh_pilot.mesh.reach.visibility import any_dynamic
from mesh_pilot.mesh.settings.mesh_defaults import cluster_defaults
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View


def _hcm(view: View, context: PolicyContext, protocol: Protocol) -> any_pb2.Any | None:
    undeclared = context.side is TrafficSide.OUTBOUND and resolves_unknown_hosts(view)
    if context.side is TrafficSide.INBOUND or not (undeclared or any_dynamic(view, context.namespace)):
        return None
    cache = dns_cache(cluster_defaults(view))
    return any_of(dynamic_forward_proxy_pb2.FilterConfig(dns_cache_config=cache))


DYNAMIC_DNS = FilterTranslator(
    name="envoy.filters.http.dynamic_forward_proxy", config=dynamic_forward_proxy_pb2.FilterConfig, hcm=_hcm
)
