"""The values of patches: JSON of Envoy's messages as people write it, made into the messages.

Types of extensions are known by the name in ``@type``, and loaded when they are first named. A ``TypedStruct`` with a
type that is known becomes that type, so that it is checked and can be merged; with any other it stays as it is: it
may be of a filter that only the user's Envoy has.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Iterator, Mapping
from typing import Any

from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.core.v3 import extension_pb2
from envoy.config.listener.v3 import listener_components_pb2, listener_pb2
from envoy.config.route.v3 import route_components_pb2, route_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2
from google.protobuf import any_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import Message
from udpa.type.v1 import typed_struct_pb2 as udpa_typed_struct_pb2
from xds.type.v3 import typed_struct_pb2

from mesh_pilot.api.google.protobuf import Struct, Value
from mesh_pilot.envoy.messages import any_of
from mesh_pilot.envoy.patches.patch import ApplyTo, PatchError

Json = dict[str, Any] | list[Any] | str | float | bool | None

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

TYPED_STRUCTS = {
    f"type.googleapis.com/{c.DESCRIPTOR.full_name}": c
    for c in (typed_struct_pb2.TypedStruct, udpa_typed_struct_pb2.TypedStruct)
}

PACKAGES = frozenset(("cel", "envoy", "google", "opentelemetry", "udpa", "xds"))
"""Where the types of Envoy's API lie: nothing else is ever loaded for a name in a config."""

_PACKAGE = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
_FIELDS_LISTED = re.compile(r"\s*Available Fields.*", re.DOTALL)


def read_value(apply_to: ApplyTo, value: Struct) -> tuple[Message, str]:
    """The message of a patch, and which part of the value it has no field for (empty: it has all).

    Raises PatchError where it is not such a message even without what is not known.
    """
    plain = {key: _plain(item) for key, item in value.fields.items()}
    unknown = sorted(set(_types(plain)) - {url for url in _types(plain) if _load(url)})
    if unknown:
        raise PatchError(
            f"{', '.join(unknown)}: no such type is known; for a filter that only your Envoy has, "
            "write it as a type.googleapis.com/xds.type.v3.TypedStruct"
        )
    message, unread = _parse(plain, MESSAGES[apply_to])
    return message, unread or _resolve_typed_struct(message)


def type_name(type_url: str) -> str:
    """The full name of a message in an Any's URL."""
    return type_url.rpartition("/")[2]


def unpack(value: any_pb2.Any) -> Message:
    """The message in an Any. Raises PatchError where its type is not known or its bytes are not of it."""
    if not _load(value.type_url):
        raise PatchError(f"{type_name(value.type_url)} is of no known type")
    message = _class(value.type_url)()
    try:
        message.ParseFromString(value.value)
    except ValueError as error:
        raise PatchError(f"this is no {type_name(value.type_url)}: {error}") from None
    return message


def _parse(plain: dict[str, Json], kind: type[Message]) -> tuple[Message, str]:
    unread = ""
    try:
        return json_format.ParseDict(plain, kind()), unread
    except json_format.ParseError as error:
        unread = _reason(error)
    try:
        return json_format.ParseDict(plain, kind(), ignore_unknown_fields=True), unread
    except json_format.ParseError as error:
        raise PatchError(_reason(error)) from None


def _reason(error: json_format.ParseError) -> str:
    return _FIELDS_LISTED.sub("", str(error)).strip()


def _resolve_typed_struct(message: Message) -> str:
    """Put the known type in place of a TypedStruct; returns which part it has no field for."""
    owner: Any = message if _has(message, "typed_config") else getattr(message, "transport_socket", None)
    if owner is None or not _has(owner, "typed_config") or owner.typed_config.type_url not in TYPED_STRUCTS:
        return ""
    wrapped = TYPED_STRUCTS[owner.typed_config.type_url].FromString(owner.typed_config.value)
    if not _load(wrapped.type_url):
        return ""
    plain = json_format.MessageToDict(wrapped.value)
    inner, unread = _parse(plain, _class(wrapped.type_url))
    owner.typed_config.CopyFrom(any_of(inner))
    return unread


def _has(message: Message, field: str) -> bool:
    return field in message.DESCRIPTOR.fields_by_name and message.HasField(field)


def _plain(value: Value) -> Json:
    if value.struct_value is not None:
        return {key: _plain(item) for key, item in value.struct_value.fields.items()}
    if value.list_value is not None:
        return [_plain(item) for item in value.list_value.values]
    if value.number_value is not None:
        return int(value.number_value) if value.number_value.is_integer() else value.number_value
    return value.string_value if value.string_value is not None else value.bool_value


def _types(value: Json) -> Iterator[str]:
    """Every ``@type`` in a value."""
    if isinstance(value, dict):
        name = value.get("@type")
        if isinstance(name, str):
            yield name
        for item in value.values():
            yield from _types(item)
    elif isinstance(value, list):
        for item in value:
            yield from _types(item)


def _class(type_url: str) -> type[Message]:
    pool = descriptor_pool.Default()
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(type_name(type_url)))


def _load(type_url: str) -> bool:
    """Whether a type is known; modules that may hold it are loaded.

    Envoy's modules lie in folders named after the packages of the messages in them.
    """
    name = type_name(type_url)
    if _found(name):
        return True
    package = name.rpartition(".")[0]
    if not _PACKAGE.fullmatch(package) or package.partition(".")[0] not in PACKAGES:
        return False
    try:
        spec = importlib.util.find_spec(package)
    except ImportError:
        return False
    for module in pkgutil.iter_modules(spec.submodule_search_locations or [] if spec else []):
        if module.name.endswith("_pb2"):
            importlib.import_module(f"{package}.{module.name}")
    return _found(name)


def _found(name: str) -> bool:
    try:
        descriptor_pool.Default().FindMessageTypeByName(name)
    except KeyError:
        return False
    return True
