"""M1: a sidecar whose port is taken, and clients that refuse on purpose, cost their own. The caller is a real Envoy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from google.protobuf.json_format import ParseDict
from google.rpc.status_pb2 import Status

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.proxy import Interception
from mesh_pilot.model.resource import CLUSTER, LISTENER, ROUTE
from mesh_pilot.net.rpc import Cardinality, open_channel
from tests.support.envoy import eventually
from tests.support.fleet import Fleet, fleet

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(300)]

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
WEB = "web.test"
AT_WEB = "127.0.1.1"
AT_CALLER = "127.0.0.9"
TAKEN = "Error adding/updating listener(s): cannot bind '127.0.1.1:{}': Address already in use"


def web(port: int, ports: list[int]) -> str:
    endpoints = "".join(f"  - {{address: {AT_WEB}, ports: {{http: {each}}}}}\n" for each in ports)
    return f"""
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: web, namespace: shop}}
spec:
  hosts: [{WEB}]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{{number: {port}, name: http, protocol: HTTP}}]
  endpoints:
{endpoints}---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: web, namespace: shop}}
spec:
  hosts: [{WEB}]
  http: [{{route: [{{destination: {{host: {WEB}}}}}], retries: {{attempts: 2, retryOn: "reset,connect-failure"}}}}]
"""


def calling_from(port: int) -> str:
    """The caller listens at its own address, as on its own machine: at 127.0.0.1 the sidecar of the service listens,
    too, and the kernel gives it some of the requests."""
    return f"""---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: default, namespace: other}}
spec:
  egress: [{{port: {{number: {port}, name: http, protocol: HTTP}}, bind: {AT_CALLER}, hosts: ["*/*"]}}]
"""


async def refusing(
    address: str, node: Node, words: str, first: list[str], *, task_status: trio.TaskStatus[bool]
) -> None:
    """A client that refuses whatever speaks of the service, of all types; it wants listeners of all.

    It has started when it has refused something, or has been sent all types without anything to refuse: False.

    It is sent listeners first if it requests these first. Refused listeners lead to a verdict. If it requests
    everything at once, it is sent clusters first; it refuses listeners without the service, too, so that is held.
    """
    kinds = (Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse)
    async with open_channel(address) as channel, channel.request(ADS, *kinds) as call:
        for type_url in first:
            await call.send_message(DiscoveryRequest(node=node, type_url=type_url))
        unseen = {LISTENER, CLUSTER, ROUTE}
        rest = [each for each in (CLUSTER, ROUTE) if each not in first]
        while (response := await call.recv_message()) is not None:
            while rest:
                await call.send_message(DiscoveryRequest(type_url=rest.pop(0)))
            answer = DiscoveryRequest(type_url=response.type_url, response_nonce=response.nonce)
            if any(WEB.encode() in resource.value for resource in response.resources):
                answer.error_detail.CopyFrom(Status(code=13, message=words))
            else:
                answer.version_info = response.version_info
            await call.send_message(answer)
            if unseen and (answer.HasField("error_detail") or unseen == {response.type_url}):
                task_status.started(answer.HasField("error_detail"))
                unseen.clear()
            unseen.discard(response.type_url)


@pytest.mark.parametrize(
    ("delta", "trust_local"), [(True, True), (False, False)], ids=["delta-identity", "sotw-plaintext"]
)
async def test_no_request_of_a_caller_fails_whoever_refuses_the_service(
    tmp_path: Path, free_ports: Callable[[int], list[int]], delta: bool, trust_local: bool
) -> None:
    (port,) = free_ports(1)
    async with fleet(tmp_path, trust_local=trust_local) as at:
        backends = [await at.backend(name, host=AT_WEB) for name in ("one", "two")]
        at.write(web(port, [backend.port for backend in backends]) + calling_from(port))
        caller = EnvoyNode("caller", "other", AT_CALLER, interception=Interception.NONE)
        envoy = await at.envoy(caller, delta=delta)
        url = f"http://{AT_CALLER}:{port}/"
        await at.until_answered_by({"one", "two"}, url, host=WEB)
        async with at.load(url, host=WEB) as load, trio.open_nursery() as nursery:
            refusals = 0
            for number in range(8):
                name = "evil" if number % 2 else f"evil-{number}"
                given = EnvoyNode(name, "shop", AT_WEB, interception=Interception.NONE).to_dict()
                message = ParseDict(given, Node())
                await copy_build(at, message)
                words = TAKEN.format(port) if number < 4 else f"I do not like {WEB}"
                first = [LISTENER] if number % 4 < 2 else [LISTENER, CLUSTER, ROUTE]
                with trio.fail_after(60):
                    refusals += await nursery.start(refusing, at.plane.addresses.grpc, message, words, first)
            keeper = at.plane.state.quarantine
            assert refusals and keeper is not None
            await eventually(lambda: bool(keeper.verdicts()), what="a verdict on the attackers")
            account = {"SERVICE_ACCOUNT": "web"}  # the attackers' own would go without the service from the beginning
            node = EnvoyNode("web", "shop", AT_WEB, interception=Interception.NONE, metadata=account)
            sidecar = await at.envoy(node, delta=delta)
            await eventually(lambda: "Address already in use" in sidecar.log.read_text(), what="its port is taken")
            before = sum(load.answers.values())
            await eventually(lambda: sum(load.answers.values()) > before + 100, what="load continues")
            builds = {c.proxy.build for c in at.plane.state.xds.status.connections() if c.proxy is not None}
            assert len(builds) == 1, "the attackers are what the caller is"
            nursery.cancel_scope.cancel()
        print(f"{sum(load.answers.values())} requests, {len(load.failures)} failed")
        assert load.failures == []
        mine = (await envoy.get("/config_dump?resource=dynamic_active_clusters")).text
        assert f"outbound|{port}||{WEB}" in mine


async def copy_build(at: Fleet, node: Node) -> None:
    """The node says that it is the Envoy that the callers are."""
    known = [c.proxy for c in at.plane.state.xds.status.connections() if c.proxy is not None]
    name, version, *details = known[0].build.split(" ")
    node.user_agent_name = name
    major, minor, patch = (int(part) for part in version.split("."))
    node.user_agent_build_version.version.major_number = major
    node.user_agent_build_version.version.minor_number = minor
    node.user_agent_build_version.version.patch = patch
    for key, detail in zip(("revision.sha", "build.type", "ssl.version"), details, strict=True):
        node.user_agent_build_version.metadata[key] = detail
