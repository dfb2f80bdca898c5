"""The values of patches: Envoy's messages from JSON as people write it.

Patches are written for many versions of Envoy and by hand, so reading is lenient where the meaning is clear:

- a field that a message does not have is left out and reported; everything else wrong with a value costs the patch;
- durations may be written as in Go;
- a ``TypedStruct`` with a known type becomes that type, to be checked and merged; with an unknown type it stays as it
  is, since it may be for a filter that only the user's Envoy has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from envoy.config.bootstrap.v3 import bootstrap_pb2
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.core.v3 import extension_pb2
from envoy.config.listener.v3 import listener_components_pb2, listener_pb2
from envoy.config.route.v3 import route_components_pb2, route_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2
from google.protobuf import any_pb2, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from udpa.type.v1 import typed_struct_pb2 as udpa_typed_struct_pb2
from xds.type.v3 import typed_struct_pb2

from mesh_pilot.api.google.protobuf import Struct, Value
from mesh_pilot.envoy.core.protobuf import any_of, find_type, unpack
from mesh_pilot.envoy.envoy_filter.patch import ApplyTo, PatchError
from mesh_pilot.istio.meaning.durations import read_duration, write_duration

Json = dict[str, Any] | list[Any] | str | float | bool | None
JsonObject = dict[str, Any]

MESSAGES: Mapping[ApplyTo, type[Message]] = {
    ApplyTo.LISTENER: listener_pb2.Listener,
    ApplyTo.LISTENER_FILTER: listener_components_pb2.ListenerFilter,
    ApplyTo.FILTER_CHAIN: listener_components_pb2.FilterChain,
    ApplyTo.NETWORK_FILTER: listener_components_pb2.Filter,
    ApplyTo.HTTP_FILTER: http_connection_manager_pb2.HttpFilter,
    ApplyTo.ROUTE_CONFIGURATION: route_pb2.RouteConfiguration,
    ApplyTo.VIRTUAL_HOST: route_components_pb2.VirtualHost,
    ApplyTo.HTTP_ROUTE: route_components_pb2.Route,
    ApplyTo.CLUSTER: cluster_pb2.Cluster,
    ApplyTo.EXTENSION_CONFIG: extension_pb2.TypedExtensionConfig,
    ApplyTo.BOOTSTRAP: bootstrap_pb2.Bootstrap,
}
"""The message type of a patch's value."""

MAX_DEPTH = 90
"""The deepest nesting of messages. Protobuf decodes at most 100; ten are left for what a value is put into."""

TYPED_STRUCTS = {
    f"type.googleapis.com/{c.DESCRIPTOR.full_name}": c
    for c in (typed_struct_pb2.TypedStruct, udpa_typed_struct_pb2.TypedStruct)
}

_ANY = "google.protobuf.Any"
_DURATION = "google.protobuf.Duration"
_PROTOBUF_DURATION = re.compile(r"-?\d+(\.\d{1,9})?s")
_SPECIAL_JSON = "google.protobuf."
"""Types of this package (Struct, Duration, ...) have special JSON forms instead of fields."""


def read_value(apply_to: ApplyTo, value: Struct) -> tuple[Message, str]:
    """The message of a patch, and the fields of the value that it does not have, as text (empty: none).

    Raises PatchError if anything else is wrong with it.
    """
    message, unknown = _parse(_json_object(value), MESSAGES[apply_to])
    return message, ", ".join([*unknown, *_resolve_typed_struct(message)])


def _parse(value: JsonObject, kind: type[Message]) -> tuple[Message, list[str]]:
    """The message, and the paths of JSON fields that it does not have. Raises PatchError."""
    message = kind()
    descriptor = find_type(kind.DESCRIPTOR.full_name)
    assert descriptor is not None
    unknown: list[str] = []
    known = _known_object(value, descriptor, "", unknown)
    try:
        json_format.ParseDict(known, message)
    except Exception as error:
        # Mostly a ParseError, but odd values make the parser raise AttributeError, KeyError and others.
        raise PatchError(str(error) or type(error).__name__) from None
    depth = _depth(message)
    if depth > MAX_DEPTH:
        raise PatchError(
            f"messages are nested {depth} deep; Envoy reads at most {MAX_DEPTH}, next to what is around them"
        )
    return message, unknown


def _depth(message: Message) -> int:
    """The nesting depth of messages. Each Any counts from 1 again, because it is decoded separately."""
    deepest = 0
    pending: list[tuple[Message, int]] = [(message, 1)]
    while pending:
        current, depth = pending.pop()
        deepest = max(deepest, depth)
        if isinstance(current, any_pb2.Any):
            if current.type_url:
                pending.append((unpack(current), 1))
            continue
        for field, value in current.ListFields():
            if field.message_type is None:
                continue
            if field.message_type.GetOptions().map_entry:
                # An entry of a map is a message too: its values are two levels down.
                if field.message_type.fields_by_name["value"].message_type is not None:
                    pending.extend((item, depth + 2) for item in value.values())
            else:
                pending.extend((item, depth + 1) for item in (value if field.is_repeated else (value,)))
    return deepest


def _resolve_typed_struct(message: Message) -> list[str]:
    """Replace a TypedStruct of a known type by that type. Returns the paths of fields that the type does not have."""
    extension: Any = message if _has(message, "typed_config") else getattr(message, "transport_socket", None)
    if extension is None or not _has(extension, "typed_config"):
        return []
    typed_struct = TYPED_STRUCTS.get(extension.typed_config.type_url)
    if typed_struct is None:
        return []
    wrapper = typed_struct.FromString(extension.typed_config.value)
    kind = find_type(wrapper.type_url)
    if kind is None:
        return []
    inner, unknown = _parse(json_format.MessageToDict(wrapper.value), message_factory.GetMessageClass(kind))
    extension.typed_config.CopyFrom(any_of(inner))
    return unknown


def _has(message: Message, field: str) -> bool:
    return field in message.DESCRIPTOR.fields_by_name and message.HasField(field)


def _json_object(value: Struct) -> JsonObject:
    return {key: _json(item) for key, item in value.fields.items()}


def _json(value: Value) -> Json:
    if value.struct_value is not None:
        return _json_object(value.struct_value)
    if value.list_value is not None:
        return [_json(item) for item in value.list_value.values]
    if value.number_value is not None:
        return int(value.number_value) if value.number_value.is_integer() else value.number_value
    return value.string_value if value.string_value is not None else value.bool_value


# -- JSON without the fields that a message does not have


def _known_object(value: JsonObject, kind: Descriptor, path: str, unknown: list[str]) -> JsonObject:
    """A message's JSON as protobuf's parser takes it; adds the paths of fields left out to ``unknown``.

    Raises PatchError for an Any of an unknown type and for an invalid duration.
    """
    known: dict[str, Any] = {}
    if kind.full_name == _ANY:
        if not value:
            return value
        inner = _any_type(value, path)
        if inner.full_name.startswith(_SPECIAL_JSON):
            return value
        known["@type"] = value["@type"]
        value = {name: item for name, item in value.items() if name != "@type"}
        kind = inner
    elif kind.full_name.startswith(_SPECIAL_JSON):
        return value
    fields = {name: f for f in kind.fields for name in (f.name, f.json_name)}
    for name, item in value.items():
        field_path = f"{path}.{name}" if path else name
        field = fields.get(name)
        if field is None:
            unknown.append(f"{field_path} (there is none in {kind.full_name})")
        else:
            known[name] = _known_field(item, field, field_path, unknown)
    return known


def _known_field(value: Json, field: FieldDescriptor, path: str, unknown: list[str]) -> Json:
    kind = field.message_type
    if kind is None:
        return value
    if kind.GetOptions().map_entry:
        entry = kind.fields_by_name["value"]
        if not isinstance(value, dict):
            return value
        return {key: _known_field(item, entry, f"{path}[{key}]", unknown) for key, item in value.items()}
    if field.is_repeated and isinstance(value, list):
        return [_known_message(item, kind, f"{path}[{index}]", unknown) for index, item in enumerate(value)]
    return _known_message(value, kind, path, unknown)


def _known_message(value: Json, kind: Descriptor, path: str, unknown: list[str]) -> Json:
    """JSON of another type than the message's passes: protobuf's parser reports it."""
    if isinstance(value, dict):
        return _known_object(value, kind, path, unknown)
    if isinstance(value, str) and kind.full_name == _DURATION:
        return _protobuf_duration(value, path)
    return value


def _any_type(value: JsonObject, path: str) -> Descriptor:
    type_path = f"{path}.@type" if path else "@type"
    url = value.get("@type")
    if not isinstance(url, str) or not url:
        raise PatchError(
            f"{type_path}: has to be the URL of a type, such as type.googleapis.com/envoy.config.core.v3.Node"
        )
    kind = find_type(url)
    if kind is None:
        raise PatchError(
            f"{type_path}: {url}: no such type is known; for a filter that only your Envoy has, "
            "write it as a type.googleapis.com/xds.type.v3.TypedStruct"
        )
    return kind


def _protobuf_duration(text: str, path: str) -> str:
    """A duration in protobuf's notation, given that or Go's (``500ms``, ``1m30s``)."""
    if _PROTOBUF_DURATION.fullmatch(text):
        return text
    try:
        return write_duration(read_duration(text))
    except ValueError as error:
        raise PatchError(f"{path}: {error}") from None
