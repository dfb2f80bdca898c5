"""What operators set of all HTTP connection managers of a proxy: headers that it adds or leaves, and limits.

Rules: Istio's ProxyConfig, ``proxyHeaders`` and ``connectionSettings``; Envoy's HttpConnectionManager reference.
"""

from __future__ import annotations

from datetime import timedelta

from envoy.config.core.v3 import protocol_pb2
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager as Manager,
)
from google.protobuf import duration_pb2

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.envoy.core.protobuf import boolean, duration, preserve_case, uint32
from mesh_pilot.mesh.proxy.proxy_config import Connections, Headers

Forward = mesh_api.ForwardClientCertDetails
Underscores = mesh_api.ProxyConfigConnectionSettingsHeadersWithUnderscoresAction
Slashes = mesh_api.ProxyConfigConnectionSettingsPathWithEscapedSlashesAction


FORWARD = {
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


def apply_headers(manager: Manager, said: Headers, *, outbound: bool) -> None:
    """Set what is said of headers; what servers are told of clients is not for ``outbound``."""
    if said.server is not None and said.server.disabled:
        manager.server_name = ""
        manager.server_header_transformation = Manager.PASS_THROUGH
    elif said.server is not None and said.server.value:
        manager.server_name = said.server.value
    if said.request_id is not None and said.request_id.disabled:
        manager.generate_request_id.CopyFrom(boolean(False))
    if said.preserve_http1_header_case:
        manager.http_protocol_options.header_key_format.CopyFrom(preserve_case())
    if said.x_forwarded_port is not None and said.x_forwarded_port.enabled:
        manager.append_x_forwarded_port = True
    if outbound:
        return
    if said.forwarded_client_cert in FORWARD:
        manager.forward_client_cert_details = FORWARD[said.forwarded_client_cert]
    details = said.set_current_client_cert_details
    if details is not None:
        set_details = manager.set_current_client_cert_details
        if details.subject is not None:
            set_details.subject.CopyFrom(boolean(details.subject))
        for name in ("cert", "chain", "dns", "uri"):
            value: bool | None = getattr(details, name)
            if value is not None:
                setattr(set_details, name, value)


def apply_limits(manager: Manager, said: Connections) -> None:
    """Set what is said of connections and requests."""
    common = manager.common_http_protocol_options
    limits: tuple[tuple[duration_pb2.Duration, timedelta | None], ...] = (
        (common.idle_timeout, said.http_idle_timeout),
        (common.max_connection_duration, said.http_max_connection_duration),
        (common.max_stream_duration, said.http_max_stream_duration),
        (manager.drain_timeout, said.http_drain_timeout),
        (manager.request_timeout, said.http_request_timeout),
        (manager.request_headers_timeout, said.http_request_headers_timeout),
        (manager.stream_idle_timeout, said.http_stream_idle_timeout),
    )
    for field, value in limits:
        if value is not None:
            field.CopyFrom(duration(value))
    if said.http_headers_with_underscores_action in _UNDERSCORES:
        common.headers_with_underscores_action = _UNDERSCORES[said.http_headers_with_underscores_action]
    for number, name in (
        (said.http_max_concurrent_streams, "max_concurrent_streams"),
        (said.http2_initial_stream_window_size, "initial_stream_window_size"),
        (said.http2_initial_connection_window_size, "initial_connection_window_size"),
    ):
        if number:
            getattr(manager.http2_protocol_options, name).CopyFrom(uint32(number))
    if said.http_merge_slashes is not None:
        manager.merge_slashes = said.http_merge_slashes
    if said.http_path_with_escaped_slashes_action in _SLASHES:
        manager.path_with_escaped_slashes_action = _SLASHES[said.http_path_with_escaped_slashes_action]
