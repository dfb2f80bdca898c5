"""Extensions: a config of the right kind in each place, terminal filters at the end, and values that all may have."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from envoy.extensions.filters.http.header_to_metadata.v3 import header_to_metadata_pb2
from google.protobuf import any_pb2, json_format, message_factory
from google.protobuf.message import Message
from udpa.type.v1 import typed_struct_pb2 as udpa_typed_struct_pb2
from xds.type.v3 import typed_struct_pb2

from mesh_pilot.envoy.core.protobuf import find_type, type_name
from mesh_pilot.envoy.refusals.declared import rules_of
from mesh_pilot.envoy.refusals.pairs import Rule, excludes, needed_by
from mesh_pilot.istio.rules.regex import regex_reason

_HTTP = "envoy.extensions.filters.http"
_NETWORK = "envoy.extensions.filters.network"
_MATCHING = "envoy.extensions.common.matching"
"""A filter around another one."""

HTTP_CONNECTION_MANAGER = f"{_NETWORK}.http_connection_manager.v3.HttpConnectionManager"

UPSTREAM_CODEC = f"{_HTTP}.upstream_codec.v3.UpstreamCodec"

TERMINAL = frozenset(
    (
        f"{_HTTP}.router.v3.Router",
        HTTP_CONNECTION_MANAGER,
        f"{_NETWORK}.tcp_proxy.v3.TcpProxy",
        f"{_NETWORK}.redis_proxy.v3.RedisProxy",
        f"{_NETWORK}.thrift_proxy.v3.ThriftProxy",
        f"{_NETWORK}.direct_response.v3.Config",
        f"{_NETWORK}.echo.v3.Echo",
    )
)
"""Types of terminal filters, which must be the last of their list."""

_NOT_TERMINAL = frozenset(
    f"{_HTTP}.{name}.v3"
    for name in (
        "adaptive_concurrency", "admission_control", "alternate_protocols_cache", "api_key_auth", "aws_request_signing",
        "bandwidth_limit", "basic_auth", "buffer", "cache", "cdn_loop", "compressor", "connect_grpc_bridge", "cors",
        "credential_injector", "csrf", "custom_response", "decompressor", "dynamic_forward_proxy", "ext_authz",
        "ext_proc", "fault", "file_system_buffer", "gcp_authn", "geoip", "grpc_field_extraction", "grpc_http1_bridge",
        "grpc_http1_reverse_bridge", "grpc_json_transcoder", "grpc_stats", "grpc_web", "header_mutation",
        "header_to_metadata", "health_check", "ip_tagging", "json_to_metadata", "jwt_authn", "local_ratelimit", "lua",
        "oauth2", "on_demand", "original_src", "ratelimit", "rate_limit_quota", "rbac", "set_filter_state",
        "set_metadata", "stateful_session", "tap", "wasm",
    )
) | frozenset(
    f"{_NETWORK}.{name}.v3"
    for name in (
        "connection_limit", "ext_authz", "local_ratelimit", "mongo_proxy", "ratelimit", "rbac", "set_filter_state",
        "sni_cluster", "sni_dynamic_forward_proxy", "wasm", "zookeeper_proxy",
    )
)  # fmt: skip
"""Packages of filters that are never terminal. Of others it depends on their config, or on Envoy's build."""

_PLACES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    f"{_NETWORK}.http_connection_manager.v3.HttpFilter": ("HTTP filter", (_HTTP, _MATCHING)),
    "envoy.config.listener.v3.Filter": ("network filter", (_NETWORK, _MATCHING)),
    "envoy.config.cluster.v3.Filter": ("network filter", (_NETWORK, _MATCHING)),
    "envoy.config.listener.v3.ListenerFilter": (
        "listener filter",
        ("envoy.extensions.filters.listener", "envoy.extensions.filters.udp", _MATCHING),
    ),
    "envoy.config.core.v3.TransportSocket": ("transport socket", ("envoy.extensions.transport_sockets",)),
    "envoy.config.accesslog.v3.AccessLog": ("access logger", ("envoy.extensions.access_loggers",)),
    **{
        f"envoy.config.{package}.v3.RetryPolicy.{message}": (kind, ("envoy.extensions.retry",))
        for package in ("core", "route")
        for message, kind in (("RetryHostPredicate", "retry predicate"), ("RetryPriority", "retry priority"))
    },
    "envoy.config.core.v3.HealthCheck.CustomHealthCheck": ("health checker", ("envoy.extensions.health_checkers",)),
}
"""Messages for one extension: its kind, and the packages that have such extensions. Envoy looks for an extension by the
type of its config."""

_WITHOUT_FILTERS = (
    "envoy.config.cluster.",
    "envoy.config.core.",
    "envoy.config.listener.",
    "envoy.config.route.",
    f"{_HTTP}.compressor.",
    f"{_HTTP}.decompressor.",
    f"{_NETWORK}.http_connection_manager.",
)
"""Messages whose extensions (``TypedExtensionConfig``) are never filters, sockets or loggers."""

_WITH_PLACES = (
    *(f"{package}." for _, packages in _PLACES.values() for package in packages),
    "envoy.extensions.upstreams.http.v3.",
)

_HEADER_TO_METADATA = f"{_HTTP}.header_to_metadata.v3.Config"

_PER_ROUTE = (_HTTP, _MATCHING, "envoy.config.route.v3")
"""Packages of configs for routes."""

_NOT_PER_ROUTE = frozenset(
    f"{_HTTP}.{name}"
    for name in (
        "alternate_protocols_cache.v3.FilterConfig", "grpc_stats.v3.FilterConfig", "health_check.v3.HealthCheck",
        "original_src.v3.OriginalSrc", "router.v3.Router",
    )
)  # fmt: skip
"""Types of filters that routes can't configure."""

_DOWNSTREAM = re.compile(r"\.(Downstream\w+|QuicDownstreamTransport|StartTlsConfig)$")
_UPSTREAM = re.compile(r"\.(Upstream\w+|QuicUpstreamTransport|\w+UpstreamTransport)$")

_TYPED_STRUCTS: Mapping[str, Any] = {
    c.DESCRIPTOR.full_name: c for c in (typed_struct_pb2.TypedStruct, udpa_typed_struct_pb2.TypedStruct)
}
_TYPE_URL = re.compile(r"(?:[^\s/]+/)*[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


def extension_type(extension: Any) -> str:
    """The type name of an extension's config; empty if it has none, or is discovered."""
    config: any_pb2.Any = extension.typed_config
    name = type_name(config.type_url)
    return type_name(_TYPED_STRUCTS[name].FromString(config.value).type_url) if name in _TYPED_STRUCTS else name


def in_typed_struct(message: Message) -> Message | None:
    """The message that a TypedStruct stands for; None for any other message, or a type that Envoy's API lacks.

    Raises ValueError if its value is not of that type.
    """
    if message.DESCRIPTOR.full_name not in _TYPED_STRUCTS:
        return None
    struct: Any = message
    kind = find_type(struct.type_url)
    if kind is None:
        return None
    value = json_format.MessageToDict(struct.value)
    inner = message_factory.GetMessageClass(kind)()
    try:
        json_format.ParseDict(value, inner, ignore_unknown_fields=True)
    except Exception as error:
        # Mostly a ParseError, but odd values make the parser raise AttributeError, KeyError and others.
        raise ValueError(f"the value is not of type {kind.full_name}: {error}") from None
    return inner


def filter_chain(field: str, filters: Sequence[Any]) -> Iterator[str]:
    """The order of network filters or HTTP filters."""
    types = [extension_type(filter_) for filter_ in filters]
    for filter_, kind in zip(filters[:-1], types[:-1], strict=True):
        if kind in TERMINAL:
            yield f"{field}: {filter_.name} is terminal, so it has to be the last"
    if types and types[-1].rpartition(".")[0] in _NOT_TERMINAL:
        yield f"{field}: the last, {filters[-1].name}, is not terminal: a router or proxy has to follow"


def upstream_filter_chain(field: str, filters: Sequence[Any]) -> Iterator[str]:
    """The order of filters for upstream requests, which end with the codec."""
    types = [extension_type(filter_) for filter_ in filters]
    if types and (types[-1] != UPSTREAM_CODEC or types.count(UPSTREAM_CODEC) > 1):
        yield f"{field}: the last, and no other, has to be the codec, {UPSTREAM_CODEC}"


def repeated_upgrades(holder: Any) -> Iterator[str]:
    """``upgrade_configs`` of an HTTP connection manager or a route."""
    upgrades = [config.upgrade_type.lower() for config in holder.upgrade_configs]
    if len(set(upgrades)) < len(upgrades):
        yield "upgrade_configs: has an upgrade twice"


def downstream_socket(owner: Any) -> Iterator[str]:
    if _UPSTREAM.search(kind := extension_type(owner.transport_socket)):
        yield f"transport_socket.typed_config: {kind} is for clusters"


def upstream_socket(owner: Any) -> Iterator[str]:
    if _DOWNSTREAM.search(kind := extension_type(owner.transport_socket)):
        yield f"transport_socket.typed_config: {kind} is for listeners"


def per_route_configs(message: Any) -> Iterator[str]:
    """``typed_per_filter_config`` of a route table, a virtual host or a route."""
    for name, config in message.typed_per_filter_config.items():
        kind = type_name(config.type_url)
        path = f"typed_per_filter_config[{name}]"
        if is_misplaced(kind, _PER_ROUTE) or kind in _NOT_PER_ROUTE:
            yield f"{path}: {kind} is not for routes"
        elif kind.startswith(f"{_HTTP}."):
            package = kind.rpartition(".")[0]
            wanted = next(
                (n for n in (f"{kind}PerRoute", f"{package}.PerRouteConfig") if find_type(n) is not None), kind
            )
            # Of an empty config Envoy ignores the type.
            if kind != wanted and (config.value or rules_of(wanted).absent or rules_of(wanted).oneofs):
                yield f"{path}: {kind} is not for routes, {wanted} is"
            if kind == _HEADER_TO_METADATA:
                rules = header_to_metadata_pb2.Config.FromString(config.value)
                if not rules.request_rules and not rules.response_rules:
                    yield f"{path}: needs request_rules or response_rules"


def misfit(parent: str, extension: Any) -> str:
    """The reason why an extension cannot be in a message of this type, where filters cannot be; or an empty string."""
    name = extension_type(extension)
    if parent.startswith(_WITHOUT_FILTERS) and name.startswith(_WITH_PLACES) and find_type(name) is not None:
        return f"{name} can't be here"
    return ""


def is_misplaced(name: str, packages: tuple[str, ...]) -> bool:
    """True for a type of Envoy's own that is in none of these packages."""
    if not name.startswith("envoy.") or name.startswith(tuple(f"{package}." for package in packages)):
        return False
    return find_type(name) is not None


def _extension(kind: str, packages: tuple[str, ...], extension: Any) -> Iterator[str]:
    fields = extension.DESCRIPTOR.fields_by_name
    if "is_optional" in fields and extension.is_optional:
        return
    if "config_discovery" in fields and extension.HasField("config_discovery"):
        for index, url in enumerate(extension.config_discovery.type_urls):
            if is_misplaced(name := type_name(url), packages):
                yield f"config_discovery.type_urls[{index}]: {name} is not of kind {kind}"
        return
    if not extension.HasField("typed_config"):
        yield "typed_config: is missing"
        return
    name = extension_type(extension)
    if is_misplaced(name, packages):
        yield f"typed_config: {name} is not of kind {kind}"
    elif name.endswith("PerRoute") and extension.typed_config.value:
        yield f"typed_config: {name} is for routes only"


def _typed_struct(message: Any) -> Iterator[str]:
    if not _TYPE_URL.fullmatch(message.type_url):
        yield f"type_url: {message.type_url[:100]!r} is not the URL of a type"


def _cluster_specifier(plugin: Any) -> Iterator[str]:
    if is_misplaced(name := extension_type(plugin.extension), ("envoy.extensions.router.cluster_specifiers",)):
        yield f"extension.typed_config: {name} is not a cluster specifier"


def _filter_config(message: Any) -> Iterator[str]:
    if not (message.HasField("config") or message.disabled or message.is_optional):
        yield "config: is missing"


@lru_cache(maxsize=10_000)
def _regex_reason(pattern: str) -> str:
    return regex_reason(pattern)


def _regex(message: Any) -> Iterator[str]:
    if reason := _regex_reason(message.regex):
        yield f"regex: {reason}"


def _cidr(cidr: Any) -> Iterator[str]:
    if not is_ip(cidr.address_prefix):
        yield f"address_prefix: {cidr.address_prefix[:100]!r} is not an IP address"


def is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


RULES: Mapping[str, Rule] = {
    **{name: partial(_extension, *place) for name, place in _PLACES.items()},
    **dict.fromkeys(_TYPED_STRUCTS, _typed_struct),
    "envoy.config.core.v3.CidrRange": _cidr,
    "envoy.config.core.v3.ExtensionConfigSource": needed_by("default_config", "apply_default_config_without_warming"),
    "envoy.config.route.v3.ClusterSpecifierPlugin": _cluster_specifier,
    "envoy.config.route.v3.FilterConfig": _filter_config,
    "envoy.type.matcher.v3.RegexMatcher": _regex,
    "envoy.type.matcher.v3.StringMatcher": excludes("ignore_case", "safe_regex"),
    "xds.type.matcher.v3.RegexMatcher": _regex,
}
