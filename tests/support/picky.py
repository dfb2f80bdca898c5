"""A proxy that refuses whatever has a mark, for tests of what the control plane says then."""

from __future__ import annotations

import math
from collections.abc import Sequence

import trio
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from google.protobuf.json_format import ParseDict
from google.rpc.status_pb2 import Status

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.resource import CLUSTER, ROUTE
from mesh_pilot.net.rpc import Cardinality, open_channel
from tests.support.planes import SERVICE

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
MARK = b"odd.test"
ODD = SERVICE.replace("name: reviews", "name: odd").replace("reviews.test", "odd.test")
WORDS = "Error adding/updating cluster(s) outbound|9080||odd.test: no <b>odd.test</b>"


async def proxy(
    address: str,
    *,
    name: str = "web-1",
    ip: str = "10.9.9.9",
    answers: float = math.inf,
    routes: Sequence[str] = (),
    task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED,
) -> None:
    """A proxy that asks for clusters and these route tables, and refuses what has the mark, until the scope that it
    starts with is cancelled; it falls silent after so many answers."""
    kinds = (Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse)
    with trio.CancelScope() as scope:
        async with open_channel(address) as channel, channel.request(ADS, *kinds) as call:
            node = ParseDict(EnvoyNode(name, "shop", ip).to_dict(), Node(user_agent_name="envoy"))
            node.user_agent_build_version.version.major_number = 1
            await call.send_message(DiscoveryRequest(node=node, type_url=CLUSTER))
            if routes:
                await call.send_message(DiscoveryRequest(type_url=ROUTE, resource_names=routes))
            task_status.started(scope)
            while (response := await call.recv_message()) is not None:
                if (answers := answers - 1) < 0:
                    await trio.sleep_forever()
                names = routes if response.type_url == ROUTE else ()
                answer = DiscoveryRequest(
                    type_url=response.type_url, resource_names=names, response_nonce=response.nonce
                )
                if any(MARK in resource.value for resource in response.resources):
                    answer.error_detail.CopyFrom(Status(code=13, message=WORDS))
                await call.send_message(answer)
