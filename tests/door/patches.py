"""Random patches of EnvoyFilters, from the descriptors of Envoy's own messages."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor

import mesh_pilot.envoy.envoy_filter.values  # noqa: F401  imports Envoy's messages
from tests.door.fields import FIELDS
from tests.door.values import Values

Json = dict[str, Any]

_HTTP = "envoy.extensions.filters.http."
_NETWORK = "envoy.extensions.filters.network."
_MANAGER = f"{_NETWORK}http_connection_manager.v3.HttpConnectionManager"

_TARGETS: Mapping[str, tuple[str, Sequence[str]]] = {
    "LISTENER": ("envoy.config.listener.v3.Listener", ("MERGE", "MERGE", "ADD", "REMOVE")),
    "FILTER_CHAIN": ("envoy.config.listener.v3.FilterChain", ("MERGE", "MERGE", "ADD", "REMOVE")),
    "NETWORK_FILTER": (
        "envoy.config.listener.v3.Filter",
        ("MERGE", "MERGE", "ADD", "INSERT_FIRST", "INSERT_BEFORE", "INSERT_AFTER", "REPLACE", "REMOVE"),
    ),
    "HTTP_FILTER": (
        f"{_NETWORK}http_connection_manager.v3.HttpFilter",
        ("MERGE", "ADD", "INSERT_FIRST", "INSERT_FIRST", "INSERT_BEFORE", "INSERT_AFTER", "REPLACE", "REMOVE"),
    ),
    "LISTENER_FILTER": (
        "envoy.config.listener.v3.ListenerFilter",
        ("MERGE", "ADD", "INSERT_FIRST", "REPLACE", "REMOVE"),
    ),
    "ROUTE_CONFIGURATION": ("envoy.config.route.v3.RouteConfiguration", ("MERGE",)),
    "VIRTUAL_HOST": ("envoy.config.route.v3.VirtualHost", ("MERGE", "MERGE", "ADD", "REPLACE", "REMOVE")),
    "HTTP_ROUTE": ("envoy.config.route.v3.Route", ("MERGE", "MERGE", "ADD", "INSERT_FIRST", "INSERT_BEFORE", "REMOVE")),
    "CLUSTER": ("envoy.config.cluster.v3.Cluster", ("MERGE", "MERGE", "MERGE", "ADD", "REMOVE")),
    "EXTENSION_CONFIG": ("envoy.config.core.v3.TypedExtensionConfig", ("ADD", "ADD", "MERGE", "REMOVE")),
}
"""The message of each `applyTo`, and its operations."""

_HTTP_FILTERS = {
    "envoy.filters.http.router": f"{_HTTP}router.v3.Router",
    "envoy.filters.http.lua": f"{_HTTP}lua.v3.Lua",
    "envoy.filters.http.fault": f"{_HTTP}fault.v3.HTTPFault",
    "envoy.filters.http.cors": f"{_HTTP}cors.v3.Cors",
    "envoy.filters.http.rbac": f"{_HTTP}rbac.v3.RBAC",
    "envoy.filters.http.ext_authz": f"{_HTTP}ext_authz.v3.ExtAuthz",
    "envoy.filters.http.local_ratelimit": f"{_HTTP}local_ratelimit.v3.LocalRateLimit",
    "envoy.filters.http.ratelimit": f"{_HTTP}ratelimit.v3.RateLimit",
    "envoy.filters.http.buffer": f"{_HTTP}buffer.v3.Buffer",
    "envoy.filters.http.jwt_authn": f"{_HTTP}jwt_authn.v3.JwtAuthentication",
    "envoy.filters.http.compressor": f"{_HTTP}compressor.v3.Compressor",
    "envoy.filters.http.header_to_metadata": f"{_HTTP}header_to_metadata.v3.Config",
    "envoy.filters.http.health_check": f"{_HTTP}health_check.v3.HealthCheck",
    "envoy.filters.http.csrf": f"{_HTTP}csrf.v3.CsrfPolicy",
    "envoy.filters.http.oauth2": f"{_HTTP}oauth2.v3.OAuth2",
}
_NETWORK_FILTERS = {
    "envoy.filters.network.http_connection_manager": _MANAGER,
    "envoy.filters.network.tcp_proxy": f"{_NETWORK}tcp_proxy.v3.TcpProxy",
    "envoy.filters.network.rbac": f"{_NETWORK}rbac.v3.RBAC",
    "envoy.filters.network.local_ratelimit": f"{_NETWORK}local_ratelimit.v3.LocalRateLimit",
    "envoy.filters.network.sni_cluster": f"{_NETWORK}sni_cluster.v3.SniCluster",
}
_LISTENER_FILTERS = {
    "envoy.filters.listener.tls_inspector": "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector",
    "envoy.filters.listener.http_inspector": "envoy.extensions.filters.listener.http_inspector.v3.HttpInspector",
    "envoy.filters.listener.proxy_protocol": "envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol",
    "envoy.filters.listener.original_dst": "envoy.extensions.filters.listener.original_dst.v3.OriginalDst",
}
_OTHERS = {
    "envoy.access_loggers.stdout": "envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
    "envoy.transport_sockets.tls": "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
    "envoy.transport_sockets.raw_buffer": "envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer",
    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": "envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
    "no.such.extension": "type.test.NoSuchType",
}
_EXTENSIONS: Mapping[str, Mapping[str, str]] = {
    "HttpFilter": _HTTP_FILTERS,
    "Filter": _NETWORK_FILTERS,
    "ListenerFilter": _LISTENER_FILTERS,
    "TypedExtensionConfig": {**_HTTP_FILTERS, **_OTHERS},
    "AccessLog": {"envoy.access_loggers.stdout": _OTHERS["envoy.access_loggers.stdout"]},
    "TransportSocket": {name: kind for name, kind in _OTHERS.items() if "transport_sockets" in name},
}
"""Extensions that go into a message: name and type."""

_TEXTS: Mapping[str, Sequence[str]] = {
    "name": ("a", "b", "allow_any", "inbound|http|80", "added", "virtualInbound", "x"),
    "cluster": ("outbound|80||ext.example.test", "BlackHoleCluster", "none"),
    "cluster_name": ("outbound|80||ext.example.test", "none"),
    "domains": ("evil.test", "EVIL.test", "*", "new.test"),
    "prefix": ("/", "/a"),
    "stat_prefix": ("stat",),
    "address": ("127.0.0.1", "127.0.7.1"),
    "filename": ("/dev/null",),
    "path_prefix": ("/dev/null",),
    "inline_string": ("function envoy_on_request(handle) end", "function (", "text"),
    "inline_code": ("function envoy_on_request(handle) end", "not Lua ("),
    "key": ("x-a", "%", ":path"),
    "value": ("a", "%REQ(X)%", "%FOO%"),
    "regex": FIELDS["regex"],
    "server_names": ("evil.test", "*.test", "EVIL.test", "*"),
    "transport_protocol": ("tls", "raw_buffer"),
    "application_protocols": ("h2", "http/1.1"),
    "address_prefix": ("10.0.0.0", "::", "10.0.0.300"),
    "header_name": ("x-a", "X-A", ":path", ""),
    "type_url": ("type.googleapis.com/envoy.config.route.v3.Route",),
}
_UNSAFE = ("Pipe", "DataSource.filename", "WatchedDirectory", "DataSource.environment_variable", "CustomConfigSource")
"""Messages and fields with which an Envoy would write to files, or that say nothing."""

_MATCHES: Mapping[str, Sequence[Json]] = {
    "listener": (
        {},
        {"portNumber": 80},
        {"portNumber": 31080},
        {"name": "virtualInbound"},
        {"name": "virtualOutbound"},
        {"filterChain": {"filter": {"name": "envoy.filters.network.http_connection_manager"}}},
        {
            "filterChain": {
                "filter": {
                    "name": "envoy.filters.network.http_connection_manager",
                    "subFilter": {"name": "envoy.filters.http.router"},
                }
            }
        },
        {"filterChain": {"filter": {"name": "envoy.filters.network.tcp_proxy"}}},
        {"filterChain": {"sni": "*.example.test"}},
        {"filterChain": {"transportProtocol": "tls", "applicationProtocols": "h2"}},
        {"portName": "http"},
        {"listenerFilter": "envoy.filters.listener.tls_inspector"},
    ),
    "routeConfiguration": (
        {},
        {"name": "http.31080"},
        {"portNumber": 80},
        {"vhost": {"name": "evil.test:31080"}},
        {"vhost": {"name": "evil.test:31080", "route": {"action": "ANY"}}},
        {"vhost": {"route": {"name": "default"}}},
        {"vhost": {"domainName": "evil.test"}},
        {"gateway": "shop/edge"},
    ),
    "cluster": (
        {},
        {"service": "ext.example.test"},
        {"portNumber": 80},
        {"subset": "v1"},
        {"name": "BlackHoleCluster"},
    ),
}

_DEPTH = 6


def random_patch(values: Values) -> Json:
    """A patch as people write it."""
    pick = values.pick
    target = pick.choice(list(_TARGETS))
    name, operations = _TARGETS[target]
    operation = pick.choice(operations)
    match: Json = {}
    if values.chance(0.5):
        match["context"] = pick.choice(("ANY", "SIDECAR_INBOUND", "SIDECAR_OUTBOUND", "GATEWAY"))
    matched = _matched_by(target)
    if matched and values.chance(0.6):
        match[matched] = copy.deepcopy(pick.choice(_MATCHES[matched]))
    if values.chance(0.1):
        match["proxy"] = {"proxyVersion": values.scalar("string", "", "proxyVersion")}
    patch: Json = {"operation": operation}
    if target == "HTTP_FILTER" and values.chance(0.2):
        patch["filterClass"] = pick.choice(("AUTHN", "AUTHZ", "STATS"))
    if operation != "REMOVE":
        descriptor = descriptor_pool.Default().FindMessageTypeByName(name)
        patch["value"] = _Messages(values, is_whole=operation != "MERGE").message(descriptor, 0)
    written: Json = {"applyTo": target, "patch": patch}
    return {**written, "match": match} if match else written


def _matched_by(target: str) -> str:
    if target in ("ROUTE_CONFIGURATION", "VIRTUAL_HOST", "HTTP_ROUTE"):
        return "routeConfiguration"
    if target == "EXTENSION_CONFIG":
        return ""
    return "cluster" if target == "CLUSTER" else "listener"


_WHOLE: Mapping[str, Sequence[str]] = {
    "Listener": ("name", "address", "filter_chains"),
    "FilterChain": ("filters",),
    "VirtualHost": ("name", "domains", "routes"),
    "Route": ("name", "match"),
    "Cluster": ("name",),
    "SocketAddress": ("address",),
    "HttpConnectionManager": ("stat_prefix", "http_filters"),
    "TcpProxy": ("stat_prefix",),
    "RouteAction": (),
    "HeaderValueOption": ("header",),
    "HeaderValue": ("key", "value"),
    "RBAC": ("rules",),
}
"""Fields that a message that is not merged into another one usually has."""


class _Messages:
    """Writes Envoy's messages as JSON, with the names of their proto files."""

    def __init__(self, values: Values, *, is_whole: bool) -> None:
        self.values = values
        self.is_whole = is_whole

    def message(self, descriptor: Descriptor, depth: int) -> Any:
        if (special := self._well_known(descriptor, depth)) is not None:
            return special
        name = descriptor.name
        written: Json = {}
        if name in _EXTENSIONS and not self.values.chance(self.values.nasty):
            return self._extension(name, depth)
        usual = _WHOLE.get(name, ()) if self.is_whole or depth else ()
        fields = [field for field in descriptor.fields if not self._is_unsafe(field)]
        chosen = {group.name: self.values.pick.choice(group.fields).name for group in descriptor.oneofs}
        share = self.values.pick.choice((0.5, 1.5, 3.0)) / max(len(fields), 1)
        for field in fields:
            oneof = field.containing_oneof
            if oneof is not None and len(oneof.fields) > 1:
                wanted = chosen[oneof.name] == field.name and self.values.chance(0.9 if depth else 0.3)
            else:
                wanted = field.name in usual or self.values.chance(share)
            if wanted and depth < _DEPTH:
                written[field.name] = self._field(field, depth)
        return written

    def _is_unsafe(self, field: FieldDescriptor) -> bool:
        kind = field.message_type.name if field.message_type is not None else ""
        return kind in _UNSAFE or f"{field.containing_type.name}.{field.name}" in _UNSAFE

    def _extension(self, holder: str, depth: int) -> Json:
        name, kind = self.values.pick.choice(list(_EXTENSIONS[holder].items()))
        return {"name": name, "typed_config": self._packed(kind, depth)}

    def _packed(self, kind: str, depth: int) -> Json:
        if self.values.chance(self.values.nasty):
            wrong: tuple[Json, ...] = ({"@type": {}}, {}, {"@type": ""}, {"@type": f"x/{kind}", "no_such_field": 1})
            return self.values.pick.choice(wrong)
        written: Json = {"@type": f"type.googleapis.com/{kind}"}
        try:
            descriptor = descriptor_pool.Default().FindMessageTypeByName(kind)
        except KeyError:
            return written
        return {**written, **self.message(descriptor, depth + 1)}

    def _field(self, field: FieldDescriptor, depth: int) -> Any:
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            key, value = kind.fields_by_name["key"], kind.fields_by_name["value"]
            return {str(self._one(key, depth)): self._one(value, depth)}
        if not field.is_repeated:
            return self._one(field, depth)
        return [self._one(field, depth) for _ in range(self.values.pick.choice((1, 1, 2)))]

    def _one(self, field: FieldDescriptor, depth: int) -> Any:
        if field.message_type is not None:
            return self.message(field.message_type, depth + 1)
        if field.enum_type is not None:
            return self.values.pick.choice([value.name for value in field.enum_type.values])
        kind = _SCALARS.get(field.type, "uint32")
        common = _TEXTS.get(field.name, ()) if kind == "string" else ()
        if common and not self.values.chance(self.values.nasty):
            return self.values.pick.choice(common)
        return self.values.scalar(kind, "", field.name if common else "")

    def _well_known(self, descriptor: Descriptor, depth: int) -> Any:
        match descriptor.full_name:
            case "google.protobuf.Duration":
                return self.values.scalar("duration", "", "")
            case "google.protobuf.Any":
                return self._packed(self.values.pick.choice([*_HTTP_FILTERS.values(), *_OTHERS.values()]), depth)
            case "google.protobuf.Struct":
                return {"a": "b", "envoy.lb": {"x": 1}}
            case "google.protobuf.Value":
                return self.values.pick.choice(("a", 1, True, None, [1], {"a": 1}))
            case "google.protobuf.Timestamp":
                return "2024-01-01T00:00:00Z"
            case "google.protobuf.Empty":
                return {}
            case "envoy.config.core.v3.ConfigSource":
                return {"ads": {}, "resource_api_version": "V3"}
            case name if name.startswith("google.protobuf.") and name.endswith("Value"):
                return self._one(descriptor.fields_by_name["value"], depth)
        return None


_SCALARS = {
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_UINT64: "uint64",
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_FLOAT: "float",
}
