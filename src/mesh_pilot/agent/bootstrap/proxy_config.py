"""Istio's ProxyConfig as plain data: read from YAML, decoded from the control plane's bytes, and merged."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from mesh_pilot.agent.bootstrap.proxy_config_fields import (
    LEGACY,
    PROXY_CONFIG,
    FieldKind,
    FieldType,
    Listed,
    Message,
    Named,
)
from mesh_pilot.config.durations import describe, read_duration, write_duration
from mesh_pilot.protowire import FIXED64, VARINT, WireError, fields, read_varint

METADATA = "proxyMetadata"
_LONGEST_SECONDS = 315_576_000_000
"""Of a ``google.protobuf.Duration``."""


@attrs.frozen
class FieldProblem:
    """A mistake in a ProxyConfig: the field's path, such as ``tracing.zipkin``, and the reason."""

    path: str
    reason: str
    is_unknown: bool = False
    """The field does not exist; ``known`` are those that do."""
    known: tuple[str, ...] = ()


def read_proxy_config(data: Mapping[str, Any], problems: list[FieldProblem]) -> dict[str, Any]:
    """The fields that are right, by their names in YAML; both ways to write a name are read, as in protobuf's JSON."""
    legacy = {name: (0, kind) for name, kind in LEGACY.items()}
    return _read_message(data, {**PROXY_CONFIG, **legacy}, "", problems)


def overlay(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of ``over`` replace those of ``base``; ``proxyMetadata`` is merged. So does Istio."""
    merged = {**base, **over}
    if METADATA in base and METADATA in over:
        merged[METADATA] = {**base[METADATA], **over[METADATA]}
    return merged


def effective(annotated: Mapping[str, Any], from_plane: bytes | None, local: Mapping[str, Any]) -> dict[str, Any]:
    """The ProxyConfig in force: what this machine says, over what the control plane says, over the annotation.

    Raises WireError for bytes that are no ProxyConfig.
    """
    return overlay(overlay(annotated, decode(from_plane) if from_plane else {}), local)


def decode(data: bytes) -> dict[str, Any]:
    """The fields of an encoded ProxyConfig, without objects that only the control plane reads. Raises WireError."""
    return _decode_message(memoryview(data), PROXY_CONFIG)


def _read_message(data: Mapping[str, Any], message: Message, path: str, problems: list[FieldProblem]) -> dict[str, Any]:
    by_name = {**{_snake(name): name for name in message}, **{name: name for name in message}}
    found = {}
    for key, value in data.items():
        where = f"{path}.{key}" if path else str(key)
        name = by_name.get(str(key))
        if name is None:
            problems.append(FieldProblem(where, "there is no such field", is_unknown=True, known=tuple(message)))
        elif value is not None:
            try:
                found[name] = _read(value, message[name][1], where, problems)
            except ValueError as error:
                problems.append(FieldProblem(where, str(error)))
    return found


def _read(value: Any, kind: FieldType, path: str, problems: list[FieldProblem]) -> Any:
    if isinstance(kind, Listed):
        if not isinstance(value, list):
            raise ValueError(f"expected a list, got {describe(value)}")
        return [_read(one, kind.kind, path, problems) for one in value]
    if isinstance(kind, Named):
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(kind.names):
            return kind.names[value]
        if value not in kind.names:
            raise ValueError(f"expected one of {', '.join(kind.names)}, got {describe(value)}")
        return value
    if isinstance(kind, Mapping):
        if not isinstance(value, Mapping):
            raise ValueError(f"expected an object, got {describe(value)}")
        return _read_message(value, kind, path, problems)
    return _read_scalar(value, kind)


def _read_scalar(value: Any, kind: FieldKind) -> Any:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    match kind:
        case FieldKind.STRING if isinstance(value, str):
            return value
        case FieldKind.INT | FieldKind.WRAPPED_INT if isinstance(value, str) and value.isascii() and value.isdigit():
            return int(value)
        case FieldKind.INT | FieldKind.WRAPPED_INT if is_number and 0 <= value < 2**31 and value == int(value):
            return int(value)
        case FieldKind.DOUBLE if is_number and abs(value) < 1e300:
            return float(value)
        case FieldKind.BOOL | FieldKind.WRAPPED_BOOL if isinstance(value, bool):
            return value
        case FieldKind.DURATION:
            return write_duration(read_duration(value))
        case FieldKind.TEXTS if isinstance(value, Mapping):
            return {str(key): _text(one) for key, one in value.items()}
        case FieldKind.OPAQUE if isinstance(value, Mapping):
            return dict(value)
    raise ValueError(f"expected {kind.value.removesuffix(', or nothing')}, got {describe(value)}")


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ValueError(f"expected a text, got {describe(value)}")


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def _decode_message(data: memoryview, message: Message) -> dict[str, Any]:
    by_number = {number: (name, kind) for name, (number, kind) in message.items()}
    found: dict[str, Any] = {}
    for number, wire_type, start, end in fields(data):
        name, kind = by_number.get(number, ("", FieldKind.OPAQUE))
        if kind is FieldKind.OPAQUE:
            continue
        content = data[start:end]
        if isinstance(kind, Listed):
            found.setdefault(name, []).append(_decode(content, wire_type, kind.kind))
        elif kind is FieldKind.TEXTS:
            found.setdefault(name, {}).update(_entries(content))
        else:
            found[name] = _decode(content, wire_type, kind)
    return found


def _decode(content: memoryview, wire_type: int, kind: FieldType) -> Any:
    if isinstance(kind, Mapping):
        return _decode_message(content, kind)
    if isinstance(kind, Named):
        number = read_varint(content, 0)[0]
        return kind.names[number] if number < len(kind.names) else str(number)
    match kind:
        case FieldKind.STRING:
            return str(content, "utf-8", "replace")
        case FieldKind.INT | FieldKind.BOOL if wire_type == VARINT:
            value = read_varint(content, 0)[0]
            return bool(value) if kind is FieldKind.BOOL else value
        case FieldKind.WRAPPED_INT | FieldKind.WRAPPED_BOOL:
            value = next((read_varint(content, start)[0] for number, _, start, _ in fields(content) if number == 1), 0)
            return bool(value) if kind is FieldKind.WRAPPED_BOOL else value
        case FieldKind.DOUBLE if wire_type == FIXED64:
            return struct.unpack("<d", content)[0]
        case FieldKind.DURATION:
            return _duration(content)
    raise WireError(f"has a field of wire type {wire_type} where {kind} is expected")


def _duration(content: memoryview) -> str:
    parts = {number: read_varint(content, start)[0] for number, _, start, _ in fields(content)}
    seconds, nanoseconds = parts.get(1, 0), parts.get(2, 0)
    if seconds > _LONGEST_SECONDS or nanoseconds > 999_999_999:
        raise WireError("has a duration that is negative or too long")
    microseconds = nanoseconds // 1000  # finer ones are read nowhere
    fraction = f".{microseconds:06d}".rstrip("0") if microseconds else ""
    return f"{seconds}{fraction}s"


def _entries(content: memoryview) -> Iterator[tuple[str, str]]:
    """The one entry of a map that a field is."""
    parts = {number: str(content[start:end], "utf-8", "replace") for number, _, start, end in fields(content)}
    yield parts.get(1, ""), parts.get(2, "")
