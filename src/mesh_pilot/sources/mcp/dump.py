"""What a server of configuration holds just now, as it sends it: read once, judged by nobody."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping

import attrs
import betterproto2
import trio
import yaml

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig, MeshNetworks
from mesh_pilot.config.plain import plain
from mesh_pilot.config.wire import parse
from mesh_pilot.model.config import EPOCH
from mesh_pilot.rpc import open_channel
from mesh_pilot.sources.mcp.asking import Asking
from mesh_pilot.sources.mcp.collections import COLLECTIONS, XDS_COLLECTIONS, Collection
from mesh_pilot.sources.mcp.intake import Call
from mesh_pilot.sources.mcp.messages import Resource
from mesh_pilot.sources.mcp.sink import Sink
from mesh_pilot.sources.mcp.source import Server
from mesh_pilot.sources.mcp.wire import Dialect

OTHERS = (
    "k8s/core/v1/namespaces",
    "k8s/extensions/v1beta1/ingresses",
)
"""Collections of a Galley that mean nothing here (it makes Gateways and VirtualServices of ingresses itself), and are
shown as bytes."""


_SETTINGS: Mapping[type[betterproto2.Message], str] = {MeshConfig: "mesh", MeshNetworks: "meshNetworks"}
"""Mesh-wide settings, and the key of a ConfigMap under which they stand."""


@attrs.frozen
class Holdings:
    """What a server said that it holds."""

    collections: Mapping[str, tuple[Resource, ...]]
    """Those that were answered, the empty ones too."""
    silent: tuple[str, ...]
    """Those that were asked for and not answered in time."""
    not_offered: tuple[str, ...]
    """Those that the server said it does not have."""


async def read_once(server: Server, dialects: tuple[Dialect, ...], names: tuple[str, ...], seconds: float) -> Holdings:
    """Ask for collections, and wait for answers at most so long.

    Raises RpcError where there is no server, GRPCError where it does not let itself be asked.
    """
    asking = Asking("dump", names, dialects)
    sink: Sink[Resource] = Sink(names, incremental=False)
    with trio.move_on_after(seconds):
        async with open_channel(server.address, tls=server.tls, server_hostname=server.server_hostname) as channel:

            async def converse(call: Call, dialect: Dialect, missing: frozenset[str]) -> None:
                for request in sink.open(without=missing):
                    await call.send_message(dialect.request(request))
                while sink.silent() and (data := await call.recv_message()) is not None:
                    review = sink.receive(dialect.response(data))
                    answer = sink.settle(review, {resource.name: resource for resource in review.fresh}).answer
                    await call.send_message(dialect.request(answer))

            await asking.read(channel, converse)
    answered = [name for name in names if name not in (*asking.not_offered, *sink.silent())]
    held = {name: tuple(a.resource for _, a in sorted(sink.held(name).items())) for name in answered}
    return Holdings(held, tuple(sink.silent()), asking.not_offered)


def shown(collection: str, resource: Resource) -> Iterator[tuple[str, object]]:
    """A resource as an object of YAML, top fields first; bytes in base64 where the body can't be read.

    What can be read has the form in which files have it; mesh-wide settings are those of Istio's ConfigMap.
    """
    found = COLLECTIONS.get(collection) or XDS_COLLECTIONS.get(collection)
    settings = _SETTINGS.get(found.message) if found is not None else None
    if settings is not None:
        yield "apiVersion", "v1"
        yield "kind", "ConfigMap"
    elif found is not None and found.kind is not None:
        yield "apiVersion", found.kind.api_versions[0]
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


def _body(found: Collection | None, resource: Resource) -> Iterator[tuple[str, object]]:
    reason = "the type is not known here"
    if found is not None:
        try:
            yield "spec", plain(parse(found.message, resource.body, "", []))
            return
        except ValueError as error:
            reason = str(error)
    yield "unreadable", reason
    yield "type", resource.type_url
    yield "bytes", base64.b64encode(resource.body).decode()
