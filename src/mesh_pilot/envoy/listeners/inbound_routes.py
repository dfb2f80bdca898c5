"""Routes of inbound HTTP: everything that comes for a port goes to the application's own port.

They are inline in the listener, because nothing of them can change without it.
"""

from __future__ import annotations

from envoy.config.route.v3 import route_components_pb2, route_pb2
from google.protobuf import duration_pb2

from mesh_pilot.envoy.core.protobuf import boolean, encode

NO_TIMEOUT = duration_pb2.Duration()


def inbound_routes(cluster: str, host: str, service_port: int) -> bytes:
    """A RouteConfiguration, encoded. Time limits are the client side's matter: there are none here."""
    action = route_components_pb2.RouteAction(
        cluster=cluster,
        timeout=NO_TIMEOUT,
        max_stream_duration=route_components_pb2.RouteAction.MaxStreamDuration(
            max_stream_duration=NO_TIMEOUT, grpc_timeout_header_max=NO_TIMEOUT
        ),
    )
    route = route_components_pb2.Route(
        name="default",
        match=route_components_pb2.RouteMatch(prefix="/"),
        route=action,
        decorator=route_components_pb2.Decorator(operation=f"{host}:{service_port}/*"),
    )
    virtual_host = route_components_pb2.VirtualHost(name=f"inbound|http|{service_port}", domains=["*"], routes=[route])
    return encode(
        route_pb2.RouteConfiguration(name=cluster, virtual_hosts=[virtual_host], validate_clusters=boolean(False))
    )
