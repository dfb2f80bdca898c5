"""Limits on streams and scopes, through the server: whose a stream is, and who gives way to whom."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest
from google.protobuf.json_format import ParseDict

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.model.bounds import Bounds
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import CLUSTER
from mesh_pilot.model.spiffe import make_identity
from mesh_pilot.net.rpc import Cardinality, ClientCall, GRPCError, Peer, open_channel, open_listeners, serve
from mesh_pilot.xds.ads.admission import StreamPlaces
from mesh_pilot.xds.ads.context import XdsOptions
from mesh_pilot.xds.ads.limits import owner_of
from mesh_pilot.xds.ads.server import RawStream, XdsServer
from tests.support.patience import PATIENT_CLIENT, PATIENT_SERVER
from tests.support.worlds import world_of
from tests.xds.fake_world import FakeWorld

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
Call = ClientCall[bytes, bytes]


async def by_namespace(call: RawStream) -> Callable[[Proxy], Proxy]:
    """As if each caller had shown a token of its namespace; those of ``plain`` show nothing."""

    def admit(proxy: Proxy) -> Proxy:
        if proxy.namespace == "plain":
            return proxy
        identity = make_identity("cluster.local", proxy.namespace, "default")
        assert identity is not None
        return attrs.evolve(proxy, identity=str(identity))

    return admit


@attrs.frozen
class Plane:
    xds: XdsServer
    address: str

    def refused(self) -> dict[str, int]:
        return {name: count for name, count in self.xds.status.totals.exceeded_bounds.items() if count}


@asynccontextmanager
async def plane(**bounds: int) -> AsyncIterator[Plane]:
    world = FakeWorld()
    world.put(CLUSTER, "a")
    catalog = WorldCatalog(world_of())
    options = XdsOptions(bounds=Bounds(**bounds))
    xds = XdsServer(world, identifier="test", options=options, authenticate=by_namespace, scope_of=catalog.scope_of)
    async with trio.open_nursery() as nursery:
        listeners = await open_listeners("127.0.0.1:0")
        server = await nursery.start(partial(serve, xds.services(), listeners, limits=PATIENT_SERVER))
        yield Plane(xds, server.addresses[0])
        nursery.cancel_scope.cancel()
    assert xds.statistics().streams == 0


def node(number: int, namespace: str = "shop", **more: Any) -> dict[str, Any]:
    return {"id": f"sidecar~10.0.0.{number}~web-{number}.{namespace}~{namespace}.svc.cluster.local"} | more


@asynccontextmanager
async def stream(here: Plane, claimed: Mapping[str, Any] | None) -> AsyncIterator[Call]:
    """A stream of a client that says who it is, unless it is silent (None)."""
    async with (
        open_channel(here.address, limits=PATIENT_CLIENT) as channel,
        channel.request(ADS, Cardinality.STREAM_STREAM, bytes, bytes) as call,
    ):
        await call.send_request()
        if claimed is not None:
            request = DiscoveryRequest(type_url=CLUSTER, node=ParseDict(claimed, Node()))
            await call.send_message(request.SerializeToString())
        yield call


async def is_served(call: Call) -> str:
    """Empty, or the reason why it is not."""
    with trio.fail_after(60):
        try:
            return "" if await call.recv_message() is not None else "it ended"
        except GRPCError as error:
            return f"{error.status.name}: {error.message}"


async def streams(here: Plane, count: int) -> None:
    with trio.fail_after(60):
        while here.xds.statistics().streams != count:  # noqa: ASYNC110
            await trio.sleep(0.005)


OF_A_WORKLOAD: list[Callable[[int], dict[str, Any]]] = [
    lambda number: node(number),
    lambda number: node(7) | {"id": node(7)["id"].replace("10.0.0.7", f"10.0.1.{number}")},
    lambda number: node(7, cluster=f"web-{number}.shop"),
    lambda number: node(7, metadata={"LABELS": {"app": f"web-{number}", "app.kubernetes.io/instance": f"i{number}"}}),
    lambda number: node(7, metadata={"WORKLOAD_NAME": f"web-{number}"}),
    lambda number: node(7, metadata={"SERVICE_ACCOUNT": "default", "INSTANCE_IPS": f"10.0.0.7,10.1.0.{number}"}),
    lambda number: node(7, metadata={"OWNER": f"kubernetes://apis/apps/v1/namespaces/shop/deployments/web-{number}"}),
]
"""What differs between workloads of one scope."""

OF_A_SCOPE: list[Callable[[int], dict[str, Any]]] = [
    lambda number: node(7) | {"id": f"sidecar~10.0.0.7~web-7.shop~shop-{number}.svc.cluster.local"},
    lambda number: node(7, locality={"region": f"r{number}"}),
    lambda number: node(7, metadata={"NETWORK": f"n{number}"}),
    lambda number: node(7, metadata={"CLUSTER_ID": f"c{number}"}),
]
"""What makes resources that other proxies do not share."""


@pytest.mark.parametrize("claimed", OF_A_WORKLOAD)
async def test_any_number_of_workloads_of_one_scope_are_served_from_one_address(
    claimed: Callable[[int], dict[str, Any]],
) -> None:
    async with plane(max_scopes_per_peer=1) as here, AsyncExitStack() as calls:
        for number in range(4):
            assert await is_served(await calls.enter_async_context(stream(here, claimed(number)))) == ""


@pytest.mark.parametrize("claimed", OF_A_SCOPE)
async def test_scopes_are_counted_by_identity(claimed: Callable[[int], dict[str, Any]]) -> None:
    async with plane(max_scopes_per_peer=2) as here, AsyncExitStack() as calls:
        for number in range(2):
            assert await is_served(await calls.enter_async_context(stream(here, claimed(number)))) == ""
        refused = await is_served(await calls.enter_async_context(stream(here, claimed(2))))
        assert refused == (
            "RESOURCE_EXHAUSTED: scopes (namespaces, DNS domains, localities, ...) claimed by proxies of "
            "spiffe://cluster.local/ns/shop/sa/default: 3, more than the limit of 2 (--max-scopes-per-peer)"
        )
        for number in range(4):  # at the same address, each with another identity
            other = node(number, f"bank-{number}", locality={"region": f"r{number}"})
            assert await is_served(await calls.enter_async_context(stream(here, other))) == ""


async def test_scopes_of_proxies_without_identity_are_counted_by_address() -> None:
    async with plane(max_scopes_per_peer=2) as here, AsyncExitStack() as calls:
        said = [
            await is_served(await calls.enter_async_context(stream(here, node(1, "plain", locality={"region": each}))))
            for each in ("a", "b", "c", "a")
        ]
        assert [each.partition(":")[0] for each in said] == ["", "", "RESOURCE_EXHAUSTED", ""]


async def test_an_identity_with_more_than_half_of_the_streams_gives_way_to_others() -> None:
    """The newest of its streams; more of its own are refused, and whoever has no more than half loses nothing."""
    async with plane(max_streams=4) as here, AsyncExitStack() as calls:
        evil = [await calls.enter_async_context(stream(here, node(number, "evil"))) for number in range(4)]
        assert [await is_served(each) for each in evil] == [""] * 4
        for number, namespace in enumerate(("good", "plain")):
            good = await calls.enter_async_context(stream(here, node(number, namespace)))
            assert await is_served(good) == ""
            assert await is_served(evil.pop()) == (
                "RESOURCE_EXHAUSTED: 4 streams are open (--max-streams): this one has made room for another"
            )
        refused = await calls.enter_async_context(stream(here, node(9, "third")))
        assert await is_served(refused) == "RESOURCE_EXHAUSTED: streams: 5, more than the limit of 4 (--max-streams)"
        assert here.xds.statistics().streams == 4
        assert here.refused() == {"max_streams": 3}


async def test_streams_that_never_say_who_they_are_give_way_first() -> None:
    async with plane(max_streams=3) as here, AsyncExitStack() as calls:
        kept = await calls.enter_async_context(stream(here, node(1, "plain")))
        assert await is_served(kept) == ""
        silent = [await calls.enter_async_context(stream(here, None)) for _ in range(2)]
        await streams(here, 3)
        for number in range(2, 4):
            assert await is_served(await calls.enter_async_context(stream(here, node(number, "plain")))) == ""
        assert {await is_served(each) for each in silent} == {
            "RESOURCE_EXHAUSTED: 3 streams are open (--max-streams): this one has made room for another"
        }
        late = await calls.enter_async_context(stream(here, node(4, "plain")))
        assert (await is_served(late)).startswith("RESOURCE_EXHAUSTED: streams: 4")


async def test_a_certificate_owns_its_streams_alike_before_and_after_their_proxy_is_known() -> None:
    """Else whoever fills all places, half of them with streams that wait to be admitted, would be two with a half."""
    mallory, web = ("spiffe://cluster.local/ns/" + rest for rest in ("evil/sa/mallory", "good/sa/web"))
    places = StreamPlaces(Bounds(max_streams=4))
    of_mallory: Any = SimpleNamespace(peer=Peer(address="127.0.0.1:1", spiffe_ids=(mallory,)))
    of_web: Any = SimpleNamespace(peer=Peer(address="127.0.0.1:2", spiffe_ids=(web,)))
    with ExitStack() as stack:
        held = [stack.enter_context(places.place(of_mallory)) for _ in range(4)]
        for place in held[:2]:
            places.shares.add(place, owner_of(mallory, "127.0.0.1:1"))
        stack.enter_context(places.place(of_web))
        assert [place.cancel_called for place in held].count(True) == 1
        assert len(places) == 4
