"""The virtual host at the end of a sidecar's tables: what becomes of requests to hosts that nobody declared."""

from __future__ import annotations

from envoy.config.route.v3 import route_components_pb2 as rc

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfigOutboundTrafficPolicyMode as MeshMode
from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.core.protobuf import encode, seconds
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.names import PASSTHROUGH, outbound
from mesh_pilot.mesh.proxy.proxy_config import counts_attempts
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.world import View

ALLOW_ANY = "allow_any"
BLOCK_ALL = "block_all"
BAD_GATEWAY = 502


@derived
def catch_all(view: View, sidecar: ConfigKey | None) -> bytes:
    """Sends on to where the client was going (or the egress proxy), or answers 502, as the outbound policy says."""
    cluster = unknown_destination(view, sidecar)
    name = ALLOW_ANY if cluster else BLOCK_ALL
    count = counts_attempts(view, "")
    host = rc.VirtualHost(name=name, domains=["*"], include_request_attempt_count=count)
    route = host.routes.add(name=name, match=rc.RouteMatch(prefix="/"))
    if cluster:
        route.route.cluster = cluster
        route.route.timeout.CopyFrom(seconds(0))
        route.route.max_stream_duration.grpc_timeout_header_max.CopyFrom(seconds(0))
    else:
        route.direct_response.status = BAD_GATEWAY
    return encode(host)


@derived
def unknown_destination(view: View, sidecar: ConfigKey | None) -> str:
    """The cluster for traffic to undeclared hosts; empty where the policy is REGISTRY_ONLY."""
    config = view.config(sidecar) if sidecar is not None else None
    policy = config.spec.outbound_traffic_policy if config is not None else None
    if config is None or policy is None:
        mesh = view.mesh().outbound_traffic_policy
        return "" if mesh is not None and mesh.mode is MeshMode.REGISTRY_ONLY else PASSTHROUGH
    if policy.mode is not api.OutboundTrafficPolicyMode.ALLOW_ANY:
        return ""
    proxy = policy.egress_proxy
    if proxy is None:
        return PASSTHROUGH
    port = proxy.port.number if proxy.port is not None else 0
    return outbound(view.full_host(proxy.host, config.namespace), port, proxy.subset)
