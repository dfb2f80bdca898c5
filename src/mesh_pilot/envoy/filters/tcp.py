"""Network filters: the TCP proxy to one cluster or several by weight, and the filters in front of it.

Rules: Envoy's TcpProxy and MongoProxy references; Istio's DestinationRule reference for hashing and tunnels.
"""

from __future__ import annotations

from envoy.config.listener.v3.listener_components_pb2 import Filter
from envoy.extensions.filters.network.mongo_proxy.v3 import mongo_proxy_pb2
from envoy.extensions.filters.network.sni_dynamic_forward_proxy.v3 import (
    sni_dynamic_forward_proxy_pb2 as sni_dynamic_pb2,
)
from envoy.extensions.filters.network.tcp_proxy.v3.tcp_proxy_pb2 import TcpProxy
from envoy.type.v3 import hash_policy_pb2

from mesh_pilot.base.protowire import field
from mesh_pilot.envoy.clusters.dns import dns_cache
from mesh_pilot.envoy.core.protobuf import any_of, any_of_encoded, duration, encode
from mesh_pilot.envoy.filters.ext_authz import custom_network_filters
from mesh_pilot.envoy.filters.extensions import network_extensions
from mesh_pilot.envoy.filters.local_rate_limit import connection_limits
from mesh_pilot.envoy.filters.rbac.policies import network_rbac_filters
from mesh_pilot.envoy.filters.rbac.roles import network_role_filters
from mesh_pilot.envoy.telemetry.access_logs import access_logs
from mesh_pilot.envoy.telemetry.metrics import OUTSIDE, InboundSide, metric_logs
from mesh_pilot.mesh.policies.context import PolicyContext
from mesh_pilot.mesh.policies.extensions import ExtensionPhase, extensions_at
from mesh_pilot.mesh.routing.l4 import TcpTarget
from mesh_pilot.mesh.settings.mesh_defaults import cluster_defaults
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View

TCP_PROXY = "envoy.filters.network.tcp_proxy"
SNI_DYNAMIC_DNS = "envoy.filters.network.sni_dynamic_forward_proxy"
MONGO_PROXY = "envoy.filters.network.mongo_proxy"

_ACCESS_LOG_FIELD = TcpProxy.ACCESS_LOG_FIELD_NUMBER


def tcp_filters(
    view: View,
    context: PolicyContext,
    target: TcpTarget,
    protocol: Protocol = Protocol.TCP,
    served: InboundSide = OUTSIDE,
    port: int = 0,
) -> list[Filter]:
    """The network filters that carry a connection to its target: limits, authorization, those of the protocol, TCP
    proxy.

    ``port``: that of the connection, for extensions; 0: any that nothing declares.
    """
    filters = [tcp_proxy(view, context, target, served)]
    if target.sni_port and protocol.is_tls:
        cache = dns_cache(cluster_defaults(view))
        dynamic = sni_dynamic_pb2.FilterConfig(dns_cache_config=cache, port_value=target.sni_port)
        filters.insert(0, Filter(name=SNI_DYNAMIC_DNS, typed_config=any_of(dynamic)))
    if protocol is Protocol.MONGO:
        config = mongo_proxy_pb2.MongoProxy(stat_prefix=target.stat_prefix)
        filters.insert(0, Filter(name=MONGO_PROXY, typed_config=any_of(config)))
    roles = network_role_filters(view, context, protocol)
    extensions = extensions_at(view, context, port)
    return [
        *connection_limits(view, context),
        *custom_network_filters(view, context),
        *network_extensions(extensions, ExtensionPhase.AUTHN, ExtensionPhase.AUTHZ),
        *network_rbac_filters(view, context),
        *roles,
        *network_extensions(extensions, ExtensionPhase.STATS, ExtensionPhase.LAST),
        *filters,
    ]


def tcp_proxy(view: View, context: PolicyContext | None, target: TcpTarget, served: InboundSide = OUTSIDE) -> Filter:
    """The TCP proxy filter; without a context it has no access log."""
    proxy = TcpProxy(stat_prefix=target.stat_prefix)
    if len(target.clusters) == 1:
        proxy.cluster = target.clusters[0][0]
    else:
        for name, weight in target.clusters:
            proxy.weighted_clusters.clusters.add(name=name, weight=weight)
    if target.hash_source_ip:
        proxy.hash_policy.append(hash_policy_pb2.HashPolicy(source_ip=hash_policy_pb2.HashPolicy.SourceIp()))
    if target.idle_timeout is not None:
        proxy.idle_timeout.CopyFrom(duration(target.idle_timeout))
    if target.max_duration is not None:
        proxy.max_downstream_connection_duration.CopyFrom(duration(target.max_duration))
    if target.tunnel is not None:
        proxy.tunneling_config.CopyFrom(
            TcpProxy.TunnelingConfig(hostname=target.tunnel.target, use_post=target.tunnel.post)
        )
    logs: tuple[bytes, ...] = ()
    if context:
        logs = access_logs(view, context, False) + metric_logs(view, context, False, served)
    body = encode(proxy) + b"".join(field(_ACCESS_LOG_FIELD, log) for log in logs)
    return Filter(name=TCP_PROXY, typed_config=any_of_encoded(TcpProxy, body))
