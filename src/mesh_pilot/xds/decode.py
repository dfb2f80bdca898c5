"""Requests from their protobuf messages.

A request that names all there is, is large, and mostly the same as that of another client, or as the last one of the
same client, but for a few bytes: node, version, nonce. A message is the concatenation of its fields (Protocol Buffers,
"Encoding"), so the large part is cut out, and decoded once for all who send it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import attrs
from envoy.config.core.v3 import base_pb2
from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf import struct_pb2
from google.protobuf.message import DecodeError

from mesh_pilot.model.resource import TYPES
from mesh_pilot.model.service import Locality
from mesh_pilot.xds.messages import DeltaRequest, Node, SotwRequest

LARGE = 1024
"""Bytes of a request from which on it is looked at in parts."""

KEPT = 8
"""Large parts that are kept decoded."""

_SOTW_VERSION, _SOTW_NODE, _SOTW_NAMES = 0x0A, 0x12, 0x1A
"""Tags of fields of ``DiscoveryRequest``, in the order in which they are written; then the type and the nonce."""
_DELTA_NODE = 0x0A
"""The first field of ``DeltaDiscoveryRequest``."""
TAIL = 256
"""Bytes at the end of a ``DiscoveryRequest`` within which type and nonce are, unless it is a refusal."""


def sotw_request(data: bytes) -> SotwRequest:
    """A ``DiscoveryRequest``. Raises google.protobuf.message.DecodeError."""
    if len(data) >= LARGE:
        start = _after(data, _after(data, 0, _SOTW_VERSION), _SOTW_NODE)
        end = _names_end(data)
        if start < end and data[start] == _SOTW_NAMES and (names := _only_names(data[start:end])) is not None:
            rest = discovery_pb2.DiscoveryRequest.FromString(data[:start] + data[end:])
            return _sotw(rest, (*names, *rest.resource_names) if rest.resource_names else names)
    message = discovery_pb2.DiscoveryRequest.FromString(data)
    return _sotw(message, tuple(message.resource_names))


def _sotw(message: discovery_pb2.DiscoveryRequest, names: tuple[str, ...]) -> SotwRequest:
    return SotwRequest(
        type_url=message.type_url,
        names=names,
        nonce=message.response_nonce,
        version=message.version_info,
        error=_error(message),
        node=_node(message.node) if message.HasField("node") else None,
    )


def _names_end(data: bytes) -> int:
    """Where the type begins in a request whose last fields are that and perhaps a short nonce; 0: it is no such."""
    tail = data[-TAIL:]
    for type_url in TYPES:
        field = b'"%c%b' % (len(type_url), type_url.encode())
        at = tail.rfind(field)
        if at >= 0:
            return len(data) - len(tail) + at
    return 0


@lru_cache(maxsize=KEPT)
def _only_names(part: bytes) -> tuple[str, ...] | None:
    """The names in a part of a ``DiscoveryRequest``; None where it is not whole fields, or also holds others."""
    try:
        message = discovery_pb2.DiscoveryRequest.FromString(part)
    except DecodeError:
        return None
    names = tuple(message.resource_names)
    message.ClearField("resource_names")
    return None if message.ByteSize() else names


def delta_request(data: bytes) -> DeltaRequest:
    """A ``DeltaDiscoveryRequest``. Raises google.protobuf.message.DecodeError."""
    if len(data) < LARGE:
        return _delta_request(data)
    start = _after(data, 0, _DELTA_NODE)
    rest = _large_delta_request(data[start:])
    if not start or rest.node is not None:
        return rest if not start else _delta_request(data)
    return attrs.evolve(rest, node=_delta_request(data[:start]).node)


def _after(data: bytes, at: int, tag: int) -> int:
    """Where a field ends that begins here with this tag, of one byte; here, where there is none."""
    if at >= len(data) or data[at] != tag:
        return at
    size = shift = 0
    for place in range(at + 1, min(at + 6, len(data))):
        size |= (data[place] & 0x7F) << shift
        shift += 7
        if data[place] < 0x80:
            end = place + 1 + size
            return end if end <= len(data) else at
    return at


def _delta_request(data: bytes) -> DeltaRequest:
    message = discovery_pb2.DeltaDiscoveryRequest.FromString(data)
    return DeltaRequest(
        type_url=message.type_url,
        subscribe=tuple(message.resource_names_subscribe),
        unsubscribe=tuple(message.resource_names_unsubscribe),
        initial_versions=dict(message.initial_resource_versions),
        nonce=message.response_nonce,
        error=_error(message),
        node=_node(message.node) if message.HasField("node") else None,
    )


_large_delta_request = lru_cache(maxsize=KEPT // 2)(_delta_request)


def _error(message: discovery_pb2.DiscoveryRequest | discovery_pb2.DeltaDiscoveryRequest) -> str | None:
    if not message.HasField("error_detail"):
        return None
    return message.error_detail.message or f"code {message.error_detail.code}, no reason given"


def _node(message: base_pb2.Node) -> Node:
    place = message.locality
    return Node(
        id=message.id,
        metadata=plain_struct(message.metadata),
        locality=Locality(place.region, place.zone, place.sub_zone),
        cluster=message.cluster,
        version=_version(message),
    )


def _version(message: base_pb2.Node) -> str:
    if message.HasField("user_agent_build_version"):
        build = message.user_agent_build_version.version
        return f"{build.major_number}.{build.minor_number}.{build.patch}"
    return str(message.user_agent_version)


def plain_struct(message: struct_pb2.Struct) -> dict[str, Any]:
    """A Struct as a dict of plain Python values."""
    return {key: _plain(value) for key, value in message.fields.items()}


def _plain(value: struct_pb2.Value) -> Any:
    match value.WhichOneof("kind"):
        case "struct_value":
            return plain_struct(value.struct_value)
        case "list_value":
            return [_plain(item) for item in value.list_value.values]
        case "string_value":
            return value.string_value
        case "number_value":
            return value.number_value
        case "bool_value":
            return value.bool_value
        case _:
            return None
