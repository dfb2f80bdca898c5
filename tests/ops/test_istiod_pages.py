"""The debug pages by istiod's names, on a control plane with a proxy."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from google.protobuf.json_format import ParseDict
from grpclib.exceptions import GRPCError

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.model.log_levels import SWITCH, LogLevels
from mesh_pilot.model.proxy import Interception
from mesh_pilot.model.resource import CLUSTER, ENDPOINT
from mesh_pilot.net.rpc import Cardinality, open_channel
from mesh_pilot.ops.access.settings import AccessSettings
from mesh_pilot.ops.istiod.pages import ABSENT
from mesh_pilot.xds.ads.messages import Phase
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane

pytestmark = pytest.mark.plane

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
NODE = EnvoyNode("web-1", "shop", "10.0.0.1", interception=Interception.NONE)
TOKEN = "a-token-that-may-operate"
MANUAL = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^- `([\w/?=]+)`: (.*)$", MANUAL[MANUAL.index("## Debug pages by") :], re.MULTILINE))
POLICY = """\
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: nobody, namespace: shop}
spec: {}
"""
MESH = """\
rootNamespace: istio-config
"""


class Proxy:
    """A client that asks for all clusters and the endpoints of one, and counts the responses that it accepts."""

    def __init__(self, plane: ControlPlane) -> None:
        self._address = plane.addresses.grpc
        self.responses: list[str] = []
        self.error = ""

    async def run(self) -> None:
        kinds = (Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse)
        async with open_channel(self._address) as channel, channel.request(ADS, *kinds) as call:
            node = ParseDict(NODE.to_dict(), Node())
            await call.send_message(DiscoveryRequest(node=node, type_url=CLUSTER))
            name = "outbound|9080||reviews.test"
            try:
                while (found := await call.recv_message()) is not None:
                    self.responses.append(found.type_url)
                    names = [name] if found.type_url == ENDPOINT else []
                    await call.send_message(
                        DiscoveryRequest(
                            type_url=found.type_url,
                            version_info=found.version_info,
                            response_nonce=found.nonce,
                            resource_names=names,
                        )
                    )
                    if ENDPOINT not in self.responses:
                        await call.send_message(DiscoveryRequest(type_url=ENDPOINT, resource_names=[name]))
            except GRPCError as error:
                self.error = str(error.message)


@asynccontextmanager
async def watched(folder: Path) -> AsyncIterator[tuple[ControlPlane, Proxy, httpx.AsyncClient]]:
    """A control plane, a proxy that has accepted everything, and a client of the web port."""
    config = folder / "config"
    config.mkdir()
    (config / "a.yaml").write_text(SERVICE + POLICY)
    (folder / "tokens").write_text(f"operate {TOKEN} alice\n")
    (folder / "mesh.yaml").write_text(MESH)
    access = AccessSettings(token_file=folder / "tokens")
    async with (
        running_plane(config, access=access, mesh_config=folder / "mesh.yaml") as plane,
        httpx.AsyncClient(trust_env=False, base_url=f"http://{plane.addresses.http}", timeout=60) as client,
        trio.open_nursery() as nursery,
    ):
        proxy = Proxy(plane)
        nursery.start_soon(proxy.run)

        def is_settled() -> bool:
            types = [each for found in plane.state.xds.status.connections() for each in found.types]
            return len(types) == 2 and all(each.subscription.phase is Phase.ACKED for each in types)

        await eventually(is_settled)
        yield plane, proxy, client
        nursery.cancel_scope.cancel()


async def test_every_page_of_istiod_is_there_or_says_why_not(tmp_path: Path) -> None:
    assert len(ROWS) + len(ABSENT) == 36
    async with watched(tmp_path) as (_, _, client):
        listed = (await client.get("/debug/list")).json()
        assert listed == sorted(ROWS)
        for name, reason in ABSENT.items():
            reply = await client.get(f"/debug/{name}")
            assert (reply.status_code, reply.text) == (404, f"{reason}\n"), name
        for name, row in ROWS.items():
            if name in ("adsz?push=true", "force_disconnect"):
                assert (await client.get(f"/debug/{name}")).status_code == 403
                continue
            with_proxy = "?proxyID=web-1.shop" if "?proxyID=" in row else ""
            reply = await client.get(f"/debug/{name}{with_proxy}")
            assert reply.status_code == 200, name
            reply.json()
        assert (await client.get("/debug/nothing")).status_code == 404
        assert "web-1.shop" in (await client.get("/debug/edsz")).text

        async def page(path: str) -> Any:
            return (await client.get(f"/debug/{path}")).json()

        connections = await page("connections")
        assert (connections["totalClients"], connections["clients"][0]["address"][:10]) == (1, "127.0.0.1:")
        (endpoints,) = (await page("edsz?proxyID=web-1.shop"))["configs"]
        assert endpoints["cluster_name"] == "outbound|9080||reviews.test"
        shards = (await page("endpointShardz"))["reviews.test"]["shop"]["Shards"]
        assert [each["Addresses"] for found in shards.values() for each in found] == [["10.0.0.1"]]
        assert "outbound|9080||reviews.test" in (await page("cachez"))[CLUSTER]
        assert int((await page("cachez?sizes=true"))["total"].removesuffix("B")) > 100
        (targets,) = (await page("instancesz")).values()
        assert [each["Service"]["hostname"] for each in targets] == ["reviews.test"]
        policies = (await page("authorizationz"))["authorization_policies"]
        assert policies["root_namespace"] == "istio-config"
        assert [each["name"] for each in policies["namespace_to_policies"]["shop"]] == ["nobody"]
        assert (await page("mesh"))["rootNamespace"] == "istio-config"
        await scopes_are_read_and_put(client)
        assert {"group": "networking.istio.io", "version": "v1", "kind": "Gateway"} in await page("resourcesz")


async def test_a_full_push_sends_everything_again_and_a_proxy_is_disconnected(tmp_path: Path) -> None:
    token = {"authorization": f"Bearer {TOKEN}"}
    async with watched(tmp_path) as (plane, proxy, client), trio.open_nursery() as nursery:
        assert sorted(proxy.responses) == [CLUSTER, ENDPOINT]
        for method, path in (("POST", "/api/v1/push"), ("GET", "/debug/adsz?push=true")):
            del proxy.responses[:]
            reply = await client.request(method, path, headers=token)
            assert reply.json() == {"streams": 1, "proxies": ["web-1.shop"]}
            await eventually(lambda: len(proxy.responses) == 2)
            assert proxy.responses == [CLUSTER, ENDPOINT]
            assert (await client.get(path, headers={})).status_code in (403, 405), "no order without a token"
        other = await client.post("/api/v1/push?proxy=db-*", headers=token)
        assert other.json()["streams"] == 0
        for method, path in (
            ("POST", "/api/v1/proxies/web-1.shop/disconnect"),
            ("GET", "/debug/force_disconnect?proxyID=web-1.shop"),
        ):
            reply = await client.request(method, path, headers=token)
            assert reply.json()["streams"] == 1
            await eventually(lambda: proxy.error == "an operator ended this stream")
            await eventually(lambda: not [*plane.state.xds.status.proxies()])
            assert (await client.request(method, path, headers=token)).status_code == 404
            proxy.error = ""
            nursery.start_soon(proxy.run)
            await eventually(lambda: [each.proxy for each in plane.state.xds.status.proxies()] not in ([], [None]))
        nursery.cancel_scope.cancel()


async def scopes_are_read_and_put(client: httpx.AsyncClient) -> None:
    SWITCH.begin(LogLevels())
    assert {each["output_level"] for each in (await client.get("/scopez")).json()} == {"info"}
    change = {"name": "xds", "output_level": "debug"}
    assert (await client.put("/scopez", json=change)).status_code == 403
    token = {"authorization": f"Bearer {TOKEN}"}
    put = await client.put("/scopez", json=change, headers=token)
    assert [each["name"] for each in put.json() if each["output_level"] == "debug"] == ["xds"]
    unknown = {"name": "xsd", "output_level": "debug"}
    for wrong in ({"name": "xds"}, unknown, {"name": "a,b", "output_level": "info"}, []):
        assert (await client.put("/scopez", json=wrong, headers=token)).status_code == 400
    SWITCH.begin(LogLevels())
