"""The values of `messages` to and from protobuf, for each way in which a source can be spoken to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from mesh_pilot.api.google.protobuf import Any
from mesh_pilot.api.google.rpc import Status
from mesh_pilot.api.istio.mcp import v1alpha1 as api
from mesh_pilot.model.config import EPOCH
from mesh_pilot.sources.mcp.messages import Code, Refusal, Request, Resource, Response

SOURCE_PATH = "/istio.mcp.v1alpha1.ResourceSource/EstablishResourceStream"
SINK_PATH = "/istio.mcp.v1alpha1.ResourceSink/EstablishResourceStream"
AGGREGATED_PATH = "/istio.mcp.v1alpha1.AggregatedMeshConfigService/StreamAggregatedResources"

RESOURCE_TYPE = "type.googleapis.com/istio.mcp.v1alpha1.Resource"


@attrs.frozen
class SinkNode:
    """Who a sink says it is."""

    id: str
    annotations: Mapping[str, str] = attrs.field(factory=dict, hash=False)


class Dialect(Protocol):
    """How a sink speaks to a source on one stream."""

    @property
    def path(self) -> str:
        """The gRPC method."""

    def name_of(self, collection: str) -> str | None:
        """What the other side calls a collection; None for one that can't be asked for."""

    def request(self, request: Request) -> bytes:
        """A request, encoded."""

    def response(self, data: bytes) -> Response:
        """A response, decoded. Raises ValueError for what is none."""


def decode_resource(resource: api.Resource) -> Resource:
    metadata = resource.metadata or api.Metadata()
    body = resource.body or Any()
    return Resource(
        name=metadata.name,
        version=metadata.version,
        type_url=body.type_url,
        body=body.value,
        created=metadata.create_time or EPOCH,
        labels=metadata.labels,
        annotations=metadata.annotations,
    )


def encode_resource(resource: Resource) -> api.Resource:
    metadata = api.Metadata(
        name=resource.name,
        create_time=None if resource.created == EPOCH else resource.created,
        version=resource.version,
        labels=dict(resource.labels),
        annotations=dict(resource.annotations),
    )
    return api.Resource(metadata=metadata, body=Any(type_url=resource.type_url, value=resource.body))


def encode_status(refusal: Refusal | None) -> Status | None:
    return None if refusal is None else Status(code=refusal.code, message=refusal.message)


def decode_status(status: Status | None) -> Refusal | None:
    """Why something was refused; None for no status, which is no refusal."""
    if status is None:
        return None
    code = Code.UNIMPLEMENTED if status.code == Code.UNIMPLEMENTED else Code.INVALID_ARGUMENT
    return Refusal(code, status.message or f"code {status.code}, no reason given")


@attrs.frozen
class SourceDialect:
    """``ResourceSource``, and ``ResourceSink`` with the roles of client and server exchanged."""

    node: SinkNode
    path: str = SOURCE_PATH

    def name_of(self, collection: str) -> str | None:
        return collection

    def request(self, request: Request) -> bytes:
        return bytes(
            api.RequestResources(
                sink_node=api.SinkNode(id=self.node.id, annotations=dict(self.node.annotations)),
                collection=request.collection,
                initial_resource_versions=dict(request.versions),
                response_nonce=request.nonce,
                error_detail=encode_status(request.error),
                incremental=request.incremental,
            )
        )

    def response(self, data: bytes) -> Response:
        message = api.Resources.FromString(data)
        return Response(
            collection=message.collection,
            resources=tuple(map(decode_resource, message.resources)),
            removed=tuple(message.removed_resources),
            nonce=message.nonce,
            version=message.system_version_info,
            incremental=message.incremental,
        )


@attrs.define
class AggregatedDialect:
    """The older ``AggregatedMeshConfigService``, by whole collections.

    Its incremental method is not used: its responses do not say which collection they are of. Mutable: the version
    last accepted of each collection, which answers must carry.
    """

    node: SinkNode
    names: Mapping[str, str]
    """What the source calls each collection: the same, or in its oldest form the type URL of the bodies."""
    path: str = AGGREGATED_PATH
    _versions: dict[str, str] = attrs.field(factory=dict)
    _pending: dict[str, str] = attrs.field(factory=dict)

    def name_of(self, collection: str) -> str | None:
        return self.names.get(collection)

    def request(self, request: Request) -> bytes:
        if not request.nonce:
            self._versions.pop(request.collection, None)  # a source answers at once only who says to have nothing
        elif request.error is None:
            self._versions[request.collection] = self._pending.get(request.collection, "")
        return bytes(
            api.MeshConfigRequest(
                version_info=self._versions.get(request.collection, ""),
                sink_node=api.SinkNode(id=self.node.id, annotations=dict(self.node.annotations)),
                type_url=self.names.get(request.collection, request.collection),
                response_nonce=request.nonce,
                error_detail=encode_status(request.error),
            )
        )

    def response(self, data: bytes) -> Response:
        message = api.MeshConfigResponse.FromString(data)
        collections = {theirs: ours for ours, theirs in self.names.items()}
        collection = collections.get(message.type_url, message.type_url)
        self._pending[collection] = message.version_info
        resources = tuple(map(decode_resource, message.resources))
        return Response(collection, resources, nonce=message.nonce, version=message.version_info)


def decode_request(data: bytes) -> tuple[Request, SinkNode | None]:
    """A sink's request, and who it says it is, if it does. Raises ValueError for what is none."""
    message = api.RequestResources.FromString(data)
    node = message.sink_node
    request = Request(
        collection=message.collection,
        nonce=message.response_nonce,
        versions=message.initial_resource_versions,
        error=decode_status(message.error_detail),
        incremental=message.incremental,
    )
    return request, SinkNode(node.id, node.annotations) if node is not None else None


def encode_response(response: Response) -> bytes:
    return bytes(
        api.Resources(
            system_version_info=response.version,
            collection=response.collection,
            resources=[encode_resource(resource) for resource in response.resources],
            removed_resources=list(response.removed),
            nonce=response.nonce,
            incremental=response.incremental,
        )
    )


def decode_aggregated_request(data: bytes) -> tuple[Request, SinkNode | None]:
    """The same of a ``MeshConfigRequest``; collections may be called by type URL."""
    message = api.MeshConfigRequest.FromString(data)
    node = message.sink_node
    request = Request(message.type_url, message.response_nonce, error=decode_status(message.error_detail))
    return request, SinkNode(node.id, node.annotations) if node is not None else None


def encode_aggregated_response(response: Response) -> bytes:
    return bytes(
        api.MeshConfigResponse(
            version_info=response.version,
            resources=[encode_resource(resource) for resource in response.resources],
            type_url=response.collection,
            nonce=response.nonce,
        )
    )
