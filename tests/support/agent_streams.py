"""xDS streams as agents and their proxies have them, over a real connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from google.protobuf.json_format import ParseDict

from mesh_pilot.model.resource import HEALTH
from mesh_pilot.net.rpc import Cardinality, Channel, ClientCall, open_channel

ENDPOINTS = "/envoy.service.endpoint.v3.EndpointDiscoveryService/StreamEndpoints"
ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"


def node_of(
    name: str = "web-1",
    *,
    namespace: str = "shop",
    ip: str = "127.0.0.1",
    labels: Mapping[str, str] | None = None,
    locality: str = "",
    **metadata: Any,
) -> Node:
    """The node of a sidecar; further keywords are metadata."""
    node = Node(id=f"sidecar~{ip}~{name}.{namespace}~{namespace}.svc.cluster.local")
    ParseDict({"NAMESPACE": namespace, "LABELS": dict(labels or {}), **metadata}, node.metadata)
    if locality:
        node.locality.region, node.locality.zone = locality.split("/")
    return node


class AdsStream:
    """One stream. State: the names requested last and the last answer, of each type."""

    def __init__(self, call: ClientCall[DiscoveryRequest, DiscoveryResponse], node: Node) -> None:
        self._call = call
        self._node = node
        self._names: dict[str, tuple[str, ...]] = {}
        self.last: dict[str, DiscoveryResponse] = {}

    async def request(self, type_url: str, *names: str) -> None:
        self._names[type_url] = names
        await self._call.send_message(DiscoveryRequest(type_url=type_url, resource_names=names, node=self._node))

    async def answer(self) -> DiscoveryResponse:
        """The next answer, which is accepted."""
        found = await self._call.recv_message()
        assert found is not None, "the stream ended"
        self.last[found.type_url] = found
        accepted = DiscoveryRequest(
            type_url=found.type_url,
            version_info=found.version_info,
            response_nonce=found.nonce,
            resource_names=self._names.get(found.type_url, ()),
        )
        await self._call.send_message(accepted)
        return found

    async def ask(self, type_url: str, *names: str) -> DiscoveryResponse:
        await self.request(type_url, *names)
        found = await self.answer()
        assert found.type_url == type_url
        return found

    async def report(self, error: str | None) -> None:
        """Tell the health of the application: why it is ill, None if it is well."""
        report = DiscoveryRequest(type_url=HEALTH, node=self._node)
        if error is not None:
            report.error_detail.code, report.error_detail.message = 500, error
        await self._call.send_message(report)


@asynccontextmanager
async def ads_stream(
    address: str, node: Node, *, channel: Channel | None = None, method: str = ADS
) -> AsyncIterator[AdsStream]:
    """A stream for the length of the block; on its own connection without ``channel``."""
    if channel is None:
        async with open_channel(address) as own, ads_stream(address, node, channel=own, method=method) as stream:
            yield stream
        return
    async with channel.request(method, Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse) as call:
        yield AdsStream(call, node)
