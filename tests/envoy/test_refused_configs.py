"""Configs of filters, headers and formats that Envoy refuses, as its code says: we say so, and a real Envoy does."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import message_factory
from google.protobuf.json_format import ParseDict

from mesh_pilot.envoy.core.protobuf import find_type
from mesh_pilot.envoy.refusals.check import refusals
from tests.support.envoy_check import complaints

Json = dict[str, Any]

EXTENSIONS = "envoy.extensions"
HTTP, NETWORK, LOGGERS = (f"{EXTENSIONS}.{name}" for name in ("filters.http", "filters.network", "access_loggers"))
MANAGER, TCP_PROXY = f"{NETWORK}.http_connection_manager.v3.HttpConnectionManager", f"{NETWORK}.tcp_proxy.v3.TcpProxy"
BAD = "%FOO%"
REASON = "'%FOO%' is not a command that Envoy has"


def config(kind: str, **fields: Any) -> Json:
    assert find_type(kind) is not None, kind
    return {"@type": f"type.googleapis.com/{kind}", **fields}


def listener(kind: str, **fields: Any) -> Json:
    """A listener with this network filter."""
    address = {"socket_address": {"address": "127.0.0.1", "port_value": 1}}
    filters = [{"name": "a", "typed_config": config(kind, stat_prefix="a", **fields)}]
    return {"name": "a", "address": address, "filter_chains": [{"filters": filters}]}


def manager(*filters: Json, route: Json | None = None, **fields: Any) -> Json:
    """A listener with these HTTP filters and this route."""
    answer = {"match": {"prefix": "/"}, "direct_response": {"status": 200}, **(route or {})}
    table = {"virtual_hosts": [{"name": "a", "domains": ["*"], "routes": [answer]}]}
    named = [{"name": f"f{i}", "typed_config": c} for i, c in enumerate((*filters, config(f"{HTTP}.router.v3.Router")))]
    return listener(MANAGER, **{"route_config": table, "http_filters": named, **fields})


def tcp(**fields: Any) -> Json:
    return listener(TCP_PROXY, cluster="xds", **fields)


def logs(kind: str, **fields: Any) -> Json:
    return manager(access_log=[{"name": "a", "typed_config": config(f"{LOGGERS}.{kind}", **fields)}])


def line(text: str, **more: Any) -> Json:
    return {"text_format_source": {"inline_string": text}, **more}


def headers(value: str, key: str = "x") -> list[Json]:
    return [{"header": {"key": key, "value": value}}]


def rule(**fields: Any) -> Json:
    return manager(config(f"{HTTP}.header_to_metadata.v3.Config", request_rules=[fields]))


def jwt(**fields: Any) -> Json:
    return manager(config(f"{HTTP}.jwt_authn.v3.JwtAuthentication", **fields))


def open_telemetry(**fields: Any) -> Json:
    service = {"envoy_grpc": {"cluster_name": "xds"}}
    common = {"log_name": "a", "transport_api_version": "V3", "grpc_service": service}
    return logs("open_telemetry.v3.OpenTelemetryAccessLogConfig", common_config=common, **fields)


STDOUT = "stream.v3.StdoutAccessLog"
FILE = "file.v3.FileAccessLog"
HEALTH_CHECK = f"{HTTP}.health_check.v3.HealthCheck"
LUA = f"{HTTP}.lua.v3.Lua"
TO_METADATA = f"{HTTP}.header_to_metadata.v3.Config"
FORMATTER = f"{EXTENSIONS}.formatter.req_without_query.v3.ReqWithoutQuery"
WITHOUT_QUERY = "%REQ_WITHOUT_QUERY(:path)%"
RATE_LIMIT = f"{HTTP}.local_ratelimit.v3.LocalRateLimit"
BUCKET = {"stat_prefix": "a", "token_bucket": {"max_tokens": 1, "fill_interval": "1s"}}
REWRITE = {"pattern": {"regex": "a"}, "substitution": "b"}
REQUIRES = {"match": {"prefix": "/"}, "requires": {"requires_any": {"requirements": [{"provider_name": "x"}]}}}

XFF = {"name": "a", "typed_config": config(
    f"{EXTENSIONS}.http.original_ip_detection.xff.v3.XffConfig", xff_num_trusted_hops=1
)}  # fmt: skip
CODEC = {"name": "c", "typed_config": config(f"{HTTP}.upstream_codec.v3.UpstreamCodec")}
MUTATION = {"name": "m", "typed_config": config(f"{HTTP}.header_mutation.v3.HeaderMutation")}


def http2(*custom: list[int], **fields: int) -> Json:
    parameters = [{"identifier": number, "value": value} for number, value in custom]
    return manager(http2_protocol_options={"custom_settings_parameters": parameters, **fields})


def upstream(*filters: Json) -> Json:
    router = {"name": "r", "typed_config": config(f"{HTTP}.router.v3.Router", upstream_http_filters=list(filters))}
    return manager(http_filters=[router])


REFUSED: Mapping[str, tuple[Json, str]] = {
    # headers
    "route header": (manager(route={"request_headers_to_add": headers(BAD)}), f"[0].header.value: {REASON}"),
    "mutation": (
        manager(config(f"{HTTP}.header_mutation.v3.HeaderMutation", mutations={
            "request_mutations": [{"append": headers("a", ":path")[0]}]
        })),
        "request_mutations[0].append.header.key: :path can't be changed this way",
    ),
    "rate limit": (
        manager(config(RATE_LIMIT, **BUCKET, response_headers_to_add=headers("a", "Host"))),
        "response_headers_to_add[0].header.key: Host can't be changed this way",
    ),
    "tunnel": (tcp(tunneling_config={"hostname": "a:1", "headers_to_add": headers(BAD)}), f"header.value: {REASON}"),
    "tunnel's host": (tcp(tunneling_config={"hostname": BAD}), f"tunneling_config.hostname: {REASON}"),
    # formats
    "line": (logs(STDOUT, log_format=line(BAD)), f"log_format.text_format_source.inline_string: {REASON}"),
    "undeclared command": (logs(STDOUT, log_format=line(WITHOUT_QUERY)), "'%REQ_WITHOUT_QUERY%' is not a command"),
    "old line": (logs(STDOUT, log_format={"text_format": BAD}), f"log_format.text_format: {REASON}"),
    "JSON": (logs(STDOUT, log_format={"json_format": {"a": {"b": [BAD]}}}), f"log_format.json_format.a: {REASON}"),
    "file's line": (logs(FILE, path="/dev/null", format=BAD), f"typed_config.format: {REASON}"),
    "file's JSON": (logs(FILE, path="/dev/null", typed_json_format={"a": BAD}), f"typed_json_format.a: {REASON}"),
    "OpenTelemetry": (open_telemetry(body={"string_value": BAD}), f"typed_config.body: {REASON}"),
    "attribute": (
        open_telemetry(attributes={"values": [{"key": "k", "value": {"int_value": "1"}}]}),
        "attributes.k: has to be a string, or a list or map of strings",
    ),
    "tag": (manager(tracing={"custom_tags": [{"tag": "a", "value": BAD}]}), f"custom_tags[0].value: {REASON}"),
    "operation": (manager(tracing={"operation": BAD}), f"tracing.operation: {REASON}"),
    # filters
    "cache time": (
        manager(config(HEALTH_CHECK, pass_through_mode=False, cache_time="1s")), "cache_time: needs pass_through_mode"
    ),
    "Lua": (
        manager(config(LUA, inline_code="x=1", default_source_code={"inline_string": "x=1"})),
        "inline_code: goes not with default_source_code",
    ),
    "no header": (rule(on_header_present={"key": "a"}), "[0].header: one of header and cookie has to be set"),
    "no action": (rule(header="a"), "[0].on_header_present: one of on_header_present and on_header_missing has to be"),
    "no value": (rule(header="a", on_header_missing={"key": "a"}), "[0].on_header_missing.value: is missing"),
    "two values": (
        rule(header="a", on_header_present={"key": "a", "value": "b", "regex_value_rewrite": REWRITE}),
        "[0].on_header_present.regex_value_rewrite: goes not with value",
    ),
    "cookie": (rule(cookie="a", remove=True, on_header_present={"key": "a"}), "[0].remove: a cookie can't be removed"),
    "no rules": (
        manager(route={"typed_per_filter_config": {"a": config(TO_METADATA)}}),
        "typed_per_filter_config[a]: needs request_rules or response_rules",
    ),
    "provider": (jwt(rules=[REQUIRES]), "requires_any.requirements[0].provider_name: providers has no 'x'"),
    "requirement": (
        jwt(rules=[{"match": {"prefix": "/"}, "requirement_name": "x"}]),
        "rules[0].requirement_name: requirement_map has no 'x'",
    ),
    "filter state": (
        jwt(filter_state_rules={"name": "a", "requires": {"b": {"provider_name": "x"}}}),
        "filter_state_rules.requires[b].provider_name: providers has no 'x'",
    ),
    "keys": (
        jwt(providers={"a": {"local_jwks": {"inline_string": '{"keys":[]}'}}}),
        "providers[a].local_jwks.inline_string: has no key that proxies can use",
    ),
    "keys in bytes": (
        jwt(providers={"a": {"local_jwks": {"inline_bytes": "aGVsbG8="}}}),
        "providers[a].local_jwks.inline_bytes: is not JSON",
    ),
    "discovered config": (
        {**tcp(), "listener_filters": [{"name": "a", "config_discovery": {
            "config_source": {"ads": {}, "resource_api_version": "V3"},
            "type_urls": [f"{EXTENSIONS}.filters.listener.tls_inspector.v3.TlsInspector"],
            "apply_default_config_without_warming": True,
        }}]},
        "config_discovery.default_config: is missing; apply_default_config_without_warming needs it",
    ),
    "PROXY protocol": (
        {**tcp(), "listener_filters": [{"name": "a", "typed_config": config(
            f"{EXTENSIONS}.filters.listener.proxy_protocol.v3.ProxyProtocol", disallowed_versions=["V1", "V2"]
        )}]},
        "typed_config.disallowed_versions: one version has to be allowed",
    ),
    "TLV": (tcp(proxy_protocol_tlvs=[{"type": 1}]), "[0].value: one of value and format_string has to be set"),
    "early data": (
        tcp(upstream_connect_mode="ON_DOWNSTREAM_DATA"), "max_early_data_bytes: is missing; upstream_connect_mode"
    ),
    "log options": (
        tcp(flush_access_log_on_connected=True, access_log_options={}),
        "flush_access_log_on_connected: goes not with access_log_options",
    ),
    "log options for HTTP": (
        manager(access_log_flush_interval="1s", access_log_options={}),
        "access_log_flush_interval: goes not with access_log_options",
    ),
    "UDP and TCP": (
        {**tcp(), "additional_addresses": [
            {"address": {"socket_address": {"protocol": "UDP", "address": "127.0.0.1", "port_value": 2}}}
        ]},
        "additional_addresses[0].address: a listener's addresses are all TCP, or all UDP",
    ),
    "chains of one name": (
        {**tcp(), "filter_chains": [{**chain, "name": "a"} for chain in tcp()["filter_chains"] * 2],
         "filter_chain_matcher": {}},
        "filter_chains: each needs its own name",
    ),
    "health check of a route": (
        manager(route={"typed_per_filter_config": {"a": config(HEALTH_CHECK, pass_through_mode=True)}}),
        "typed_per_filter_config[a]: envoy.extensions.filters.http.health_check.v3.HealthCheck is not for routes",
    ),
    "case of a regex": (
        manager(route={"match": {"prefix": "/", "headers": [
            {"name": "a", "string_match": {"safe_regex": {"regex": "a"}, "ignore_case": True}}
        ]}}),
        "string_match.ignore_case: goes not with safe_regex",
    ),
    # what is there twice, or by two ways
    "upgrade": (
        manager(upgrade_configs=[{"upgrade_type": "websocket"}, {"upgrade_type": "WebSocket"}]),
        "upgrade_configs: has an upgrade twice",
    ),
    "address": (
        manager(use_remote_address=True, original_ip_detection_extensions=[XFF]),
        "original_ip_detection_extensions: does not go with use_remote_address",
    ),
    "hops": (
        manager(xff_num_trusted_hops=1, original_ip_detection_extensions=[XFF]),
        "original_ip_detection_extensions: does not go with xff_num_trusted_hops",
    ),
    "setting": (http2([10, 1], [10, 2]), "custom_settings_parameters[1]: the setting 10 is there with another value"),
    "named setting": (
        http2([3, 1], max_concurrent_streams=1), "custom_settings_parameters[0]: is set by max_concurrent_streams"
    ),
    "CONNECT": (http2([8, 1]), "custom_settings_parameters[0]: can only be set by allow_connect"),
    "push": (http2([2, 1]), "custom_settings_parameters[0]: Envoy does not support server push"),
    "HTTP/3": (manager(codec_type="HTTP3"), "filters[0].typed_config.codec_type: HTTP3 needs a QUIC transport socket"),
    "codec in the middle": (
        upstream(CODEC, MUTATION), "upstream_http_filters: the last, and no other, has to be the codec"
    ),
    "two codecs": (upstream(CODEC, CODEC), "upstream_http_filters: the last, and no other, has to be the codec"),
    "no codec": (upstream(MUTATION), "upstream_http_filters: the last, and no other, has to be the codec"),
}  # fmt: skip

TAKEN = (
    manager(upgrade_configs=[{"upgrade_type": "websocket"}, {"upgrade_type": "CONNECT"}]),
    manager(config(LUA), config(LUA), original_ip_detection_extensions=[XFF, XFF], use_remote_address=False),
    http2([10, 1], [10, 1], [3, 5]),
    upstream(MUTATION, MUTATION, CODEC),
    manager(route={"request_headers_to_add": headers("%REQ(a)% 100%%")}),
    manager(config(f"{HTTP}.header_mutation.v3.HeaderMutation", mutations={"request_mutations": [{"remove": "host"}]})),
    logs(STDOUT, log_format=line(WITHOUT_QUERY, formatters=[{"name": "a", "typed_config": config(FORMATTER)}])),
    logs(STDOUT, log_format={"json_format": {BAD: [1, True, None, "%PROTOCOL%"]}}),
    open_telemetry(resource_attributes={"values": [{"key": "k", "value": {"string_value": BAD}}]}),
    manager(config(HEALTH_CHECK, pass_through_mode=True, cache_time="1s"), config(TO_METADATA)),
    rule(header="a", remove=True, on_header_missing={"key": "a", "value": "b", "regex_value_rewrite": REWRITE}),
    jwt(rules=[{"match": {"prefix": "/"}, "requires": {}}]),
    tcp(proxy_protocol_tlvs=[{"type": 1, "value": "YQ=="}, {"type": 1, "format_string": line("%PROTOCOL%")}]),
)


def message_of(value: Json) -> Any:
    kind = find_type("envoy.config.listener.v3.Listener")
    assert kind is not None
    return ParseDict(value, message_factory.GetMessageClass(kind)())


@pytest.mark.parametrize("name", REFUSED)
def test_the_reason_names_the_field(name: str) -> None:
    value, reason = REFUSED[name]
    found = list(refusals(message_of(value)))
    assert any(reason in text for text in found), found


@pytest.mark.sweep(2)
@pytest.mark.envoy
@pytest.mark.parametrize("name", REFUSED)
def test_a_real_envoy_refuses_it_too(name: str, tmp_path: Path) -> None:
    assert complaints(tmp_path, [message_of(REFUSED[name][0]).SerializeToString()])


@pytest.mark.envoy
def test_what_a_real_envoy_takes_is_not_refused(tmp_path: Path) -> None:
    messages = [message_of(value) for value in TAKEN]
    assert [list(refusals(message)) for message in messages] == [[]] * len(messages)
    assert complaints(tmp_path, [message.SerializeToString() for message in messages]) == ""


def test_commands_of_foreign_formatters_are_not_judged() -> None:
    foreign = {"name": "a", "typed_config": {"@type": "type.googleapis.com/google.protobuf.Empty"}}
    assert not list(refusals(message_of(logs(STDOUT, log_format=line(BAD, formatters=[foreign])))))


@pytest.mark.parametrize("text", ["%" * 100_000, "%REQ(" * 20_000, "%REQ(a)%" * 12_000, "%CEL(" * 20_000])
def test_hostile_sizes_take_linear_time(text: str) -> None:
    message = message_of(logs(STDOUT, log_format=line(text)))
    started = time.process_time()
    list(refusals(message))
    assert time.process_time() - started < 2
