"""A proxy that asks for what an Envoy asks for, and accepts it: clusters with endpoints, listeners with routes.

    plane.start(curious, plane.plane.addresses.grpc, EnvoyNode("web-1", "shop", "10.1.1.1"))

It asks on one stream, each type once it has the one before, and again when new names come up. No traffic passes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import trio
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.core.v3.base_pb2 import Node
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
)
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from google.protobuf.any_pb2 import Any as Packed
from google.protobuf.json_format import ParseDict
from google.rpc.status_pb2 import Status

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER, ROUTE
from mesh_pilot.net.rpc import Cardinality, open_channel
from tests.support.picky import ADS

NEXT: Mapping[str, tuple[str, ...]] = {CLUSTER: (ENDPOINT, LISTENER), LISTENER: (ROUTE,)}
"""The types to ask for after one."""


async def curious(
    address: str,
    node: EnvoyNode,
    *,
    refuses: tuple[bytes, str] = (b"", ""),
    task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Be such a proxy until the scope that it starts with is cancelled; it starts once it has the clusters.

    ``refuses``: resources that have the first in them are refused with the second.
    """
    mark, words = refuses
    kinds = (Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse)
    presented = ParseDict(node.to_dict(), Node(user_agent_name="envoy"))
    presented.user_agent_build_version.version.major_number = 1
    presented.user_agent_build_version.version.minor_number = 40
    asked: dict[str, list[str]] = {CLUSTER: []}
    with trio.CancelScope() as scope:
        async with open_channel(address) as channel, channel.request(ADS, *kinds) as call:
            await call.send_message(DiscoveryRequest(node=presented, type_url=CLUSTER))
            while (response := await call.recv_message()) is not None:
                own = response.type_url
                answer = DiscoveryRequest(type_url=own, resource_names=asked[own], response_nonce=response.nonce)
                if mark and any(mark in each.value for each in response.resources):
                    answer.error_detail.CopyFrom(Status(code=13, message=words))
                    await call.send_message(answer)
                    continue
                answer.version_info = response.version_info
                await call.send_message(answer)
                for type_url in NEXT.get(own, ()):
                    names = sorted(_named(type_url, response.resources))
                    if asked.get(type_url) != names:
                        asked[type_url] = names
                        await call.send_message(DiscoveryRequest(type_url=type_url, resource_names=names))
                if own == CLUSTER:
                    task_status.started(scope)
                    task_status = trio.TASK_STATUS_IGNORED


def _named(type_url: str, resources: Iterable[Packed]) -> Iterator[str]:
    """The names of a type that resources refer to; none where a type is asked for as a whole."""
    for packed in resources:
        if type_url == ENDPOINT:
            cluster = Cluster()
            packed.Unpack(cluster)
            if cluster.type == Cluster.EDS:
                yield cluster.eds_cluster_config.service_name or cluster.name
        elif type_url == ROUTE:
            listener = Listener()
            packed.Unpack(listener)
            filters = (each for chain in listener.filter_chains for each in chain.filters)
            yield from {name for each in filters if (name := _table(each.typed_config))}


def _table(config: Packed) -> str:
    """The route table that a filter asks for; empty if it is another filter, or has its routes."""
    manager = HttpConnectionManager()
    return manager.rds.route_config_name if config.Unpack(manager) else ""
