"""Envoy's HTTP connection manager (HCM): options of HTTP, HTTP filters, and the route table or inline routes.

All but the routes is the same for every listener of a context and protocol: it is encoded once, and the routes are
appended. Rules: Istio's ProxyConfig (``proxyHeaders``, ``connectionSettings``, ``gatewayTopology``) and Envoy's
HttpConnectionManager reference.
"""

from __future__ import annotations

from datetime import timedelta

import attrs
from envoy.config.core.v3 import protocol_pb2
from envoy.config.listener.v3 import listener_components_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager as Manager,
)
from envoy.extensions.request_id.uuid.v3 import uuid_pb2
from google.protobuf import duration_pb2

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.base.protowire import field
from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import (
    ads,
    any_of,
    any_of_encoded,
    boolean,
    duration,
    encode,
    optional,
    preserve_case,
    uint32,
)
from mesh_pilot.envoy.filters import http_filters
from mesh_pilot.envoy.filters.extensions import IN_ORDER, network_extensions
from mesh_pilot.envoy.filters.local_rate_limit import connection_limits
from mesh_pilot.envoy.filters.rbac.matchers import subnet
from mesh_pilot.envoy.telemetry.access_logs import access_logs
from mesh_pilot.envoy.telemetry.metrics import OUTSIDE, InboundSide, metric_logs
from mesh_pilot.envoy.telemetry.tracing import NO_TRACING, tracing_config
from mesh_pilot.mesh.policies.context import PolicyContext, TrafficSide
from mesh_pilot.mesh.policies.extensions import Extensions, extensions_at
from mesh_pilot.mesh.proxy.proxy_config import Connections, Headers, connections, headers, proxy_settings
from mesh_pilot.mesh.settings.networks import declared_ranges
from mesh_pilot.mesh.virtual_hosts.authorizers import Authorizer
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View

Normalization = mesh_api.MeshConfigProxyPathNormalizationNormalizationType
Forward = mesh_api.ForwardClientCertDetails
Underscores = mesh_api.ProxyConfigConnectionSettingsHeadersWithUnderscoresAction
Slashes = mesh_api.ProxyConfigConnectionSettingsPathWithEscapedSlashesAction


_FORWARD_CLIENT_CERT = {
    Forward.SANITIZE: Manager.SANITIZE,
    Forward.FORWARD_ONLY: Manager.FORWARD_ONLY,
    Forward.APPEND_FORWARD: Manager.APPEND_FORWARD,
    Forward.SANITIZE_SET: Manager.SANITIZE_SET,
    Forward.ALWAYS_FORWARD_ONLY: Manager.ALWAYS_FORWARD_ONLY,
}
_UNDERSCORES = {
    Underscores.HEADERS_WITH_UNDERSCORES_ALLOW: protocol_pb2.HttpProtocolOptions.ALLOW,
    Underscores.HEADERS_WITH_UNDERSCORES_REJECT_REQUEST: protocol_pb2.HttpProtocolOptions.REJECT_REQUEST,
    Underscores.HEADERS_WITH_UNDERSCORES_DROP_HEADER: protocol_pb2.HttpProtocolOptions.DROP_HEADER,
}
_SLASHES = {
    Slashes.KEEP_UNCHANGED: Manager.KEEP_UNCHANGED,
    Slashes.REJECT_REQUEST: Manager.REJECT_REQUEST,
    Slashes.UNESCAPE_AND_REDIRECT: Manager.UNESCAPE_AND_REDIRECT,
    Slashes.UNESCAPE_AND_FORWARD: Manager.UNESCAPE_AND_FORWARD,
}

HTTP_CONNECTION_MANAGER = "envoy.filters.network.http_connection_manager"
SERVER_NAME = "istio-envoy"
UPGRADES = ("websocket",)

_ROUTE_CONFIG_FIELD = Manager.ROUTE_CONFIG_FIELD_NUMBER
_ACCESS_LOG_FIELD = Manager.ACCESS_LOG_FIELD_NUMBER


@attrs.frozen(cache_hash=True)
class HcmSettings:
    """The settings of one HTTP connection manager; it has either the name of a route table or inline routes."""

    context: PolicyContext
    stat_prefix: str
    route_name: str = ""
    """Name of a RouteConfiguration to fetch by RDS."""
    routes: bytes = b""
    """An encoded RouteConfiguration."""
    protocol: Protocol = Protocol.HTTP
    """The protocol of the port; decides whether gRPC's filters are added."""
    forward_proxy: bool = False
    """True if clients use it as their HTTP proxy: requests contain absolute URLs."""
    served: InboundSide = OUTSIDE
    """The inbound side that is served, for metrics."""
    port: int = 0
    """The port of its connections; 0: any that nothing declares. Extensions may be for some ports only."""
    upgraded: bool = False
    """See ``InboundPort.upgraded``."""
    authorizers: tuple[Authorizer, ...] = ()
    """The authorizers that routes of its table name."""


def http_chain(view: View, settings: HcmSettings) -> list[listener_components_pb2.Filter]:
    """The network filters of HTTP connections: limits, those of extensions, then the connection manager."""
    extensions = extensions_at(view, settings.context, settings.port)
    return [
        *connection_limits(view, settings.context),
        *network_extensions(extensions, *IN_ORDER),
        hcm_filter(view, settings, extensions),
    ]


def hcm_filter(view: View, settings: HcmSettings, extensions: Extensions = ()) -> listener_components_pb2.Filter:
    """The connection manager."""
    manager = Manager(stat_prefix=settings.stat_prefix)
    if settings.route_name:
        manager.rds.CopyFrom(hcm_pb2.Rds(config_source=ads(), route_config_name=settings.route_name))
    if settings.upgraded:
        manager.http2_protocol_options.allow_connect = True
    for_requests = tuple(extension for extension in extensions if not extension.is_network)
    body = _encoded_common(
        view, settings.context, settings.protocol, settings.forward_proxy, for_requests, settings.authorizers
    )
    body += encode(manager)
    logs = metric_logs(view, settings.context, True, settings.served)
    body += b"".join(field(_ACCESS_LOG_FIELD, log) for log in logs)
    if settings.routes:
        body += field(_ROUTE_CONFIG_FIELD, settings.routes)
    return listener_components_pb2.Filter(name=HTTP_CONNECTION_MANAGER, typed_config=any_of_encoded(Manager, body))


@derived
def _encoded_common(
    view: View,
    context: PolicyContext,
    protocol: Protocol,
    forward_proxy: bool,
    extensions: Extensions,
    authorizers: tuple[Authorizer, ...],
) -> bytes:
    """The fields that do not depend on the routes, encoded."""
    manager = Manager(
        use_remote_address=boolean(context.side is TrafficSide.GATEWAY),
        stream_idle_timeout=duration_pb2.Duration(),
        proxy_100_continue=True,
        upgrade_configs=[Manager.UpgradeConfig(upgrade_type=u) for u in UPGRADES],
        http_filters=http_filters(view, context, protocol, extensions, authorizers),
    )
    _normalize_paths(manager, _path_normalization(view))
    if context.side is not TrafficSide.OUTBOUND:
        manager.server_name = SERVER_NAME
        _forward_client_identity(manager, view, context)
    if context.http10 or forward_proxy:
        options = protocol_pb2.Http1ProtocolOptions(accept_http_10=context.http10)
        if forward_proxy:
            options.allow_absolute_url.CopyFrom(boolean(True))
        manager.http_protocol_options.CopyFrom(options)
    if context.side is TrafficSide.GATEWAY and (ranges := declared_ranges(view)):
        # Clients there may set x-envoy- headers; since Envoy 1.33 no others may.
        manager.internal_address_config.cidr_ranges.extend(map(subnet, ranges))
    _apply_headers(manager, headers(view, context.settings), outbound=context.side is TrafficSide.OUTBOUND)
    _apply_connections(manager, connections(view, context.settings))
    traced = optional(view, tracing_config.query(context), NO_TRACING)
    if traced.tracing:
        manager.tracing.MergeFromString(traced.tracing)
    request_id = uuid_pb2.UuidRequestIdConfig(use_request_id_for_trace_sampling=boolean(traced.by_request_id))
    manager.request_id_extension.typed_config.CopyFrom(any_of(request_id))
    logs = access_logs(view, context, True)
    return encode(manager) + b"".join(field(_ACCESS_LOG_FIELD, log) for log in logs)


@derived
def _path_normalization(view: View) -> Normalization:
    settings = view.mesh().path_normalization
    return settings.normalization if settings else Normalization.DEFAULT


def _normalize_paths(manager: Manager, mode: Normalization) -> None:
    manager.normalize_path.CopyFrom(boolean(mode != Normalization.NONE))
    manager.merge_slashes = mode in (Normalization.MERGE_SLASHES, Normalization.DECODE_AND_MERGE_SLASHES)
    manager.path_with_escaped_slashes_action = (
        Manager.UNESCAPE_AND_FORWARD if mode == Normalization.DECODE_AND_MERGE_SLASHES else Manager.KEEP_UNCHANGED
    )


def _forward_client_identity(manager: Manager, view: View, context: PolicyContext) -> None:
    """Set the headers that tell the upstream about the client and its certificate (XFF and XFCC)."""
    manager.set_current_client_cert_details.CopyFrom(
        Manager.SetCurrentClientCertDetails(subject=boolean(True), dns=True, uri=True)
    )
    if context.side is TrafficSide.INBOUND:
        manager.forward_client_cert_details = Manager.APPEND_FORWARD
        return
    trusted, forward = _topology(view, context.settings)
    manager.set_current_client_cert_details.cert = True
    manager.xff_num_trusted_hops = trusted
    manager.forward_client_cert_details = forward


@derived
def _topology(view: View, node_config: str) -> tuple[int, int]:
    """(number of trusted proxies before a gateway, what it does with the XFCC header that they send)."""
    topology = proxy_settings(view, node_config).gateway_topology
    if topology is None:
        return (0, Manager.SANITIZE_SET)
    forward = _FORWARD_CLIENT_CERT.get(topology.forward_client_cert_details, Manager.SANITIZE_SET)
    return (topology.num_trusted_proxies, forward)


def _apply_headers(manager: Manager, settings: Headers, *, outbound: bool) -> None:
    """Apply ``proxyHeaders``; ``outbound`` listeners send no XFCC header."""
    # Each header is set only if it is said: Envoy's own default differs from what an unset field of ours would write.
    if settings.server is not None and settings.server.disabled:
        manager.server_name = ""
        manager.server_header_transformation = Manager.PASS_THROUGH
    elif settings.server is not None and settings.server.value:
        manager.server_name = settings.server.value
    if settings.request_id is not None and settings.request_id.disabled:
        manager.generate_request_id.CopyFrom(boolean(False))
    if settings.preserve_http1_header_case:
        manager.http_protocol_options.header_key_format.CopyFrom(preserve_case())
    if settings.x_forwarded_port is not None and settings.x_forwarded_port.enabled:
        manager.append_x_forwarded_port = True
    if outbound:
        return
    if settings.forwarded_client_cert in _FORWARD_CLIENT_CERT:
        manager.forward_client_cert_details = _FORWARD_CLIENT_CERT[settings.forwarded_client_cert]
    details = settings.set_current_client_cert_details
    if details is not None:
        set_details = manager.set_current_client_cert_details
        if details.subject is not None:
            set_details.subject.CopyFrom(boolean(details.subject))
        for name in ("cert", "chain", "dns", "uri"):
            value: bool | None = getattr(details, name)
            if value is not None:
                setattr(set_details, name, value)


def _apply_connections(manager: Manager, settings: Connections) -> None:
    """Apply ``connectionSettings``."""
    common = manager.common_http_protocol_options
    limits: tuple[tuple[duration_pb2.Duration, timedelta | None], ...] = (
        (common.idle_timeout, settings.http_idle_timeout),
        (common.max_connection_duration, settings.http_max_connection_duration),
        (common.max_stream_duration, settings.http_max_stream_duration),
        (manager.drain_timeout, settings.http_drain_timeout),
        (manager.request_timeout, settings.http_request_timeout),
        (manager.request_headers_timeout, settings.http_request_headers_timeout),
        (manager.stream_idle_timeout, settings.http_stream_idle_timeout),
    )
    for target, value in limits:
        if value is not None:
            target.CopyFrom(duration(value))
    if settings.http_headers_with_underscores_action in _UNDERSCORES:
        common.headers_with_underscores_action = _UNDERSCORES[settings.http_headers_with_underscores_action]
    for number, name in (
        (settings.http_max_concurrent_streams, "max_concurrent_streams"),
        (settings.http2_initial_stream_window_size, "initial_stream_window_size"),
        (settings.http2_initial_connection_window_size, "initial_connection_window_size"),
    ):
        if number:
            getattr(manager.http2_protocol_options, name).CopyFrom(uint32(number))
    if settings.http_merge_slashes is not None:
        manager.merge_slashes = settings.http_merge_slashes
    if settings.http_path_with_escaped_slashes_action in _SLASHES:
        manager.path_with_escaped_slashes_action = _SLASHES[settings.http_path_with_escaped_slashes_action]
