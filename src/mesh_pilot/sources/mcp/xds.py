"""MCP over xDS: collections as types of ADS, bodies as MCP Resources, as istiod serves and reads them.

A client says in its node's metadata that it wants ``GENERATOR: api``; types are called ``networking.istio.io/v1alpha3/
VirtualService``. State of the World responses are whole collections; Delta ones are increments.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from envoy.config.core.v3 import base_pb2
from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf import any_pb2
from google.rpc import status_pb2

from mesh_pilot.api.istio.mcp import v1alpha1 as api
from mesh_pilot.sources.mcp.messages import Code, Refusal, Request, Resource, Response
from mesh_pilot.sources.mcp.wire import RESOURCE_TYPE, SinkNode, decode_resource, encode_resource

GENERATOR = "api"
"""What node metadata ``GENERATOR`` says of clients that want configuration instead of Envoy's resources."""

_SERVICE = "/envoy.service.discovery.v3.AggregatedDiscoveryService"


def _node(node: SinkNode) -> base_pb2.Node:
    message = base_pb2.Node(id=node.id)
    message.metadata.update({"GENERATOR": GENERATOR, **node.annotations})
    return message


def _status(refusal: Refusal) -> status_pb2.Status:
    return status_pb2.Status(code=refusal.code, message=refusal.message)


def _resource(body: any_pb2.Any, name: str = "", version: str = "") -> Resource:
    """The resource in an Any: mostly a Resource of MCP; the settings of the mesh come bare."""
    if body.type_url == RESOURCE_TYPE:
        found = decode_resource(api.Resource.FromString(body.value))
        return attrs.evolve(found, name=found.name or name, version=found.version or version)
    return Resource(name or body.type_url, version, body.type_url, body.value)


def _any(resource: Resource) -> any_pb2.Any:
    return any_pb2.Any(type_url=RESOURCE_TYPE, value=bytes(encode_resource(resource)))


@attrs.define
class SotwDialect:
    """A sink on ADS, State of the World. Mutable: the version last accepted of each type, which answers must carry."""

    node: SinkNode
    path: str = f"{_SERVICE}/StreamAggregatedResources"
    _versions: dict[str, str] = attrs.field(factory=dict)
    _pending: dict[str, str] = attrs.field(factory=dict)

    def name_of(self, collection: str) -> str | None:
        return collection

    def request(self, request: Request) -> bytes:
        if not request.nonce:
            self._versions.pop(request.collection, None)
        elif request.error is None:
            self._versions[request.collection] = self._pending.get(request.collection, "")
        message = discovery_pb2.DiscoveryRequest(
            version_info=self._versions.get(request.collection, ""),
            node=_node(self.node),
            type_url=request.collection,
            response_nonce=request.nonce,
            error_detail=_status(request.error) if request.error else None,
        )
        return bytes(message.SerializeToString())

    def response(self, data: bytes) -> Response:
        message = discovery_pb2.DiscoveryResponse.FromString(data)
        self._pending[message.type_url] = message.version_info
        resources = tuple(map(_resource, message.resources))
        return Response(message.type_url, resources, nonce=message.nonce, version=message.version_info)


@attrs.frozen
class DeltaDialect:
    """A sink on Delta ADS. Asks for everything of each type."""

    node: SinkNode
    path: str = f"{_SERVICE}/DeltaAggregatedResources"

    def name_of(self, collection: str) -> str | None:
        return collection

    def request(self, request: Request) -> bytes:
        message = discovery_pb2.DeltaDiscoveryRequest(
            node=_node(self.node),
            type_url=request.collection,
            response_nonce=request.nonce,
            initial_resource_versions=dict(request.versions),
            error_detail=_status(request.error) if request.error else None,
        )
        return bytes(message.SerializeToString())

    def response(self, data: bytes) -> Response:
        message = discovery_pb2.DeltaDiscoveryResponse.FromString(data)
        return Response(
            message.type_url,
            tuple(_resource(r.resource, r.name, r.version) for r in message.resources),
            tuple(message.removed_resources),
            message.nonce,
            message.system_version_info,
            incremental=True,
        )


def decode_sotw(data: bytes) -> tuple[Request, SinkNode | None]:
    """A ``DiscoveryRequest`` for whole types."""
    message = discovery_pb2.DiscoveryRequest.FromString(data)
    return Request(message.type_url, message.response_nonce, error=_refusal(message)), _sink_node(message)


def decode_delta(data: bytes) -> tuple[Request, SinkNode | None]:
    """A ``DeltaDiscoveryRequest`` for whole types."""
    message = discovery_pb2.DeltaDiscoveryRequest.FromString(data)
    versions: Mapping[str, str] = dict(message.initial_resource_versions)
    request = Request(message.type_url, message.response_nonce, versions, _refusal(message), incremental=True)
    return request, _sink_node(message)


def _refusal(message: discovery_pb2.DiscoveryRequest | discovery_pb2.DeltaDiscoveryRequest) -> Refusal | None:
    if not message.HasField("error_detail"):
        return None
    return Refusal(Code.INVALID_ARGUMENT, message.error_detail.message or "no reason given")


def _sink_node(message: discovery_pb2.DiscoveryRequest | discovery_pb2.DeltaDiscoveryRequest) -> SinkNode | None:
    return SinkNode(message.node.id) if message.HasField("node") else None


def encode_sotw(response: Response) -> bytes:
    message = discovery_pb2.DiscoveryResponse(
        version_info=response.version,
        resources=map(_any, response.resources),
        type_url=response.collection,
        nonce=response.nonce,
    )
    return bytes(message.SerializeToString())


def encode_delta(response: Response) -> bytes:
    resources = [discovery_pb2.Resource(name=r.name, version=r.version, resource=_any(r)) for r in response.resources]
    message = discovery_pb2.DeltaDiscoveryResponse(
        system_version_info=response.version,
        resources=resources,
        type_url=response.collection,
        removed_resources=response.removed,
        nonce=response.nonce,
    )
    return bytes(message.SerializeToString())
