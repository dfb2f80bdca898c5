"""What callers with a role in some namespaces are told where the answer is about the mesh."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from starlette.requests import Request

from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER, ROUTE
from mesh_pilot.net.rpc import Cardinality, open_channel
from mesh_pilot.ops.access.settings import AccessSettings
from mesh_pilot.ops.api.visitors import VISITOR, Role, Visitor, sees_name
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane

pytestmark = pytest.mark.plane

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
OURS = SERVICE.replace("spec:\n", "spec:\n  exportTo: [.]\n")
SHOP, ALL = "a-token-of-the-shop", "a-token-of-the-mesh"
BANK = SERVICE.replace("shop", "bank").replace("reviews", "ledger").replace("10.0.0.1", "10.0.0.2")
BROKEN = SERVICE.replace("name: reviews", "name: broken").replace("9080", "many")
LIMITS = """
apiVersion: policy.mesh-pilot.io/v1alpha1
kind: GlobalRateLimit
metadata: {name: limits, namespace: shop}
spec: {service: {host: limiter.test, port: 8081}, domain: shop, descriptors: [{entries: [{path: true}]}]}
"""
CLUSTERS = ["outbound|9080||reviews.test", "outbound|9080||ledger.test"]


class Asked:
    """A plane with a proxy in the shop and one in the bank, and questions to it."""

    def __init__(self, client: httpx.AsyncClient, config: Path) -> None:
        self._client = client
        self.config = config

    async def text(self, path: str) -> str:
        return (await self._client.get(path)).text

    async def __call__(self, path: str, token: str = SHOP) -> Any:
        reply = await self._client.get(f"/api/v1{path}", headers={"authorization": f"Bearer {token}"})
        found = reply.json()
        return (found if isinstance(found, dict) else {"items": found}) | {"status": reply.status_code}


@pytest.fixture
async def asked(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Asked]:
    config = tmp_path / "config"
    config.mkdir()
    broken = {"shop-broken": BROKEN, "bank-broken": BROKEN.replace("shop", "bank").replace("reviews", "ledger")}
    for name, text in {"shop": OURS, "bank": BANK, "limits": LIMITS, **broken}.items():
        (config / f"{name}.yaml").write_text(text)
    (tmp_path / "tokens").write_text(f"view:shop {SHOP} shop\nview {ALL} all\n")
    async with AsyncExitStack() as stack:
        access = AccessSettings(token_file=tmp_path / "tokens")
        plane = await stack.enter_async_context(running_plane(config, trust_local=True, access=access))
        for ip, name in (("10.0.0.1", "web.shop"), ("10.0.0.2", "books.bank")):
            node = Node(id=f"sidecar~{ip}~{name}~{name.partition('.')[2]}.svc.cluster.local")
            channel = await stack.enter_async_context(open_channel(plane.addresses.grpc))
            stream = channel.request(ADS, Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse)
            proxy = await stack.enter_async_context(stream)
            for type_url, names in {CLUSTER: [], ENDPOINT: CLUSTERS, LISTENER: [], ROUTE: ["9080"]}.items():
                await proxy.send_message(DiscoveryRequest(type_url=type_url, node=node, resource_names=names))
                sent = await proxy.recv_message()
                assert sent is not None
                given = {"response_nonce": sent.nonce, "version_info": sent.version_info}
                is_refused = type_url == getattr(request, "param", "")
                refused = {"error_detail": {"code": 3, "message": "no"}} if is_refused else {}
                answer = DiscoveryRequest(type_url=type_url, resource_names=names, **given, **refused)
                await proxy.send_message(answer)
        client = httpx.AsyncClient(base_url=f"http://{plane.addresses.http}", trust_env=False, timeout=60)
        yield Asked(await stack.enter_async_context(client), config)


async def test_why_is_for_those_who_may_view_the_proxy_and_follows_to_proxies_that_they_may_view(asked: Asked) -> None:
    own = await asked("/why?proxy=web.shop&to=reviews.test:9080/")
    assert own["status"] == 200 and [each["proxy"] for each in own["destinations"]] == ["web.shop"]
    to_bank = "/why?proxy=web.shop&to=ledger.test:9080/"
    assert [each["proxy"] for each in (await asked(to_bank, ALL))["destinations"]] == ["books.bank"]
    mine = await asked(to_bank)
    assert mine["destinations"] == []
    assert mine["notes"][-1].endswith("is not followed: that needs view in namespace bank")
    theirs = await asked("/why?proxy=books.bank&to=reviews.test:9080/")
    assert (theirs["status"], theirs["error"]) == (403, "this needs view in namespace bank, and shop has view in shop")


@pytest.mark.parametrize("asked", [ROUTE], indirect=True, ids=["proxies refuse routes"])
async def test_rejections_are_those_of_objects_and_proxies_that_one_may_view(asked: Asked) -> None:
    async def refusals(token: str) -> tuple[set[str], set[str]]:
        found = await asked("/rejections", token)
        return {each["object"] for each in found["configs"]}, {each["proxy"] for each in found["proxies"]}

    async def are_told() -> bool:
        return (await refusals(ALL))[1] == {"web.shop", "books.bank"}

    await eventually(are_told, what="both refusals have come")
    assert (await refusals(ALL))[0] == {"ServiceEntry/shop/broken", "ServiceEntry/bank/broken"}
    assert await refusals(SHOP) == ({"ServiceEntry/shop/broken"}, {"web.shop"})


async def test_now_counts_what_one_may_view(asked: Asked) -> None:
    async def totals(token: str) -> dict[str, int]:
        found = (await asked("/now", token))["totals"]
        return {name: found[name] for name in ("proxies", "services", "objects")}

    assert await totals(ALL) == {"proxies": 2, "services": 2, "objects": 3}
    assert await totals(SHOP) == {"proxies": 1, "services": 1, "objects": 2}
    mine = await asked("/now")
    assert mine["sentence"] == "1 cause; traffic keeps the last good configuration."


async def test_a_cause_that_several_namespaces_have_in_common_is_told_to_each_without_the_others(asked: Asked) -> None:
    async def refused(token: str) -> list[str]:
        found = await asked("/now", token)
        return [name for each in found["causes"] if each["state"] == "refused" for name in each["touches"]["names"]]

    async def are_told() -> bool:
        return len(await refused(ALL)) == 2

    await eventually(are_told, what="both objects are refused")
    assert await refused(ALL) == ["ServiceEntry/bank/broken", "ServiceEntry/shop/broken"]
    assert await refused(SHOP) == ["ServiceEntry/shop/broken"]
    assert "bank" not in str(await asked("/now"))


async def test_an_object_of_which_nothing_is_in_force_is_described_as_it_is_refused(asked: Asked) -> None:
    async def is_told() -> bool:
        return (await asked("/describe/object/serviceentry/shop/broken"))["status"] == 200

    await eventually(is_told, what="it is refused")
    found = await asked("/describe/object/serviceentry/shop/broken")
    assert found["summary"].startswith("refused: nothing of it is in force; read from ")
    assert any(each["text"].startswith("spec.ports[0].number: ") for each in found["warnings"])
    assert (await asked("/describe/object/ServiceEntry/bank/broken"))["status"] == 403
    assert (await asked("/describe/object/ServiceEntry/shop/none"))["error"] == (
        "no object ServiceEntry/shop/none is in force or refused"
    )


async def test_an_object_is_described_with_what_only_translators_see_of_it(asked: Asked) -> None:
    found = await asked("/describe/object/GlobalRateLimit/shop/limits")
    assert [(each["code"], each["text"], each["field"]) for each in found["warnings"] if each["code"]] == [
        ("MP0008", "no service limiter.test is known: nothing is limited", "spec.service.host")
    ]


async def test_what_is_held_of_a_source_is_named_as_far_as_one_may_view_it(asked: Asked) -> None:
    for file in asked.config.iterdir():
        file.unlink()

    async def held(path: str, token: str) -> list[str]:
        answer = await asked(path, token)
        rows = [each for each in answer["sources" if path == "/rejections" else "causes"] if each["state"] == "held"]
        return sorted(name for row in rows for name in (row["names"] if "names" in row else row["touches"]["names"]))

    async def is_held() -> bool:
        return bool(await held("/rejections", ALL))

    await eventually(is_held, what="the folder is empty")
    mine = ["GlobalRateLimit/shop/limits", "ServiceEntry/shop/reviews"]
    for path in ("/rejections", "/now"):
        assert await held(path, ALL) == sorted([*mine, "ServiceEntry/bank/ledger"])
        assert await held(path, SHOP) == mine
    told = [await asked(path) for path in ("/now", "/sources", "/status")]
    assert "ledger" not in f"{told} {await asked.text('/ready')}"


async def test_history_tells_by_no_filter_what_is_of_other_namespaces(asked: Asked) -> None:
    assert [each["revision"] for each in (await asked("/history?object=ledger.bank", ALL))["items"]]
    assert (await asked("/history?object=ledger.bank"))["items"] == []
    assert [each["revision"] for each in (await asked("/history?object=reviews.shop"))["items"]]
    assert (await asked("/history?proxy=web.shop"))["status"] == 200
    assert (await asked("/history?proxy=books.bank"))["error"] == (
        "this needs view in namespace bank, and shop has view in shop"
    )


@pytest.mark.parametrize("path", ["ledgr.test", "ledger.test?namespace=shop", "ledger"])
async def test_a_host_that_is_not_there_is_like_none_of_other_namespaces(asked: Asked, path: str) -> None:
    assert "there is ledger.test" in (await asked(f"/describe/service/{path}", ALL))["error"]
    assert (await asked(f"/describe/service/{path}"))["error"].endswith("; none is like it")


@pytest.mark.parametrize(
    ("name", "is_seen"),
    [
        ("VirtualService/shop/reviews", True),
        ("VirtualService/bank/shop", False),
        ("GatewayClass/edge", True),
        ("service/reviews.test/shop", True),
        ("endpoints/shop/bank", False),
        ("secret/shop/edge", True),
        ("secret/bank/shop", False),
        ("health/bank/shop", False),
        ("credential/bank/shop", False),
        ("extension/WasmPlugin/shop/auth", True),
        ("extension/WasmPlugin/bank/auth", False),
        ("module/http://modules.test/ledger.wasm", False),
        ("keys/https://bank.test", False),
        ("addresses/ledger.test", False),
        ("owners/mesh/ledger.test", False),
        ("mesh", True),
        ("", True),
    ],
)
def test_a_name_is_seen_by_those_who_may_view_its_namespace(name: str, is_seen: bool) -> None:
    caller = Visitor("shop", {"shop": Role.VIEW}, "token")
    assert sees_name(Request({"type": "http", VISITOR: caller}))(name) is is_seen
    assert sees_name(Request({"type": "http", VISITOR: Visitor("all", {"*": Role.VIEW}, "token")}))(name)
