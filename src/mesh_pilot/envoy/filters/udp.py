"""Envoy's UDP proxy, a listener filter: sends the datagrams of a client to an endpoint for as long as it has a session.

Rules: Envoy's UdpProxyConfig reference and its page "UDP proxy". The proxy has no weights. So the cluster of a
session is chosen by a hash of the client's port, which a client has for itself: the same client keeps the cluster when
Envoy forgets the session, and a change of weights moves no more clients than it has to.
"""

from __future__ import annotations

import zlib

from envoy.config.listener.v3.listener_components_pb2 import ListenerFilter
from envoy.extensions.filters.udp.udp_proxy.v3 import route_pb2
from envoy.extensions.filters.udp.udp_proxy.v3.udp_proxy_pb2 import UdpProxyConfig
from envoy.extensions.matching.common_inputs.network.v3 import network_inputs_pb2
from envoy.extensions.matching.input_matchers.runtime_fraction.v3 import runtime_fraction_pb2
from envoy.type.v3 import percent_pb2
from google.protobuf import message
from xds.core.v3 import extension_pb2 as xds_extension_pb2
from xds.type.matcher.v3 import matcher_pb2

from mesh_pilot.base.protowire import field
from mesh_pilot.envoy.core.protobuf import any_of, any_of_encoded, duration, encode
from mesh_pilot.envoy.telemetry.access_logs import access_logs
from mesh_pilot.mesh.policies.context import PolicyContext
from mesh_pilot.mesh.routing.l4 import TcpTarget
from mesh_pilot.world.view import View

UDP_PROXY = "envoy.filters.udp_listener.udp_proxy"

_MILLION = 1_000_000
_ACCESS_LOG_FIELD = UdpProxyConfig.ACCESS_LOG_FIELD_NUMBER


def udp_proxy(view: View, context: PolicyContext, target: TcpTarget) -> ListenerFilter:
    """The UDP proxy to the clusters of a target; sessions are in the access log when they end."""
    proxy = UdpProxyConfig(stat_prefix=target.stat_prefix, matcher=_chosen_cluster(target))
    if target.hash_source_ip:
        proxy.hash_policies.add(source_ip=True)
    if target.idle_timeout:
        proxy.idle_timeout.CopyFrom(duration(target.idle_timeout))
    logs = access_logs(view, context, False)
    body = encode(proxy) + b"".join(field(_ACCESS_LOG_FIELD, log) for log in logs)
    return ListenerFilter(name=UDP_PROXY, typed_config=any_of_encoded(UdpProxyConfig, body))


def _chosen_cluster(target: TcpTarget) -> matcher_pb2.Matcher:
    """The clusters by weight: each takes its part of what those before it have left."""
    *others, (last, _) = target.clusters
    matcher = matcher_pb2.Matcher(on_no_match=_to(last))
    left = sum(weight for _, weight in target.clusters)
    for cluster, weight in others:
        choice = matcher.matcher_list.matchers.add(on_match=_to(cluster))
        single = choice.predicate.single_predicate
        single.input.CopyFrom(_client(by_address=target.hash_source_ip))
        fraction = runtime_fraction_pb2.RuntimeFraction(seed=zlib.crc32(cluster.encode()))
        fraction.runtime_fraction.default_value.CopyFrom(
            percent_pb2.FractionalPercent(
                numerator=round(weight * _MILLION / left), denominator=percent_pb2.FractionalPercent.MILLION
            )
        )
        single.custom_match.CopyFrom(_extension("envoy.matching.matchers.runtime_fraction", fraction))
        left -= weight
    return matcher


def _client(*, by_address: bool) -> xds_extension_pb2.TypedExtensionConfig:
    """The part of a client's address that chooses: with hashing by address all of its ports go the same way."""
    if by_address:
        return _extension("envoy.matching.inputs.source_ip", network_inputs_pb2.SourceIPInput())
    return _extension("envoy.matching.inputs.source_port", network_inputs_pb2.SourcePortInput())


def _to(cluster: str) -> matcher_pb2.Matcher.OnMatch:
    return matcher_pb2.Matcher.OnMatch(action=_extension("route", route_pb2.Route(cluster=cluster)))


def _extension(name: str, config: message.Message) -> xds_extension_pb2.TypedExtensionConfig:
    return xds_extension_pb2.TypedExtensionConfig(name=name, typed_config=any_of(config))
