"""What a client accepts and does not use: seen on its stream, or told by its agent, shown after ten seconds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from envoy.config.core.v3.base_pb2 import Node as NodeMessage
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
)
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest, DiscoveryRequest
from google.protobuf.struct_pb2 import Struct
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from mesh_pilot.model.resource import CLUSTER, LISTENER, ROUTE, SECRET, WARMING, make_resource
from mesh_pilot.model.warming import Awaited, WaitKind, WarmingResource, encode_report, read_report
from mesh_pilot.xds.ads.context import SessionContext
from mesh_pilot.xds.ads.decode import Decoder
from mesh_pilot.xds.ads.encode import Encoder
from mesh_pilot.xds.ads.messages import Nack, Variant
from mesh_pilot.xds.ads.observers import NO_ANSWER_OBSERVER
from mesh_pilot.xds.ads.session import Session
from mesh_pilot.xds.ads.status import StatusRegistry
from mesh_pilot.xds.ads.warming import NOT_IN_USE
from tests.xds.fake_world import FakeWorld
from tests.xds.test_xds_session import OPTIONS, Client

NODE_ID = "sidecar~10.1.1.1~web-1.shop~shop.svc.cluster.local"
WARMS = WarmingResource(LISTENER, "web", "", (Awaited(WaitKind.SDS, "of-another-server"),))


class Answers(type(NO_ANSWER_OBSERVER)):  # type: ignore[misc]
    """What quarantine would be told."""

    def __init__(self) -> None:
        self.told: list[Nack] = []

    def warms(self, client: int, nack: Nack) -> None:
        self.told.append(nack)


class Watched(Client):
    """A client whose plane may have a second one: its agent."""

    def __init__(self, world: FakeWorld, variant: Variant, registry: StatusRegistry, *, agent: bool = False) -> None:
        super().__init__(world, variant)
        self.registry, self.answers = registry, Answers()
        metadata = Struct()
        if agent:
            metadata.update({"AGENT": "1.2.3"})
        self._node = NodeMessage(id=NODE_ID, metadata=metadata)
        self.connection = registry.connect(variant, "test")
        self.session = Session(
            self,
            SessionContext(
                catalog=world,
                decoder=Decoder(OPTIONS.bounds),
                encoder=Encoder("test"),
                registry=registry,
                options=OPTIONS,
                answers=self.answers,
            ),
            self.connection,
        )
        self.variant = variant

    def shown(self) -> list[str]:
        return [str(each.resource) for each in self.connection.warming]

    async def take(self, type_url: str, *names: str) -> None:
        """Subscribe to a type, or to more of it, and accept what comes of it."""
        if self.variant is Variant.DELTA:
            self.send(DeltaDiscoveryRequest(type_url=type_url, resource_names_subscribe=names))
            response = await self.receive()
            self.send(DeltaDiscoveryRequest(type_url=type_url, response_nonce=response.nonce))
        else:
            self.ask(type_url, *names)
            await self.receive_and_ack(*names)

    def subscribe(self, type_url: str, *names: str) -> None:
        """Subscribe to names that a State of the World server cannot answer."""
        if self.variant is Variant.DELTA:
            self.send(DeltaDiscoveryRequest(type_url=type_url, resource_names_subscribe=names))
        else:
            self.ask(type_url, *names)

    async def told_of_absence(self, type_url: str) -> None:
        if self.variant is Variant.DELTA:
            response = await self.receive()
            self.send(DeltaDiscoveryRequest(type_url=type_url, response_nonce=response.nonce))

    def report(self, *found: WarmingResource) -> None:
        request = DiscoveryRequest(type_url=WARMING)
        text = encode_report(found)
        if text is not None:
            request.error_detail.message = text
        self.send(request)


def listener(world: FakeWorld, table: str, *, stat_prefix: str = "web") -> None:
    manager = HttpConnectionManager(stat_prefix=stat_prefix)
    manager.rds.route_config_name = table
    manager.rds.config_source.ads.SetInParent()
    message = Listener(name="web")
    message.filter_chains.add().filters.add(name="hcm").typed_config.Pack(manager)
    world.sets[LISTENER].write("web", make_resource("web", LISTENER, message.SerializeToString(deterministic=True)))
    world._wake(LISTENER)


@asynccontextmanager
async def watched(variant: Variant) -> AsyncIterator[tuple[Watched, Watched]]:
    """A client and its agent at one control plane with a listener of the table ``routes``, which does not exist."""
    world, registry = FakeWorld(), StatusRegistry()
    world.put(CLUSTER, "a")
    world.put(ROUTE, "other")
    listener(world, "routes")
    client = Watched(world, variant, registry)
    agent = Watched(world, Variant.SOTW, registry, agent=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.session.run)
        nursery.start_soon(agent.session.run)
        yield client, agent
        nursery.cancel_scope.cancel()


VARIANTS = pytest.mark.parametrize("variant", list(Variant))


@VARIANTS
async def test_a_listener_whose_table_does_not_exist_is_shown_after_ten_seconds_and_never_quarantines(
    autojump_clock: MockClock, variant: Variant
) -> None:
    async with watched(variant) as (client, _):
        await client.take(CLUSTER)
        await client.take(LISTENER)
        client.subscribe(ROUTE, "routes")
        await client.told_of_absence(ROUTE)
        await trio.sleep(9.5)
        assert client.shown() == []
        await trio.sleep(1)
        assert client.shown() == ["LDS web waits for RDS routes"]
        await trio.sleep(60)
        assert client.answers.told == []
        client.world.put(ROUTE, "routes")
        assert (await client.receive()).type_url == ROUTE
        await wait_all_tasks_blocked()
        assert client.shown() == []


@VARIANTS
async def test_a_secret_that_no_listener_names_waits_for_itself(autojump_clock: MockClock, variant: Variant) -> None:
    async with watched(variant) as (client, _):
        await client.take(LISTENER)
        client.subscribe(SECRET, "kubernetes://gone")
        await client.told_of_absence(SECRET)
        await trio.sleep(11)
        assert client.shown() == ["SDS kubernetes://gone waits for SDS kubernetes://gone"]


@VARIANTS
async def test_what_was_sent_and_is_gone_since_is_in_use(autojump_clock: MockClock, variant: Variant) -> None:
    async with watched(variant) as (client, _):
        client.world.put(ROUTE, "routes")
        await client.take(LISTENER)
        await client.take(ROUTE, "routes")
        client.world.remove(ROUTE, "routes")
        await client.told_of_absence(ROUTE)
        await trio.sleep(30)
        assert client.shown() == [] and client.answers.told == []


@VARIANTS
async def test_a_table_that_a_client_of_tables_never_requests_is_its_own_refusal(
    autojump_clock: MockClock, variant: Variant
) -> None:
    async with watched(variant) as (client, _):
        await client.take(CLUSTER)
        await client.take(LISTENER)
        await client.take(ROUTE, "other")
        await trio.sleep(9)
        assert client.shown() == [] and client.answers.told == []
        await trio.sleep(12)
        assert client.shown() == ["LDS web waits for RDS routes"]
        nack = client.answers.told[0]
        assert nack.is_warming and nack.reason == f"{NOT_IN_USE} after 10 s: web waits for RDS routes"
        assert [each.name for each in nack.resources] == ["web"]
        listener(client.world, "other")
        await client.receive()
        await wait_all_tasks_blocked()
        assert client.shown() == []


@VARIANTS
async def test_a_client_that_never_asks_for_tables_is_not_said_to_wait(
    autojump_clock: MockClock, variant: Variant
) -> None:
    async with watched(variant) as (client, _):
        await client.take(CLUSTER)
        await client.take(LISTENER)
        await trio.sleep(60)
        assert client.shown() == [] and client.answers.told == []


@VARIANTS
async def test_what_an_agent_reports_is_shown_and_overdue_while_everything_is_answered(
    autojump_clock: MockClock, variant: Variant
) -> None:
    async with watched(variant) as (client, agent):
        await client.take(LISTENER)
        agent.report(WARMS)
        await trio.sleep(9)
        assert client.shown() == []
        await trio.sleep(2)
        assert client.shown() == ["LDS web waits for SDS of-another-server"]
        assert len(client.answers.told) == 1
        agent.report()
        await wait_all_tasks_blocked()
        assert client.shown() == []
        await trio.sleep(60)
        assert len(client.answers.told) == 1


@VARIANTS
@pytest.mark.parametrize(
    "awaited", [WaitKind.DNS, WaitKind.HEALTH, WaitKind.FETCH, WaitKind.IDENTITY], ids=lambda kind: kind.name
)
async def test_what_takes_its_time_is_shown_and_never_overdue(
    autojump_clock: MockClock, variant: Variant, awaited: WaitKind
) -> None:
    async with watched(variant) as (client, agent):
        await client.take(CLUSTER)
        agent.report(WarmingResource(CLUSTER, "a", "", (Awaited(awaited), Awaited(WaitKind.EDS, "a"))))
        await trio.sleep(100)
        assert client.shown() == [f"CDS a waits for {awaited}, EDS a"]
        assert client.answers.told == []


@VARIANTS
async def test_a_name_that_we_do_not_serve_explains_what_warms(autojump_clock: MockClock, variant: Variant) -> None:
    async with watched(variant) as (client, agent):
        await client.take(LISTENER)
        client.subscribe(ROUTE, "routes")
        await client.told_of_absence(ROUTE)
        agent.report(WARMS)
        await trio.sleep(100)
        assert client.shown() == ["LDS web waits for SDS of-another-server"]
        assert client.answers.told == []


@VARIANTS
async def test_a_version_that_was_put_back_does_not_warm_though_envoy_says_so(
    autojump_clock: MockClock, variant: Variant
) -> None:
    async with watched(variant) as (client, agent):
        request = DeltaDiscoveryRequest if variant is Variant.DELTA else DiscoveryRequest

        async def take_change() -> None:
            response = await client.receive()
            client.send(request(type_url=LISTENER, response_nonce=response.nonce))
            await wait_all_tasks_blocked()

        await client.take(LISTENER)
        before = client.world.sets[LISTENER].all()["web"]
        listener(client.world, "routes", stat_prefix="changed")
        await take_change()
        agent.report(attrs.evolve(WARMS, version="1001"))
        await trio.sleep(11)
        assert client.shown() == ["LDS web waits for SDS of-another-server"]
        client.world.sets[LISTENER].write("web", before)
        client.world._wake(LISTENER)
        await take_change()
        await trio.sleep(30)
        assert client.shown() == []
        listener(client.world, "routes", stat_prefix="another")
        await take_change()
        agent.report(attrs.evolve(WARMS, version="1002"))
        await trio.sleep(11)
        assert client.shown() == ["LDS web waits for SDS of-another-server"]


async def test_an_agent_speaks_for_no_proxy_of_another_identity_or_address(autojump_clock: MockClock) -> None:
    async with watched(Variant.SOTW) as (client, agent):
        await client.take(LISTENER)
        assert agent.connection.proxy is None
        agent.session.stream._admit = lambda proxy: attrs.evolve(proxy, peer="10.9.9.9")
        agent.report(WARMS)
        await trio.sleep(60)
        assert client.shown() == [] and client.answers.told == []


async def test_a_report_that_cannot_be_read_costs_nothing(autojump_clock: MockClock) -> None:
    async with watched(Variant.SOTW) as (client, agent):
        await client.take(LISTENER)
        agent.report(WARMS)
        await trio.sleep(11)
        request = DiscoveryRequest(type_url=WARMING)
        request.error_detail.message = '[{"type": "NDS"}]'
        agent.send(request)
        await trio.sleep(1)
        assert client.shown() == ["LDS web waits for SDS of-another-server"]


NAMES = st.text(max_size=20)
FOUND = st.lists(
    st.builds(
        WarmingResource,
        st.sampled_from([LISTENER, CLUSTER]),
        NAMES,
        NAMES,
        st.lists(st.builds(Awaited, st.sampled_from(WaitKind), NAMES), max_size=3).map(tuple),
    ),
    max_size=5,
).map(tuple)


@given(FOUND)
def test_a_report_is_read_as_it_was_written(found: tuple[WarmingResource, ...]) -> None:
    assert read_report(encode_report(found)) == found


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(repr))
def test_any_other_text_is_an_error_that_is_named(text: str) -> None:
    try:
        assert isinstance(read_report(text), tuple)
    except ValueError as error:
        assert str(error)
