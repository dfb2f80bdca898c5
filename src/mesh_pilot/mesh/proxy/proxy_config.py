"""ProxyConfig: the mesh's ``defaultConfig``, overridden by a proxy's node metadata PROXY_CONFIG.

Only the fields that affect listeners and clusters are read. The others are for the program that starts the proxy.
Rules: Istio's ProxyConfig reference; its page "Edge Proxy Configuration" for the profile EDGE.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.engine import derived
from mesh_pilot.istio.meaning.descriptors import descriptor_of
from mesh_pilot.istio.reading.decode_json import read_message
from mesh_pilot.istio.reading.mesh import overlay
from mesh_pilot.world.view import View

Connections = mesh_api.ProxyConfigConnectionSettings
Headers = mesh_api.ProxyConfigProxyHeaders

METADATA = "PROXY_CONFIG"
USED = ("tracing", "gatewayTopology", "proxyHeaders", "connectionSettings")

EDGE = Connections(
    profile=mesh_api.ProxyConfigConnectionSettingsProfile.EDGE,
    listener_per_connection_buffer_limit_bytes=32768,
    cluster_per_connection_buffer_limit_bytes=32768,
    http_idle_timeout=timedelta(hours=1),
    http_request_timeout=timedelta(minutes=5),
    http_stream_idle_timeout=timedelta(minutes=5),
    http_max_concurrent_streams=100,
    http2_initial_stream_window_size=65536,
    http2_initial_connection_window_size=1048576,
    http_request_headers_timeout=timedelta(minutes=1),
    http_headers_with_underscores_action=(
        mesh_api.ProxyConfigConnectionSettingsHeadersWithUnderscoresAction.HEADERS_WITH_UNDERSCORES_REJECT_REQUEST
    ),
    http_merge_slashes=True,
    http_path_with_escaped_slashes_action=(
        mesh_api.ProxyConfigConnectionSettingsPathWithEscapedSlashesAction.UNESCAPE_AND_REDIRECT
    ),
)
"""The defaults of the profile EDGE."""


def own_settings(value: object) -> str:
    """The fields of a node's PROXY_CONFIG (an object, or JSON text of one) that are used, as hashable JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return ""
    if not isinstance(value, Mapping):
        return ""
    used = {name: value[name] for name in USED if value.get(name)}
    return json.dumps(used, sort_keys=True) if used else ""


@derived
def proxy_settings(view: View, own: str) -> mesh_api.ProxyConfig:
    """The ProxyConfig of proxies with their ``own_settings``. Invalid fields of these are ignored."""
    base: mesh_api.ProxyConfig = view.mesh().default_config or mesh_api.ProxyConfig()
    if not own:
        return base
    data = json.loads(own)
    given = read_message(mesh_api.ProxyConfig, data, METADATA, [])
    return overlay(base, given, data) if given is not None else base


@derived
def connections(view: View, own: str) -> Connections:
    """Connection settings, with the defaults of the profile."""
    given = proxy_settings(view, own).connection_settings or Connections()
    if given.profile is not mesh_api.ProxyConfigConnectionSettingsProfile.EDGE:
        return given
    unset = Connections()
    declared = {field.python_name: getattr(given, field.python_name) for field in descriptor_of(Connections).fields}
    return replace(EDGE, **{name: value for name, value in declared.items() if value != getattr(unset, name)})


@derived
def headers(view: View, own: str) -> Headers:
    """Settings for the headers that proxies add."""
    return proxy_settings(view, own).proxy_headers or Headers()


@derived
def listener_buffer(view: View, own: str) -> int:
    """The bytes that a listener may buffer for a connection; 0: Envoy's default."""
    return connections(view, own).listener_per_connection_buffer_limit_bytes or 0


@derived
def takes_proxy_protocol(view: View, own: str) -> bool:
    """True if load balancers before a gateway use the PROXY protocol."""
    topology = proxy_settings(view, own).gateway_topology
    return topology is not None and topology.proxy_protocol is not None


def cluster_buffer(view: View, own: str) -> int:
    """The bytes that a cluster may buffer for a connection; 0: Envoy's default."""
    return connections(view, own).cluster_per_connection_buffer_limit_bytes or 0


@derived
def counts_attempts(view: View, own: str) -> bool:
    """True if requests get a header with the number of attempts."""
    count = headers(view, own).attempt_count
    return not (count and count.disabled)


@derived
def keeps_case(view: View, own: str) -> bool:
    """True if the case of HTTP/1 header names is preserved."""
    return bool(headers(view, own).preserve_http1_header_case)


@derived
def forwards_host(view: View, own: str) -> bool:
    """True if a request with a rewritten host gets a header with the original host."""
    forwarded = headers(view, own).x_forwarded_host
    return bool(forwarded and forwarded.enabled)
