"""Cloned machines have one hostname: a name that several proxies have is refused with what tells them apart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import attrs
import httpx
import pytest
import trio
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from structlog.testing import capture_logs

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER, ROUTE
from mesh_pilot.net.rpc import Cardinality, open_channel
from mesh_pilot.ops.access.settings import AccessSettings
from tests.support.command import Done, mesh_pilot
from tests.support.planes import SERVICE, running_plane

pytestmark = pytest.mark.plane

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
ASKED_FOR = {CLUSTER: [], ENDPOINT: ["outbound|9080||reviews.test"], LISTENER: [], ROUTE: ["9080"]}
TOKEN = "operator-of-equal-names"


def node(ip: str, name: str = "vm.default") -> str:
    return f"sidecar~{ip}~{name}~default.svc.cluster.local"


@attrs.frozen
class Running:
    plane: ControlPlane
    client: httpx.AsyncClient

    async def get(self, path: str, **query: str) -> httpx.Response:
        return await self.client.get(f"/api/v1{path}", params=query)

    async def disconnect(self, name: str) -> httpx.Response:
        path = f"/api/v1/proxies/{quote(name, safe='')}/disconnect"
        return await self.client.post(path, headers={"authorization": f"Bearer {TOKEN}"})

    async def command(self, *words: str) -> Done:
        return await trio.to_thread.run_sync(lambda: mesh_pilot(*words, "--pilot", self.plane.addresses.http))


@asynccontextmanager
async def with_proxies(folder: Path, *nodes: str) -> AsyncIterator[Running]:
    """A plane with these proxies, which have accepted their clusters, endpoints, listeners and routes."""
    (folder / "config").mkdir()
    (folder / "config" / "a.yaml").write_text(SERVICE)
    (folder / "tokens").write_text(f"operate {TOKEN} tests\n")
    async with AsyncExitStack() as stack:
        access = AccessSettings(token_file=folder / "tokens")
        plane = await stack.enter_async_context(running_plane(folder / "config", trust_local=True, access=access))
        for each in nodes:
            channel = await stack.enter_async_context(open_channel(plane.addresses.grpc))
            request = channel.request(ADS, Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse)
            proxy = await stack.enter_async_context(request)
            for type_url, names in ASKED_FOR.items():
                asked = DiscoveryRequest(type_url=type_url, node=Node(id=each), resource_names=names)
                await proxy.send_message(asked)
                sent = await proxy.recv_message()
                assert sent is not None
                given = {"response_nonce": sent.nonce, "version_info": sent.version_info}
                await proxy.send_message(DiscoveryRequest(type_url=type_url, resource_names=names, **given))
        http = f"http://{plane.addresses.http}"
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=http, headers={"host": "localhost"}, timeout=60)
        )
        yield Running(plane, client)


CLONES = (node("10.0.0.1"), node("10.0.0.2"))


async def test_every_question_about_one_of_several_is_refused_with_the_list_of_them(tmp_path: Path) -> None:
    async with with_proxies(tmp_path, *CLONES) as running:
        for path, query in (
            ("/proxies/vm.default/config_dump", {}),
            ("/proxies/vm.default/resources/CDS", {}),
            ("/proxies/vm.default/resource/CDS", {"resource": "x"}),
            ("/describe/proxy/vm.default", {}),
            ("/describe/proxy/vm", {}),
            ("/why", {"proxy": "vm.default", "to": "reviews.test:9080/"}),
        ):
            answer = await running.get(path, **query)
            assert answer.status_code == 409, path
            assert [each["proxy_id"] for each in answer.json()["proxies"]] == [*CLONES]
            assert all(each in answer.json()["error"] for each in CLONES)
        page = await running.client.get("/debug/config_dump?proxyID=vm.default")
        assert page.status_code == 409
        refused = await running.disconnect("vm.default")
        assert refused.status_code == 409
        assert (await running.disconnect("vm*")).json()["streams"] == 2, "a pattern means all"


@pytest.mark.parametrize("name", [CLONES[1], "10.0.0.2"], ids=["node id", "address"])
async def test_a_node_id_and_an_address_name_one_of_them(tmp_path: Path, name: str) -> None:
    async with with_proxies(tmp_path, *CLONES) as running:
        quoted = quote(name, safe="")
        dump = await running.get(f"/proxies/{quoted}/config_dump")
        assert dump.status_code == 200
        names = [each["cluster"]["name"] for each in dump.json()["configs"][0]["dynamic_active_clusters"]]
        assert len(names) == len(set(names)), "of one proxy, not of both"
        assert (await running.get(f"/describe/proxy/{quoted}")).status_code == 200
        assert (await running.get("/why", proxy=name, to="reviews.test:9080/")).status_code == 200
        ended = await running.disconnect(name)
        assert ended.json() == {"streams": 1, "proxies": ["vm.default"]}


async def test_the_commands_say_so_and_end_with_1(tmp_path: Path) -> None:
    async with with_proxies(tmp_path, *CLONES) as running:
        for words in (
            ("proxy-config", "cluster", "vm.default"),
            ("describe", "proxy", "vm.default"),
            ("why", "reviews.test:9080/", "--from", "vm.default"),
            ("proxy-status", "vm.default", "--diff", "--admin", "127.0.0.1:1"),
        ):
            done = await running.command(*words)
            assert done.code == 1, words
            assert all(each in done.err for each in CLONES), done.err
        assert (await running.command("proxy-config", "cluster", "10.0.0.1")).code == 0
        listed = await running.command("proxy-status", "vm.default")
        assert "2 proxies are called vm.default" in listed.out
        assert all(each in listed.out for each in CLONES)
        one = await running.command("proxy-status", "10.0.0.1")
        assert "are called" not in one.out
        assert one.out.count("vm.default") == 1


async def test_a_name_may_have_a_slash(tmp_path: Path) -> None:
    async with with_proxies(tmp_path, node("10.0.0.1", "a/b.default")) as running:
        for path in ("/proxies/{}/config_dump", "/proxies/{}/resources/CDS", "/describe/proxy/{}"):
            answer = await running.get(path.format(quote("a/b.default", safe="")))
            assert answer.status_code == 200, (path, answer.text)


async def test_the_log_says_it_once(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with with_proxies(tmp_path, *CLONES, node("10.0.0.3"), node("10.0.0.4", "web.default")):
            pass
    (line,) = [each for each in logs if each["event"].startswith("several connected proxies have one name")]
    assert line["name"] == "vm.default"
    assert [each.partition(" ")[0] for each in line["proxies"]] == [*CLONES]
