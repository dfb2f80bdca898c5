"""Single filters: what their code demands of their configs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from envoy.config.core.v3.proxy_protocol_pb2 import ProxyProtocolConfig

from mesh_pilot.envoy.refusals.extensions import upstream_filter_chain
from mesh_pilot.envoy.refusals.pairs import Rule, excludes, needed_by, one_of
from mesh_pilot.istio.rules.key_sets import key_set_reason

_MILLISECOND = 1_000_000


def _health_check(config: Any) -> Iterator[str]:
    if not config.pass_through_mode.value and config.cache_time.ToNanoseconds() >= _MILLISECOND:
        yield "cache_time: needs pass_through_mode"


def _header_rule(rule: Any) -> Iterator[str]:
    yield from one_of("header", "cookie")(rule)
    if not rule.HasField("on_header_present") and not rule.HasField("on_header_missing"):
        yield "on_header_present: one of on_header_present and on_header_missing has to be set"
    if rule.HasField("on_header_missing") and not rule.on_header_missing.value:
        yield "on_header_missing.value: is missing"
    if rule.on_header_present.value and rule.on_header_present.HasField("regex_value_rewrite"):
        yield "on_header_present.regex_value_rewrite: goes not with value"
    if rule.cookie and rule.remove:
        yield "remove: a cookie can't be removed"


def log_options(config: Any, flag: str) -> Iterator[str]:
    """``access_log_options``, and the older fields for the same, of which ``flag`` is one."""
    if config.HasField("access_log_options"):
        older = [flag] if getattr(config, flag) else []
        older += ["access_log_flush_interval"] if config.HasField("access_log_flush_interval") else []
        yield from (f"{name}: goes not with access_log_options" for name in older)


def _tcp_proxy(config: Any) -> Iterator[str]:
    yield from log_options(config, "flush_access_log_on_connected")
    yield from needed_by("max_early_data_bytes", "upstream_connect_mode")(config)


def _router(config: Any) -> Iterator[str]:
    yield from upstream_filter_chain("upstream_http_filters", config.upstream_http_filters)


def _upstream_options(options: Any) -> Iterator[str]:
    yield from upstream_filter_chain("http_filters", options.http_filters)


# The settings of HTTP/2 that have a field, by their numbers (RFC 9113).
_NAMED_SETTINGS = {1: "hpack_table_size", 3: "max_concurrent_streams", 4: "initial_stream_window_size"}
_ENABLE_PUSH, _ENABLE_CONNECT = 2, 8


def _http2(options: Any) -> Iterator[str]:
    seen: dict[int, int] = {}
    for index, setting in enumerate(options.custom_settings_parameters):
        number, value = setting.identifier.value, setting.value.value
        path = f"custom_settings_parameters[{index}]"
        named = _NAMED_SETTINGS.get(number, "")
        if seen.setdefault(number, value) != value:
            yield f"{path}: the setting {number} is there with another value already"
        if named and options.HasField(named):
            yield f"{path}: is set by {named} already"
        if number == _ENABLE_CONNECT:
            yield f"{path}: can only be set by allow_connect"
        if number == _ENABLE_PUSH and value:
            yield f"{path}: Envoy does not support server push"


def _proxy_protocol(config: Any) -> Iterator[str]:
    if {ProxyProtocolConfig.V1, ProxyProtocolConfig.V2} <= set(config.disallowed_versions):
        yield "disallowed_versions: one version has to be allowed"


# -- JWT


def _jwt_authentication(config: Any) -> Iterator[str]:
    providers = frozenset(config.providers)
    for index, rule in enumerate(config.rules):
        if rule.HasField("requires"):
            yield from _unknown_providers(f"rules[{index}].requires", rule.requires, providers)
        elif rule.requirement_name and rule.requirement_name not in config.requirement_map:
            yield f"rules[{index}].requirement_name: requirement_map has no {rule.requirement_name[:100]!r}"
    for path, requirements in (
        ("requirement_map", config.requirement_map),
        ("filter_state_rules.requires", config.filter_state_rules.requires),
    ):
        for name, requirement in requirements.items():
            yield from _unknown_providers(f"{path}[{name}]", requirement, providers)


def _unknown_providers(path: str, requirement: Any, providers: frozenset[str]) -> Iterator[str]:
    match requirement.WhichOneof("requires_type"):
        case "provider_name" as kind:
            name = requirement.provider_name
        case "provider_and_audiences" as kind:
            name = requirement.provider_and_audiences.provider_name
        case "requires_any" | "requires_all" as kind:
            for index, part in enumerate(getattr(requirement, kind).requirements):
                yield from _unknown_providers(f"{path}.{kind}.requirements[{index}]", part, providers)
            return
        case _:
            return
    if name not in providers:
        yield f"{path}.{kind}: providers has no {name[:100]!r}"


def _jwt_provider(provider: Any) -> Iterator[str]:
    keys = provider.local_jwks
    for name, text in (
        ("inline_string", keys.inline_string),
        ("inline_bytes", keys.inline_bytes.decode(errors="replace")),
    ):
        if text and (reason := key_set_reason(text)):
            yield f"local_jwks.{name}: {reason}"


_HTTP = "envoy.extensions.filters.http"

RULES: Mapping[str, Rule] = {
    f"{_HTTP}.health_check.v3.HealthCheck": _health_check,
    f"{_HTTP}.header_to_metadata.v3.Config.Rule": _header_rule,
    f"{_HTTP}.jwt_authn.v3.JwtAuthentication": _jwt_authentication,
    f"{_HTTP}.jwt_authn.v3.JwtProvider": _jwt_provider,
    f"{_HTTP}.lua.v3.Lua": excludes("inline_code", "default_source_code"),
    f"{_HTTP}.router.v3.Router": _router,
    "envoy.config.core.v3.Http2ProtocolOptions": _http2,
    "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy": _tcp_proxy,
    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": _upstream_options,
    "envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol": _proxy_protocol,
    "envoy.config.core.v3.TlvEntry": one_of("value", "format_string"),
}
