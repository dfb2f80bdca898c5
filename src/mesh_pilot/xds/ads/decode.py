"""Requests from their protobuf messages.

A request that names everything is large. It mostly equals that of another client, or the last one of the same client,
except for a few bytes: node, version, nonce. A message is the concatenation of its fields (Protocol Buffers,
"Encoding"), so the large part is cut out and decoded once for all clients that send it. A small one, such as an ACK,
is the same from all clients that were sent the same, and is decoded once as it is.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import attrs
from envoy.config.core.v3 import base_pb2
from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf import struct_pb2
from google.protobuf.message import DecodeError

from mesh_pilot.base.protowire import LEN, WireError, value_span
from mesh_pilot.engine.snapshots import WeightedLru
from mesh_pilot.model.bounds import DEFAULT_BOUNDS, BoundError, Bounds, check
from mesh_pilot.model.resource import RESOURCE_TYPES
from mesh_pilot.model.service import Locality
from mesh_pilot.xds.ads.messages import (
    DeltaRequest,
    Node,
    PresentedVersions,
    Request,
    SharedNames,
    SotwRequest,
    Variant,
)

LARGE_REQUEST = 1024
"""Bytes from which on a request is decoded in parts."""

_NAME_LISTS = 2
"""Lists of names that a request may have, each as long as a subscription: names, and the versions a client has."""

_SOTW_VERSION, _SOTW_NODE, _SOTW_NAMES = 0x0A, 0x12, 0x1A
"""Tags of fields of ``DiscoveryRequest``, in the order in which they are written; then the type and the nonce."""
_DELTA_NODE = 0x0A
"""The first field of ``DeltaDiscoveryRequest``."""
_DELTA_NAMES = (0x1A, 0x22, 0x2A)
"""Fields of ``DeltaDiscoveryRequest`` with one name each: subscribed, unsubscribed, and what the client has."""
_SMALL_REQUESTS = 10_000
"""The weight of the small requests that are remembered, each three or so: what came in the last moments."""
_TAIL = 256
"""Bytes at the end of a ``DiscoveryRequest`` within which type and nonce are, unless it is a refusal."""


class Decoder:
    """Decodes the requests of all streams. Mutable state: the latest small ones, decoded, parts of large ones, and
    the last."""

    def __init__(self, bounds: Bounds = DEFAULT_BOUNDS) -> None:
        self._bounds = bounds
        self._names = partial(_only_names, bounds=bounds)
        self._whole_sotw, self._whole_delta = partial(_whole_sotw, bounds=bounds), partial(_delta, bounds=bounds)
        self._cache = WeightedLru()
        self._small = WeightedLru(_SMALL_REQUESTS)
        self._last: tuple[Variant, bytes, Request] | None = None
        """The last request without a node. The next client that was sent the same answers the same: to compare bytes
        costs less than to hash them."""

    def __repr__(self) -> str:
        return f"<Decoder {self._cache!r}>"

    def trim(self) -> int:
        """Forget parts that no client has sent since the last call; returns their size in names."""
        self._last = None
        return self._cache.trim() + self._small.trim()

    def decode(self, data: bytes, variant: Variant) -> Request:
        """Raises google.protobuf.message.DecodeError, UnicodeDecodeError, or BoundError."""
        last = self._last
        if last is not None and last[0] is variant and last[1] == data:
            return last[2]
        request = self.sotw(data) if variant is Variant.SOTW else self.delta(data)
        if request.node is None:
            self._last = variant, data, request
        return request

    def sotw(self, data: bytes) -> SotwRequest:
        """A ``DiscoveryRequest``."""
        bounds = self._bounds
        check(bounds, "max_request_bytes", "bytes in a request", len(data))
        if len(data) >= LARGE_REQUEST:
            start = _field_end(data, _field_end(data, 0, _SOTW_VERSION), _SOTW_NODE)
            end = _names_end(data)
            names = None
            if start < end and data[start] == _SOTW_NAMES:
                names = self._cache.call(self._names, data[start:end])
            if names is not None:
                rest = data[:start] + data[end:]
                check_fields(rest, (_SOTW_NAMES,), bounds)
                message = discovery_pb2.DiscoveryRequest.FromString(rest)
                return _sotw(message, (*names, *message.resource_names) if message.resource_names else names, bounds)
            return _whole_sotw(data, bounds)
        return self._small.call(self._whole_sotw, data)

    def delta(self, data: bytes) -> DeltaRequest:
        """A ``DeltaDiscoveryRequest``."""
        bounds = self._bounds
        check(bounds, "max_request_bytes", "bytes in a request", len(data))
        if len(data) < LARGE_REQUEST:
            return self._small.call(self._whole_delta, data)
        start = _field_end(data, 0, _DELTA_NODE)
        check(bounds, "max_node_bytes", "bytes of the node in a request", start)
        rest = self._cache.call(self._whole_delta, data[start:])
        if not start:
            return rest
        if rest.node is not None:  # the node is in several pieces, which only all together are one
            return _delta(data, bounds)
        return attrs.evolve(rest, node=_delta(data[:start], bounds).node)


def check_fields(data: bytes, names: tuple[int, ...], bounds: Bounds) -> None:
    """Raises BoundError for a request with too many names, or too large without them, before it costs more than a
    look at its fields; DecodeError where those are unreadable. A small request is not looked at."""
    most = bounds.max_node_bytes
    if not most or len(data) <= most:
        return
    found = others = at = 0
    while at < len(data):
        tag, end = data[at], _field_end(data, at, data[at])
        if tag & 7 != LEN or end == at:
            raise DecodeError("it has a field that no request has")
        if tag in names:
            found += 1
        else:
            others += end - at
        at = end
        if bounds.max_names and found > _NAME_LISTS * bounds.max_names:
            raise BoundError("max_names", "names in a request", _NAME_LISTS * bounds.max_names)
        if others > most:
            raise BoundError("max_node_bytes", "bytes of a request besides the names in it", most)


def _whole_sotw(data: bytes, bounds: Bounds) -> SotwRequest:
    check_fields(data, (_SOTW_NAMES,), bounds)
    message = discovery_pb2.DiscoveryRequest.FromString(data)
    return _sotw(message, tuple(message.resource_names), bounds)


def _sotw(message: discovery_pb2.DiscoveryRequest, names: tuple[str, ...], bounds: Bounds) -> SotwRequest:
    return SotwRequest(
        type_url=message.type_url,
        names=names,
        nonce=message.response_nonce,
        version=message.version_info,
        error=_error(message),
        node=_node(message.node, bounds) if message.HasField("node") else None,
    )


def _names_end(data: bytes) -> int:
    """The offset of the type in a request whose last fields are that and perhaps a short nonce; 0 for others."""
    tail = data[-_TAIL:]
    for type_url in RESOURCE_TYPES:
        field = b'"%c%b' % (len(type_url), type_url.encode())
        at = tail.rfind(field)
        if at >= 0:
            return len(data) - len(tail) + at
    return 0


def _only_names(part: bytes, bounds: Bounds) -> tuple[str, ...] | None:
    """The names in a part of a ``DiscoveryRequest``; None where it is not whole fields, or also holds other fields."""
    try:
        check_fields(part, (_SOTW_NAMES,), bounds)
        message = discovery_pb2.DiscoveryRequest.FromString(part)
    except DecodeError:
        return None
    names = SharedNames(message.resource_names)
    message.ClearField("resource_names")
    return None if message.ByteSize() else names


def _field_end(data: bytes, at: int, tag: int) -> int:
    """The offset after the field with this tag, of one byte, that begins at ``at``; ``at`` where another one does."""
    if at >= len(data) or data[at] != tag:
        return at
    try:
        return value_span(data, at + 1, LEN)[1]
    except WireError:
        return at


def _delta(data: bytes, bounds: Bounds) -> DeltaRequest:
    check_fields(data, _DELTA_NAMES, bounds)
    message = discovery_pb2.DeltaDiscoveryRequest.FromString(data)
    return DeltaRequest(
        type_url=message.type_url,
        subscribe=tuple(message.resource_names_subscribe),
        unsubscribe=tuple(message.resource_names_unsubscribe),
        initial_versions=PresentedVersions(message.initial_resource_versions),
        nonce=message.response_nonce,
        error=_error(message),
        node=_node(message.node, bounds) if message.HasField("node") else None,
    )


def _error(message: discovery_pb2.DiscoveryRequest | discovery_pb2.DeltaDiscoveryRequest) -> str | None:
    if not message.HasField("error_detail"):
        return None
    return message.error_detail.message or f"code {message.error_detail.code}, no reason given"


def read_node(data: bytes, bounds: Bounds) -> Node:
    """A ``core.v3.Node`` of bytes. Raises google.protobuf.message.DecodeError, UnicodeDecodeError, or BoundError."""
    check(bounds, "max_node_bytes", "bytes of the node", len(data))
    return _node(base_pb2.Node.FromString(data), bounds)


def _node(message: base_pb2.Node, bounds: Bounds) -> Node:
    locality = message.locality
    texts = (message.id, message.cluster, locality.region, locality.zone, locality.sub_zone)
    check(bounds, "max_name_length", "characters in a string of the node", max(map(len, texts)))
    return Node(
        id=message.id,
        metadata=plain_struct(message.metadata, bounds.max_node_values),
        locality=Locality(locality.region, locality.zone, locality.sub_zone),
        cluster=message.cluster,
        version=_version(message),
        build=_build(message, bounds),
    )


_BUILD_PROPERTIES = ("revision.sha", "build.type", "ssl.version")
"""The properties in ``user_agent_build_version.metadata`` that tell builds of a version apart."""


def _build(message: base_pb2.Node, bounds: Bounds) -> str:
    """The client's name, its version, and where it says more, what tells its build apart."""
    fields = message.user_agent_build_version.metadata.fields
    details = [fields[name].string_value for name in _BUILD_PROPERTIES if name in fields]
    build = " ".join(filter(None, (message.user_agent_name, _version(message), *details)))
    check(bounds, "max_name_length", "characters in the node's build", len(build))
    return build


def _version(message: base_pb2.Node) -> str:
    if message.HasField("user_agent_build_version"):
        build = message.user_agent_build_version.version
        return f"{build.major_number}.{build.minor_number}.{build.patch}"
    return str(message.user_agent_version)


def plain_struct(message: struct_pb2.Struct, most: int = 0) -> dict[str, Any]:
    """A Struct as a dict of plain Python values, at most ``most`` of them; 0: any number. Raises BoundError."""
    return _Plain(most).struct(message)


class _Plain:
    """Converts values and counts them. State: how many so far.

    Texts are interned, because thousands of nodes have most of them in common.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0

    def struct(self, message: struct_pb2.Struct) -> dict[str, Any]:
        self._add(len(message.fields))
        return {sys.intern(key): self._value(value) for key, value in message.fields.items()}

    def _add(self, count: int) -> None:
        self._count += count
        if self._most and self._count > self._most:
            raise BoundError("max_node_values", "values in the node's metadata", self._most)

    def _value(self, value: struct_pb2.Value) -> Any:
        match value.WhichOneof("kind"):
            case "struct_value":
                return self.struct(value.struct_value)
            case "list_value":
                self._add(len(value.list_value.values))
                return [self._value(item) for item in value.list_value.values]
            case "string_value":
                return sys.intern(value.string_value)
            case "number_value":
                return value.number_value
            case "bool_value":
                return value.bool_value
            case _:
                return None
