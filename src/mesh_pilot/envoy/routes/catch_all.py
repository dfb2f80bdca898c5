"""The virtual host at the end of a sidecar's tables: what becomes of requests to hosts that nobody declared."""

from __future__ import annotations

from envoy.config.route.v3 import route_components_pb2 as rc

from mesh_pilot.envoy.core.protobuf import encode, seconds
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.proxy.proxy_config import counts_attempts
from mesh_pilot.mesh.sidecar_scope import unknown_destination
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
