"""The names by which a resource refers to others, as Envoy and gRPC request them over ADS."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import attrs
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from mesh_pilot.model.resource import CLUSTER, ENDPOINT, EXTENSION, PREFIX, ROUTE, SECRET, Resource

_NOTHING: frozenset[str] = frozenset()


@attrs.frozen
class References:
    """The names in a resource."""

    by_type: dict[str, frozenset[str]] = attrs.field(factory=dict)
    has_hosts_apart: bool = False
    """True for a route table whose virtual hosts are separate resources."""

    def of(self, type_url: str) -> frozenset[str]:
        return self.by_type.get(type_url, _NOTHING)


def references_of(resource: Resource) -> References:
    """All that a resource names; nothing for one that cannot be read."""
    message = _decoded(resource.type_url, resource.body)
    if message is None:
        return References()
    found: defaultdict[str, set[str]] = defaultdict(set)
    apart = False
    for part in _parts(message):
        match part.DESCRIPTOR.full_name:
            case "envoy.config.cluster.v3.Cluster" if part.type == Cluster.EDS and _is_ads(
                part.eds_cluster_config.eds_config
            ):
                found[ENDPOINT].add(part.eds_cluster_config.service_name or part.name)
            case "envoy.config.route.v3.RouteConfiguration":
                apart = part.HasField("vhds")
            case "envoy.config.route.v3.RouteAction" if part.cluster:
                found[CLUSTER].add(part.cluster)
            case "envoy.config.route.v3.WeightedCluster.ClusterWeight" if part.name:
                found[CLUSTER].add(part.name)
            case "envoy.extensions.filters.network.http_connection_manager.v3.Rds" if _is_ads(part.config_source):
                found[ROUTE].add(part.route_config_name)
            case "envoy.extensions.transport_sockets.tls.v3.SdsSecretConfig" if _is_ads(part.sds_config):
                found[SECRET].add(part.name)
            case (
                "envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter"
                | "envoy.config.listener.v3.Filter"
            ) if _is_ads(part.config_discovery.config_source):
                found[EXTENSION].add(part.name)
    return References({type_url: frozenset(names) for type_url, names in found.items()}, apart)


def _is_ads(source: Any) -> bool:
    return bool(source.WhichOneof("config_source_specifier") == "ads")


def _parts(message: Any) -> Iterator[Any]:
    """A message and all that are within it; those packed in an Any unpacked."""
    if message.DESCRIPTOR.full_name == "google.protobuf.Any":
        unpacked = _decoded(message.type_url, message.value)
        if unpacked is not None:
            yield from _parts(unpacked)
        return
    yield message
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.full_name in _PLAIN:
            continue
        if isinstance(value, Message):
            yield from _parts(value)
        elif field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is not None:
                for each in value.values():
                    yield from _parts(each)
        else:
            for each in value:
                yield from _parts(each)


_PLAIN = frozenset(
    f"google.protobuf.{name}" for name in ("Struct", "Duration", "BoolValue", "UInt32Value", "UInt64Value")
)
"""Messages that have nothing in them that is looked for."""


def _decoded(type_url: str, body: bytes) -> Any:
    """The message, or None for a type that is not known, and for bytes that can't be read."""
    try:
        descriptor = descriptor_pool.Default().FindMessageTypeByName(type_url.removeprefix(PREFIX))
        return GetMessageClass(descriptor).FromString(body)
    except (KeyError, DecodeError):
        return None
