"""Headers that are added, and other texts with commands such as ``%PROTOCOL%``: access logs, tags of traces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from mesh_pilot.envoy.refusals.extensions import extension_type
from mesh_pilot.envoy.refusals.pairs import Rule, excludes
from mesh_pilot.envoy.telemetry.loggers import FORMATTERS
from mesh_pilot.istio.rules.substitution import format_reason, header_format_reason, log_format_reason

_KNOWN_FORMATTERS = frozenset(config.DESCRIPTOR.full_name for _, config in FORMATTERS.values())


def _check(formatters: Iterable[Any]) -> Callable[[str], str]:
    """The check of a string next to these formatters. Of others than Envoy's own, the commands are not known."""
    types = {extension_type(formatter) for formatter in formatters}
    if not types:
        return format_reason
    return log_format_reason if types <= _KNOWN_FORMATTERS else lambda text: ""


def _format_string(message: Any) -> Iterator[str]:
    check = _check(message.formatters)
    yield from _reasons(check, "text_format", [message.text_format])
    yield from _reasons(check, "text_format_source.inline_string", [message.text_format_source.inline_string])
    for key, value in message.json_format.fields.items():
        yield from _reasons(check, f"json_format.{key}", _texts(value))


def _file_log(message: Any) -> Iterator[str]:
    yield from _reasons(format_reason, "format", [message.format])
    for name in ("json_format", "typed_json_format"):
        for key, value in getattr(message, name).fields.items():
            yield from _reasons(format_reason, f"{name}.{key}", _texts(value))


def _texts(value: Any) -> Iterator[str]:
    """The texts in a value of a Struct."""
    match value.WhichOneof("kind"):
        case "string_value":
            yield value.string_value
        case "struct_value":
            for item in value.struct_value.fields.values():
                yield from _texts(item)
        case "list_value":
            for item in value.list_value.values:
                yield from _texts(item)


def _open_telemetry_log(message: Any) -> Iterator[str]:
    check = _check(message.formatters)
    if message.HasField("body"):
        yield from _open_telemetry_value(check, "body", message.body)
    for item in message.attributes.values:
        yield from _open_telemetry_value(check, f"attributes.{item.key}", item.value)


def _open_telemetry_value(check: Callable[[str], str], path: str, value: Any) -> Iterator[str]:
    match value.WhichOneof("value"):
        case "string_value":
            yield from _reasons(check, path, [value.string_value])
        case "kvlist_value":
            for item in value.kvlist_value.values:
                yield from _open_telemetry_value(check, f"{path}.{item.key}", item.value)
        case "array_value":
            for index, item in enumerate(value.array_value.values):
                yield from _open_telemetry_value(check, f"{path}[{index}]", item)
        case _:
            yield f"{path}: has to be a string, or a list or map of strings"


def _fields(names: tuple[str, ...], message: Any) -> Iterator[str]:
    for name in names:
        yield from _reasons(format_reason, name, [getattr(message, name)])


def _reasons(check: Callable[[str], str], path: str, texts: Iterable[str]) -> Iterator[str]:
    yield from (f"{path}: {reason}" for text in texts if (reason := check(text)))


# -- headers


def is_fixed_header(name: str) -> bool:
    """True if no setting can add, set or remove this header."""
    return name.startswith(":") or name.lower() == "host"


def _header_option(option: Any) -> Iterator[str]:
    yield from _header("header", option.header)
    yield from excludes("append", "append_action")(option)


def _headers(name: str, message: Any) -> Iterator[str]:
    for index, header in enumerate(getattr(message, name)):
        yield from _header(f"{name}[{index}]", header)


def _header(path: str, header: Any) -> Iterator[str]:
    if is_fixed_header(header.key):
        yield f"{path}.key: {header.key[:100]} can't be changed this way"
    yield from _reasons(header_format_reason, f"{path}.value", [header.value])


_OPERATIONS = ("operation", "upstream_operation")
_EXTENSIONS = "envoy.extensions"

RULES: Mapping[str, Rule] = {
    "envoy.config.core.v3.SubstitutionFormatString": _format_string,
    "envoy.config.core.v3.HeaderValueOption": _header_option,
    "envoy.config.core.v3.GrpcService": partial(_headers, "initial_metadata"),
    f"{_EXTENSIONS}.filters.http.ext_authz.v3.AuthorizationRequest": partial(_headers, "headers_to_add"),
    f"{_EXTENSIONS}.access_loggers.file.v3.FileAccessLog": _file_log,
    f"{_EXTENSIONS}.access_loggers.open_telemetry.v3.OpenTelemetryAccessLogConfig": _open_telemetry_log,
    f"{_EXTENSIONS}.filters.network.http_connection_manager.v3.HttpConnectionManager.Tracing": partial(
        _fields, _OPERATIONS
    ),
    f"{_EXTENSIONS}.filters.network.tcp_proxy.v3.TcpProxy.TunnelingConfig": partial(_fields, ("hostname",)),
    "envoy.config.route.v3.Tracing": partial(_fields, _OPERATIONS),
    "envoy.type.tracing.v3.CustomTag": partial(_fields, ("value",)),
}
