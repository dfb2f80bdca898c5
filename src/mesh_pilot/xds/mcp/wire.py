"""The protobuf forms of `messages`, for each gRPC method over which they travel.

A `Dialect` is the client's side: it encodes requests and decodes responses. Functions ``decode_*`` (requests) and
``encode_*`` (responses) are the server's side.

Over xDS, collections are types of ADS (``networking.istio.io/v1alpha3/VirtualService``) with MCP Resources as bodies. A
client asks for them with ``GENERATOR: api`` in its node metadata, as istiod's clients do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TypeAlias

import attrs
from envoy.config.core.v3 import base_pb2
from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf import any_pb2
from google.rpc import status_pb2

from mesh_pilot.api.google.protobuf import Any
from mesh_pilot.api.google.rpc import Status
from mesh_pilot.api.istio.mcp import v1alpha1 as api
from mesh_pilot.model.config import EPOCH
from mesh_pilot.xds.mcp.identity import SinkNode
from mesh_pilot.xds.mcp.messages import ErrorCode, ErrorDetail, McpRequest, McpResource, McpResponse

SOURCE_PATH = "/istio.mcp.v1alpha1.ResourceSource/EstablishResourceStream"
SINK_PATH = "/istio.mcp.v1alpha1.ResourceSink/EstablishResourceStream"
AGGREGATED_PATH = "/istio.mcp.v1alpha1.AggregatedMeshConfigService/StreamAggregatedResources"
_ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService"

_RESOURCE_TYPE_URL = "type.googleapis.com/istio.mcp.v1alpha1.Resource"

API_GENERATOR = "api"
"""``GENERATOR`` in the node metadata of xDS clients that want configuration instead of Envoy resources."""


class Dialect(ABC):
    """The client's encoding of one gRPC method."""

    path: str
    """The gRPC method."""

    def name_of(self, collection: str) -> str | None:
        """The server's name of a collection; None if it cannot be requested."""
        return collection

    @abstractmethod
    def request(self, request: McpRequest) -> bytes: ...

    @abstractmethod
    def response(self, data: bytes) -> McpResponse:
        """A decoded response. Raises ValueError, or what betterproto raises."""


# -- Shared by all methods


def _decode_resource(resource: api.Resource) -> McpResource:
    metadata = resource.metadata or api.Metadata()
    body = resource.body or Any()
    return McpResource(
        name=metadata.name,
        version=metadata.version,
        type_url=body.type_url,
        body=body.value,
        created=metadata.create_time or EPOCH,
        labels=metadata.labels,
        annotations=metadata.annotations,
    )


def _encode_resource(resource: McpResource) -> api.Resource:
    metadata = api.Metadata(
        name=resource.name,
        create_time=None if resource.created == EPOCH else resource.created,
        version=resource.version,
        labels=dict(resource.labels),
        annotations=dict(resource.annotations),
    )
    return api.Resource(metadata=metadata, body=Any(type_url=resource.type_url, value=resource.body))


def _encode_status(error: ErrorDetail | None) -> Status | None:
    return None if error is None else Status(code=error.code, message=error.message)


def _decode_status(status: Status | None) -> ErrorDetail | None:
    """The reason of a NACK; None for an ACK."""
    if status is None:
        return None
    code = ErrorCode.UNIMPLEMENTED if status.code == ErrorCode.UNIMPLEMENTED else ErrorCode.INVALID_ARGUMENT
    return ErrorDetail(code, status.message or f"code {status.code}, no reason given")


@attrs.define
class _AcceptedVersions:
    """The ``version_info`` of requests: the version of the collection that the client accepted last."""

    accepted: dict[str, str] = attrs.field(factory=dict)
    received: dict[str, str] = attrs.field(factory=dict)

    def version_info(self, request: McpRequest) -> str:
        if not request.nonce:
            # Without a version, a server answers the first request at once.
            self.accepted.pop(request.collection, None)
        elif request.error is None:
            self.accepted[request.collection] = self.received.get(request.collection, "")
        return self.accepted.get(request.collection, "")


# -- MCP


@attrs.frozen
class SourceDialect(Dialect):
    """``ResourceSource``, and ``ResourceSink``, where the server dials."""

    node: SinkNode
    path: str = SOURCE_PATH

    def request(self, request: McpRequest) -> bytes:
        return bytes(
            api.RequestResources(
                sink_node=_encode_sink_node(self.node),
                collection=request.collection,
                initial_resource_versions=dict(request.versions),
                response_nonce=request.nonce,
                error_detail=_encode_status(request.error),
                incremental=request.incremental,
            )
        )

    def response(self, data: bytes) -> McpResponse:
        message = api.Resources.FromString(data)
        return McpResponse(
            collection=message.collection,
            resources=tuple(map(_decode_resource, message.resources)),
            removed=tuple(message.removed_resources),
            nonce=message.nonce,
            version=message.system_version_info,
            incremental=message.incremental,
        )


@attrs.define
class AggregatedDialect(Dialect):
    """The older ``AggregatedMeshConfigService``, with whole collections.

    Its incremental method is not used: its responses do not name their collection. Mutable: the accepted versions.
    """

    node: SinkNode
    names: Mapping[str, str]
    """The server's name of each collection: the same, or in the oldest servers the type URL of the bodies."""
    path: str = AGGREGATED_PATH
    _versions: _AcceptedVersions = attrs.field(factory=_AcceptedVersions)

    def name_of(self, collection: str) -> str | None:
        return self.names.get(collection)

    def request(self, request: McpRequest) -> bytes:
        return bytes(
            api.MeshConfigRequest(
                version_info=self._versions.version_info(request),
                sink_node=_encode_sink_node(self.node),
                type_url=self.names.get(request.collection, request.collection),
                response_nonce=request.nonce,
                error_detail=_encode_status(request.error),
            )
        )

    def response(self, data: bytes) -> McpResponse:
        message = api.MeshConfigResponse.FromString(data)
        collections = {theirs: ours for ours, theirs in self.names.items()}
        collection = collections.get(message.type_url, message.type_url)
        self._versions.received[collection] = message.version_info
        resources = tuple(map(_decode_resource, message.resources))
        return McpResponse(collection, resources, nonce=message.nonce, version=message.version_info)


def decode_request(data: bytes) -> tuple[McpRequest, SinkNode | None]:
    """A ``RequestResources`` and, if present, its client's identity. Raises what betterproto raises."""
    message = api.RequestResources.FromString(data)
    request = McpRequest(
        collection=message.collection,
        nonce=message.response_nonce,
        versions=message.initial_resource_versions,
        error=_decode_status(message.error_detail),
        incremental=message.incremental,
    )
    return request, _decode_sink_node(message.sink_node)


def encode_response(response: McpResponse) -> bytes:
    return bytes(
        api.Resources(
            system_version_info=response.version,
            collection=response.collection,
            resources=[_encode_resource(resource) for resource in response.resources],
            removed_resources=list(response.removed),
            nonce=response.nonce,
            incremental=response.incremental,
        )
    )


def decode_aggregated_request(data: bytes) -> tuple[McpRequest, SinkNode | None]:
    """The same for a ``MeshConfigRequest``, whose collection may be a type URL."""
    message = api.MeshConfigRequest.FromString(data)
    request = McpRequest(message.type_url, message.response_nonce, error=_decode_status(message.error_detail))
    return request, _decode_sink_node(message.sink_node)


def encode_aggregated_response(response: McpResponse) -> bytes:
    return bytes(
        api.MeshConfigResponse(
            version_info=response.version,
            resources=[_encode_resource(resource) for resource in response.resources],
            type_url=response.collection,
            nonce=response.nonce,
        )
    )


def _encode_sink_node(node: SinkNode) -> api.SinkNode:
    return api.SinkNode(id=node.id, annotations=dict(node.annotations))


def _decode_sink_node(node: api.SinkNode | None) -> SinkNode | None:
    return SinkNode(node.id, node.annotations) if node is not None else None


# -- xDS


@attrs.define
class SotwDialect(Dialect):
    """ADS, State of the World. Mutable: the accepted versions."""

    node: SinkNode
    path: str = f"{_ADS}/StreamAggregatedResources"
    _versions: _AcceptedVersions = attrs.field(factory=_AcceptedVersions)

    def request(self, request: McpRequest) -> bytes:
        message = discovery_pb2.DiscoveryRequest(
            version_info=self._versions.version_info(request),
            node=_encode_xds_node(self.node),
            type_url=request.collection,
            response_nonce=request.nonce,
            error_detail=_encode_xds_status(request.error),
        )
        return bytes(message.SerializeToString())

    def response(self, data: bytes) -> McpResponse:
        message = discovery_pb2.DiscoveryResponse.FromString(data)
        self._versions.received[message.type_url] = message.version_info
        resources = tuple(map(_decode_any, message.resources))
        return McpResponse(message.type_url, resources, nonce=message.nonce, version=message.version_info)


@attrs.frozen
class DeltaDialect(Dialect):
    """ADS, Delta, with a wildcard subscription to each type."""

    node: SinkNode
    path: str = f"{_ADS}/DeltaAggregatedResources"

    def request(self, request: McpRequest) -> bytes:
        message = discovery_pb2.DeltaDiscoveryRequest(
            node=_encode_xds_node(self.node),
            type_url=request.collection,
            response_nonce=request.nonce,
            initial_resource_versions=dict(request.versions),
            error_detail=_encode_xds_status(request.error),
        )
        return bytes(message.SerializeToString())

    def response(self, data: bytes) -> McpResponse:
        message = discovery_pb2.DeltaDiscoveryResponse.FromString(data)
        return McpResponse(
            message.type_url,
            tuple(_decode_any(r.resource, r.name, r.version) for r in message.resources),
            tuple(message.removed_resources),
            message.nonce,
            message.system_version_info,
            incremental=True,
        )


def decode_sotw(data: bytes) -> tuple[McpRequest, SinkNode | None]:
    """A ``DiscoveryRequest``. Resource names are ignored: a request is for the whole type."""
    message = discovery_pb2.DiscoveryRequest.FromString(data)
    request = McpRequest(message.type_url, message.response_nonce, error=_decode_xds_status(message))
    return request, _decode_xds_node(message)


def decode_delta(data: bytes) -> tuple[McpRequest, SinkNode | None]:
    """A ``DeltaDiscoveryRequest``. Resource names are ignored: a request is for the whole type."""
    message = discovery_pb2.DeltaDiscoveryRequest.FromString(data)
    versions: Mapping[str, str] = dict(message.initial_resource_versions)
    error = _decode_xds_status(message)
    request = McpRequest(message.type_url, message.response_nonce, versions, error, incremental=True)
    return request, _decode_xds_node(message)


def encode_sotw(response: McpResponse) -> bytes:
    message = discovery_pb2.DiscoveryResponse(
        version_info=response.version,
        resources=map(_encode_any, response.resources),
        type_url=response.collection,
        nonce=response.nonce,
    )
    return bytes(message.SerializeToString())


def encode_delta(response: McpResponse) -> bytes:
    resources = [
        discovery_pb2.Resource(name=r.name, version=r.version, resource=_encode_any(r)) for r in response.resources
    ]
    message = discovery_pb2.DeltaDiscoveryResponse(
        system_version_info=response.version,
        resources=resources,
        type_url=response.collection,
        removed_resources=response.removed,
        nonce=response.nonce,
    )
    return bytes(message.SerializeToString())


_XdsRequest: TypeAlias = discovery_pb2.DiscoveryRequest | discovery_pb2.DeltaDiscoveryRequest


def _encode_xds_node(node: SinkNode) -> base_pb2.Node:
    message = base_pb2.Node(id=node.id)
    message.metadata.update({"GENERATOR": API_GENERATOR, **node.annotations})
    return message


def _decode_xds_node(message: _XdsRequest) -> SinkNode | None:
    return SinkNode(message.node.id) if message.HasField("node") else None


def _encode_xds_status(error: ErrorDetail | None) -> status_pb2.Status | None:
    return status_pb2.Status(code=error.code, message=error.message) if error else None


def _decode_xds_status(message: _XdsRequest) -> ErrorDetail | None:
    if not message.HasField("error_detail"):
        return None
    return ErrorDetail(ErrorCode.INVALID_ARGUMENT, message.error_detail.message or "no reason given")


def _decode_any(body: any_pb2.Any, name: str = "", version: str = "") -> McpResource:
    """The resource in an Any: usually an MCP Resource; mesh-wide settings come without that envelope."""
    if body.type_url == _RESOURCE_TYPE_URL:
        found = _decode_resource(api.Resource.FromString(body.value))
        return attrs.evolve(found, name=found.name or name, version=found.version or version)
    return McpResource(name or body.type_url, version, body.type_url, body.value)


def _encode_any(resource: McpResource) -> any_pb2.Any:
    return any_pb2.Any(type_url=_RESOURCE_TYPE_URL, value=bytes(_encode_resource(resource)))
