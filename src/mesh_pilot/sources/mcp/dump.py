"""The current content of a configuration server, for ``mcp dump``: read once, not validated."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping

import attrs
import betterproto2
import trio
import yaml

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig, MeshNetworks
from mesh_pilot.istio.reading.decode_proto import parse_message
from mesh_pilot.istio.reading.encode_json import to_json
from mesh_pilot.model.config import EPOCH
from mesh_pilot.net.rpc import open_channel
from mesh_pilot.sources.mcp.negotiation import Negotiation
from mesh_pilot.sources.mcp.sink import Sink
from mesh_pilot.sources.mcp.source import McpServer
from mesh_pilot.xds.mcp.collections import COLLECTIONS, XDS_COLLECTIONS, McpCollection
from mesh_pilot.xds.mcp.messages import McpResource, MessageStream
from mesh_pilot.xds.mcp.wire import Dialect

UNREAD_COLLECTIONS = (
    "k8s/core/v1/namespaces",
    "k8s/extensions/v1beta1/ingresses",
)
"""Collections of a Galley that are not read, shown as bytes. It makes Gateways and VirtualServices of ingresses."""

_SETTINGS: Mapping[type[betterproto2.Message], str] = {MeshConfig: "mesh", MeshNetworks: "meshNetworks"}
"""Mesh-wide settings, by their keys in Istio's ConfigMap."""


@attrs.frozen
class CollectionDump:
    """A server's collections."""

    collections: Mapping[str, tuple[McpResource, ...]]
    """The answered ones, including empty ones."""
    unanswered: tuple[str, ...]
    """Collections not answered in time."""
    not_offered: tuple[str, ...]
    """Collections that the server does not have."""


async def read_once(
    server: McpServer, dialects: tuple[Dialect, ...], names: tuple[str, ...], seconds: float
) -> CollectionDump:
    """Request collections, and wait for answers for at most ``seconds``.

    Raises RpcError if there is no server, GRPCError if it rejects the requests.
    """
    negotiation = Negotiation("dump", names, dialects)
    sink: Sink[McpResource] = Sink(names, incremental=False)

    async def run_stream(stream: MessageStream, dialect: Dialect, missing: frozenset[str]) -> None:
        for request in sink.open(without=missing):
            await stream.send_message(dialect.request(request))
        while sink.unanswered() and (data := await stream.recv_message()) is not None:
            review = sink.receive(dialect.response(data))
            answer = sink.apply(review, {resource.name: resource for resource in review.changed}).answer
            await stream.send_message(dialect.request(answer))

    with trio.move_on_after(seconds):
        async with open_channel(server.address, tls=server.tls, server_hostname=server.server_hostname) as channel:
            await negotiation.run(channel, run_stream)
    unanswered, not_offered = sink.unanswered(), negotiation.not_offered
    answered = [name for name in names if name not in (*not_offered, *unanswered)]
    collections = {name: tuple(a.resource for _, a in sorted(sink.accepted(name).items())) for name in answered}
    return CollectionDump(collections, unanswered, not_offered)


def as_document(collection: str, resource: McpResource) -> Iterator[tuple[str, object]]:
    """The top fields of a resource as a YAML document, in order, as files have them.

    Mesh-wide settings become Istio's ConfigMap. A body that cannot be decoded is shown in base64.
    """
    found = COLLECTIONS.get(collection) or XDS_COLLECTIONS.get(collection)
    settings = _SETTINGS.get(found.message) if found is not None else None
    if settings is not None:
        yield "apiVersion", "v1"
        yield "kind", "ConfigMap"
    elif found is not None and found.kind is not None:
        over_xds = collection in XDS_COLLECTIONS  # whose name has the version: GROUP/VERSION/KIND
        yield "apiVersion", collection.rpartition("/")[0] if over_xds else found.kind.api_versions[0]
        yield "kind", found.kind.name
    namespace, _, name = resource.name.rpartition("/")
    metadata: dict[str, object] = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    if resource.created != EPOCH:
        metadata["creationTimestamp"] = resource.created.isoformat().replace("+00:00", "Z")
    if resource.labels:
        metadata["labels"] = dict(resource.labels)
    if resource.annotations:
        metadata["annotations"] = dict(resource.annotations)
    if resource.version:
        metadata["resourceVersion"] = resource.version
    yield "metadata", metadata
    for field, body in _body(found, resource):
        if settings is not None and field == "spec":
            yield "data", {settings: yaml.safe_dump(body, sort_keys=False, allow_unicode=True)}
        else:
            yield field, body


def _body(found: McpCollection | None, resource: McpResource) -> Iterator[tuple[str, object]]:
    reason = "the type is not known here"
    if found is not None:
        try:
            yield "spec", to_json(parse_message(found.message, resource.body, "", []))
            return
        except ValueError as error:
            reason = str(error)
    yield "unreadable", reason
    yield "type", resource.type_url
    yield "bytes", base64.b64encode(resource.body).decode()
