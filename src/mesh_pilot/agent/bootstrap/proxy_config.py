"""Istio's ProxyConfig as plain data: read from YAML, decoded from the control plane's bytes, and merged.

The fields are a table (``proxy_config.json``, made by ``tools/gen_proxy_config.py`` from the descriptors), which costs
an agent 0.1 MB where the generated messages would cost it 8. The same table serves both ways in, so that what is
written here and what is sent from there are of one form when they are merged. Reading reports each mistake with its
path and keeps the rest; decoding refuses the whole, because bytes with one wrong field are not a ProxyConfig.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import attrs

from mesh_pilot.base.protowire import FIXED64, VARINT, WireError, fields, read_varint
from mesh_pilot.istio.meaning.durations import describe, read_duration, write_duration

METADATA = "proxyMetadata"
AT_THE_PLANE = ("tracing", "gatewayTopology", "proxyHeaders", "connectionSettings")
"""Fields that the control plane reads in the node's metadata."""
_LONGEST_SECONDS = 315_576_000_000
"""The longest ``google.protobuf.Duration``."""
_EXPECTED = {
    "text": "a string",
    "int": "a whole number",
    "double": "a number",
    "bool": "true or false",
    "duration": "a duration",
    "texts": "an object of strings",
    "opaque": "an object",
    "object": "an object",
}


def _fields(table: Mapping[str, Any]) -> Mapping[str, ProxyConfigField]:
    return {name: ProxyConfigField(**field) for name, field in table.items()}


@attrs.frozen
class ProxyConfigField:
    """A field as the table has it."""

    number: int
    kind: str
    """A key of ``_EXPECTED``, or ``name`` for an enumeration. ``opaque``: an object that is not looked into here."""
    wrapped: bool = False
    """True for a scalar within a message such as ``BoolValue``."""
    repeated: bool = False
    names: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    """The names of an enumeration, by number."""
    oneof: str = ""
    fields: Mapping[str, ProxyConfigField] = attrs.field(factory=dict[str, Any], converter=_fields)


def _table(message: str) -> Any:
    return json.loads(Path(__file__).with_name("proxy_config.json").read_bytes())[message]


def bootstrap_fields() -> list[str]:
    """The names of the fields of Envoy's Bootstrap."""
    found: list[str] = _table("Bootstrap")
    return found


PROXY_CONFIG = _fields(_table("ProxyConfig"))
LEGACY: Mapping[str, ProxyConfigField] = {"parentShutdownDuration": ProxyConfigField(0, "duration")}
"""Fields of older versions that still have an effect: written in YAML, not sent."""


class Place(Enum):
    """Where a field has its effect."""

    BOOTSTRAP = "Envoy's bootstrap"
    ENVOY = "Envoy's flags"
    AGENT = "the agent"
    PLANE = "the control plane, by node metadata `PROXY_CONFIG`"
    NOWHERE = "nowhere"


@cache
def effects() -> Mapping[str, tuple[Place, str]]:
    """Where each field has an effect, and which."""
    import yaml  # needed only where a ProxyConfig was written, in YAML

    found = yaml.safe_load(Path(__file__).with_name("proxy_config_effects.yaml").read_bytes())
    return {name: (Place[entry["where"]], entry["effect"]) for name, entry in found.items()}


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
    return _read_message(data, {**PROXY_CONFIG, **LEGACY}, "", problems)


def overlay(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of ``over`` replace those of ``base``; ``proxyMetadata`` is merged. So does Istio."""
    merged = {**base, **over}
    if METADATA in base and METADATA in over:
        merged[METADATA] = {**base[METADATA], **over[METADATA]}
    return merged


def effective(annotated: Mapping[str, Any], from_plane: bytes | None, local: Mapping[str, Any]) -> dict[str, Any]:
    """The ProxyConfig in force: what this machine says, over what the control plane says, over the annotation.

    Raises WireError for bytes that are not ProxyConfig.
    """
    return overlay(overlay(annotated, decode(from_plane) if from_plane else {}), local)


def decode(data: bytes) -> dict[str, Any]:
    """The fields of an encoded ProxyConfig, without objects that only the control plane reads. Raises WireError."""
    return _decode_message(memoryview(data), PROXY_CONFIG)


def decode_field(data: bytes, name: str) -> Any:
    """One field of an encoded ProxyConfig, whatever the others are; None if it is not set. Raises WireError."""
    return _decode_message(memoryview(data), {name: PROXY_CONFIG[name]}).get(name)


def snake(name: str) -> str:
    """A JSON name as protobuf has it."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


# -- what people write


def _read_message(
    data: Mapping[str, Any], message: Mapping[str, ProxyConfigField], path: str, problems: list[FieldProblem]
) -> dict[str, Any]:
    by_name = {**{snake(name): name for name in message}, **{name: name for name in message}}
    found = {}
    for key, value in data.items():
        where = f"{path}.{key}" if path else str(key)
        name = by_name.get(str(key))
        if name is None:
            problems.append(FieldProblem(where, "there is no such field", is_unknown=True, known=tuple(message)))
        elif value is not None:
            try:
                found[name] = _read(value, message[name], where, problems)
            except ValueError as error:
                problems.append(FieldProblem(where, str(error)))
    return found


def _read(value: Any, field: ProxyConfigField, path: str, problems: list[FieldProblem]) -> Any:
    if not field.repeated:
        return _read_one(value, field, path, problems)
    if not isinstance(value, list):
        raise ValueError(f"expected a list, got {describe(value)}")
    return [_read_one(one, field, path, problems) for one in value]


def _read_one(value: Any, field: ProxyConfigField, path: str, problems: list[FieldProblem]) -> Any:
    # As protobuf's JSON has it: a number may be a string of digits, and an enumeration its number.
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    match field.kind:
        case "name":
            if isinstance(value, int) and is_number and 0 <= value < len(field.names):
                return field.names[value]
            if value not in field.names:
                raise ValueError(f"expected one of {', '.join(field.names)}, got {describe(value)}")
            return value
        case "object" if isinstance(value, Mapping):
            return _read_message(value, field.fields, path, problems)
        case "text" if isinstance(value, str):
            return value
        case "int" if isinstance(value, str) and value.isascii() and value.isdigit():
            return int(value)
        case "int" if is_number and 0 <= value < 2**31 and value == int(value):
            return int(value)
        case "double" if is_number and abs(value) < 1e300:
            return float(value)
        case "bool" if isinstance(value, bool):
            return value
        case "duration":
            return write_duration(read_duration(value))
        case "texts" if isinstance(value, Mapping):
            return {str(key): _text(one) for key, one in value.items()}
        case "opaque" if isinstance(value, Mapping):
            return dict(value)
    raise ValueError(f"expected {_EXPECTED[field.kind]}, got {describe(value)}")


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ValueError(f"expected a string, got {describe(value)}")


# -- what the control plane sends


def _decode_message(data: memoryview, message: Mapping[str, ProxyConfigField]) -> dict[str, Any]:
    by_number = {field.number: (name, field) for name, field in message.items()}
    found: dict[str, Any] = {}
    for number, wire_type, start, end in fields(data):
        name, field = by_number.get(number, ("", None))
        if field is None or (field.kind == "opaque" and not field.fields):
            continue
        value = _decode(data[start:end], wire_type, field)
        if field.oneof:
            found = {other: each for other, each in found.items() if message[other].oneof != field.oneof}
        if field.repeated:
            found.setdefault(name, []).append(value)
        elif isinstance(value, dict):  # one that comes in parts is one, as everywhere on the wire
            found[name] = {**found.get(name, {}), **value}
        else:
            found[name] = value
    return found


def _decode(content: memoryview, wire_type: int, field: ProxyConfigField) -> Any:
    match field.kind:
        case "object" | "opaque":
            return _decode_message(content, field.fields)
        case "texts":  # the one entry of a map that a field is
            parts = {number: str(content[start:end], "utf-8", "replace") for number, _, start, end in fields(content)}
            return {parts.get(1, ""): parts.get(2, "")}
        case "name":
            number = read_varint(content, 0)[0]
            return field.names[number] if number < len(field.names) else str(number)
        case "text":
            return str(content, "utf-8", "replace")
        case "int" | "bool" if wire_type == VARINT or field.wrapped:
            value = read_varint(content, 0)[0] if not field.wrapped else _first_number(content)
            return bool(value) if field.kind == "bool" else value
        case "double" if wire_type == FIXED64:
            return struct.unpack("<d", content)[0]
        case "duration":
            return _duration(content)
    raise WireError(f"has a field of wire type {wire_type} where {_EXPECTED[field.kind]} is expected")


def _first_number(content: memoryview) -> int:
    return next((read_varint(content, start)[0] for number, _, start, _ in fields(content) if number == 1), 0)


def _duration(content: memoryview) -> str:
    parts = {number: read_varint(content, start)[0] for number, _, start, _ in fields(content)}
    seconds, nanoseconds = parts.get(1, 0), parts.get(2, 0)
    if seconds > _LONGEST_SECONDS or nanoseconds > 999_999_999:
        raise WireError("has a duration that is negative or too long")
    microseconds = nanoseconds // 1000  # finer ones are read nowhere
    fraction = f".{microseconds:06d}".rstrip("0") if microseconds else ""
    return f"{seconds}{fraction}s"
