"""The values of patches: JSON of Envoy's messages as people write it, made into the messages.

A ``TypedStruct`` with a type that is known becomes that type, so that it is checked and can be merged; with any other
it stays as it is: it may be of a filter that only the user's Envoy has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.core.v3 import extension_pb2
from envoy.config.listener.v3 import listener_components_pb2, listener_pb2
from envoy.config.route.v3 import route_components_pb2, route_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2
from google.protobuf import any_pb2, json_format, message_factory
from google.protobuf.message import Message
from udpa.type.v1 import typed_struct_pb2 as udpa_typed_struct_pb2
from xds.type.v3 import typed_struct_pb2

from mesh_pilot.api.google.protobuf import Struct, Value
from mesh_pilot.envoy.core.protobuf import any_of
from mesh_pilot.envoy.envoy_filter.known_types import find_type, unpack
from mesh_pilot.envoy.envoy_filter.patch import ApplyTo, PatchError
from mesh_pilot.envoy.envoy_filter.readable import Json, Object, readable

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
}
"""What the value of a patch is, by what it applies to."""

MAX_DEPTH = 90
"""Messages inside each other. Protobuf decodes at most 100: ten are left for what a value is put into."""

TYPED_STRUCTS = {
    f"type.googleapis.com/{c.DESCRIPTOR.full_name}": c
    for c in (typed_struct_pb2.TypedStruct, udpa_typed_struct_pb2.TypedStruct)
}


def read_value(apply_to: ApplyTo, value: Struct) -> tuple[Message, str]:
    """The message of a patch, and which fields of the value it does not have (empty: it has all).

    Raises PatchError where the rest of it is no such message.
    """
    message, unknown = _parse(_object(value), MESSAGES[apply_to])
    return message, ", ".join([*unknown, *_resolve_typed_struct(message)])


def _parse(value: Object, kind: type[Message]) -> tuple[Message, list[str]]:
    """The message, and which fields of the JSON it does not have. Raises PatchError."""
    message = kind()
    known, unknown = readable(value, message.DESCRIPTOR.full_name, find_type)
    try:
        json_format.ParseDict(known, message)
    except Exception as error:
        # Mostly a ParseError. For odd values the reader raises what it stumbles over (AttributeError, KeyError, ...).
        raise PatchError(str(error) or type(error).__name__) from None
    depth = _depth(message)
    if depth > MAX_DEPTH:
        raise PatchError(
            f"messages are nested {depth} deep; Envoy reads at most {MAX_DEPTH}, beside what is around them"
        )
    return message, unknown


def _depth(message: Message) -> int:
    """How deeply messages are nested, each Any on its own: that is how they are decoded."""
    deepest = 0
    waiting: list[tuple[Message, int]] = [(message, 1)]
    while waiting:
        at, depth = waiting.pop()
        deepest = max(deepest, depth)
        if isinstance(at, any_pb2.Any):
            if at.type_url:
                waiting.append((unpack(at), 1))
            continue
        for field, value in at.ListFields():
            if field.message_type is None:
                continue
            if field.message_type.GetOptions().map_entry:
                if field.message_type.fields_by_name["value"].message_type is not None:
                    waiting.extend((item, depth + 2) for item in value.values())
            else:
                waiting.extend((item, depth + 1) for item in (value if field.is_repeated else (value,)))
    return deepest


def _resolve_typed_struct(message: Message) -> list[str]:
    """Put the known type in place of a TypedStruct; returns which fields it does not have."""
    owner: Any = message if _has(message, "typed_config") else getattr(message, "transport_socket", None)
    if owner is None or not _has(owner, "typed_config") or owner.typed_config.type_url not in TYPED_STRUCTS:
        return []
    wrapped = TYPED_STRUCTS[owner.typed_config.type_url].FromString(owner.typed_config.value)
    kind = find_type(wrapped.type_url)
    if kind is None:
        return []
    inner, unknown = _parse(json_format.MessageToDict(wrapped.value), message_factory.GetMessageClass(kind))
    owner.typed_config.CopyFrom(any_of(inner))
    return unknown


def _has(message: Message, field: str) -> bool:
    return field in message.DESCRIPTOR.fields_by_name and message.HasField(field)


def _object(value: Struct) -> Object:
    return {key: _plain(item) for key, item in value.fields.items()}


def _plain(value: Value) -> Json:
    if value.struct_value is not None:
        return _object(value.struct_value)
    if value.list_value is not None:
        return [_plain(item) for item in value.list_value.values]
    if value.number_value is not None:
        return int(value.number_value) if value.number_value.is_integer() else value.number_value
    return value.string_value if value.string_value is not None else value.bool_value
