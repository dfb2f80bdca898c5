"""Envoy's HTTP connection manager: how HTTP is read, which filters it passes, and where its routes come from.

Everything but the routes is the same for all listeners of a context and protocol: it is encoded once and the routes
are added to it. Rules: Envoy's HttpConnectionManager reference; what Pilot sets.
"""

from __future__ import annotations

import attrs
from envoy.config.core.v3 import protocol_pb2
from envoy.config.listener.v3 import listener_components_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager as Manager,
)
from envoy.extensions.request_id.uuid.v3 import uuid_pb2
from google.protobuf import any_pb2, duration_pb2

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.envoy.core.pieces import optional_piece
from mesh_pilot.envoy.core.protobuf import ads, any_of, boolean, encode
from mesh_pilot.envoy.filters import http_filters
from mesh_pilot.envoy.listeners.hcm_settings import FORWARD, apply_headers, apply_limits
from mesh_pilot.envoy.telemetry.access_logs import access_logs
from mesh_pilot.envoy.telemetry.tracing import NO_TRACING, tracing
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.policies import PolicyContext, TrafficSide
from mesh_pilot.mesh.proxy.proxy_config import connections, headers, proxy_settings
from mesh_pilot.model.resource import PREFIX
from mesh_pilot.model.service import Protocol
from mesh_pilot.protowire import field
from mesh_pilot.world.view import View

Normalization = mesh_api.MeshConfigProxyPathNormalizationNormalizationType

NAME = "envoy.filters.network.http_connection_manager"
SERVER_NAME = "istio-envoy"
UPGRADES = ("websocket",)

_ROUTE_CONFIG_FIELD = Manager.ROUTE_CONFIG_FIELD_NUMBER
_ACCESS_LOG_FIELD = Manager.ACCESS_LOG_FIELD_NUMBER


@attrs.frozen(cache_hash=True)
class HttpManager:
    """One HTTP connection manager. It has either the name of a route table or its routes inline."""

    context: PolicyContext
    stat_prefix: str
    route_name: str = ""
    """Name of a RouteConfiguration to fetch by RDS."""
    routes: bytes = b""
    """An encoded RouteConfiguration."""
    protocol: Protocol = Protocol.HTTP
    """What the port speaks: decides about gRPC's filters."""
    forward_proxy: bool = False
    """Clients use it as their HTTP proxy: requests name whole URLs."""


def http_manager(view: View, manager: HttpManager) -> listener_components_pb2.Filter:
    """The network filter."""
    own = Manager(stat_prefix=manager.stat_prefix)
    if manager.route_name:
        own.rds.CopyFrom(hcm_pb2.Rds(config_source=ads(), route_config_name=manager.route_name))
    body = _common(view, manager.context, manager.protocol, manager.forward_proxy) + encode(own)
    if manager.routes:
        body += field(_ROUTE_CONFIG_FIELD, manager.routes)
    return listener_components_pb2.Filter(
        name=NAME, typed_config=any_pb2.Any(type_url=PREFIX + Manager.DESCRIPTOR.full_name, value=body)
    )


@derived
def _common(view: View, context: PolicyContext, protocol: Protocol, forward_proxy: bool) -> bytes:
    """What does not depend on the routes, encoded."""
    manager = Manager(
        use_remote_address=boolean(context.side is TrafficSide.GATEWAY),
        stream_idle_timeout=duration_pb2.Duration(),
        upgrade_configs=[Manager.UpgradeConfig(upgrade_type=u) for u in UPGRADES],
        http_filters=http_filters(view, context, protocol),
    )
    _normalize_paths(manager, _path_normalization(view))
    if context.side is not TrafficSide.OUTBOUND:
        manager.server_name = SERVER_NAME
        _tell_of_client(manager, view, context)
    if context.http10 or forward_proxy:
        options = protocol_pb2.Http1ProtocolOptions(accept_http_10=context.http10)
        if forward_proxy:
            options.allow_absolute_url.CopyFrom(boolean(True))
        manager.http_protocol_options.CopyFrom(options)
    apply_headers(manager, headers(view, context.settings), outbound=context.side is TrafficSide.OUTBOUND)
    apply_limits(manager, connections(view, context.settings))
    traced = NO_TRACING
    with optional_piece("tracing", namespace=context.namespace):
        traced = tracing(view, context)
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


def _tell_of_client(manager: Manager, view: View, context: PolicyContext) -> None:
    """What the server behind is told of the client and its certificate."""
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
def _topology(view: View, own: str) -> tuple[int, int]:
    """How many proxies stand before a gateway, and what it does with the certificate details that they send."""
    topology = proxy_settings(view, own).gateway_topology
    if topology is None:
        return (0, Manager.SANITIZE_SET)
    forward = FORWARD.get(topology.forward_client_cert_details, Manager.SANITIZE_SET)
    return (topology.num_trusted_proxies, forward)
