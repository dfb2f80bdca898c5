"""Requests from their protobuf messages."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from envoy.config.core.v3 import base_pb2
from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf import struct_pb2

from mesh_pilot.model.service import Locality
from mesh_pilot.xds.messages import DeltaRequest, Node, SotwRequest


@lru_cache(maxsize=64)
def sotw_request(data: bytes) -> SotwRequest:
    """A ``DiscoveryRequest``. Raises google.protobuf.message.DecodeError.

    Clients in the same state send the same bytes, such as the ACK of an endpoint change, which names every assignment.
    """
    message = discovery_pb2.DiscoveryRequest.FromString(data)
    return SotwRequest(
        type_url=message.type_url,
        names=tuple(message.resource_names),
        nonce=message.response_nonce,
        version=message.version_info,
        error=_error(message),
        node=_node(message.node) if message.HasField("node") else None,
    )


def delta_request(data: bytes) -> DeltaRequest:
    """A ``DeltaDiscoveryRequest``. Raises google.protobuf.message.DecodeError."""
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
