"""What takes time: patience with clients, backoff after refusals, and how long a change takes to be accepted."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import inf
from unittest.mock import patch

import attrs
import pytest
import trio
from envoy.config.core.v3.base_pb2 import Node as NodeMessage
from envoy.service.discovery.v3.discovery_pb2 import (
    DeltaDiscoveryRequest,
    DeltaDiscoveryResponse,
    DiscoveryRequest,
    DiscoveryResponse,
)
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER, ROUTE
from mesh_pilot.xds.ads import due_pushes
from mesh_pilot.xds.ads import session as session_module
from mesh_pilot.xds.ads.context import SessionContext, XdsOptions
from mesh_pilot.xds.ads.decode import Decoder
from mesh_pilot.xds.ads.due_pushes import DuePushes
from mesh_pilot.xds.ads.encode import Encoder
from mesh_pilot.xds.ads.messages import Code, Request, StreamError, Variant
from mesh_pilot.xds.ads.session import Session
from mesh_pilot.xds.ads.status import StatusRegistry
from mesh_pilot.xds.ads.stream import Stream
from tests.xds.fake_world import NODE, FakeWorld

OPTIONS = XdsOptions(warming_seconds=3, reconnect_grace_seconds=0.2, nack_backoff_seconds=1, max_nack_backoff_seconds=5)


class Client:
    """The other end of a call whose network is two queues of messages."""

    def __init__(
        self, world: FakeWorld, variant: Variant, options: XdsOptions = OPTIONS, pushes: DuePushes | None = None
    ) -> None:
        self.world = world
        self.registry = StatusRegistry()
        self._take: Callable[[bytes], bool] = lambda _: False
        self._on_news: Callable[[], None] = lambda: None
        self._to_server, self._from_client = trio.open_memory_channel[bytes](100)
        self._to_client, self._from_server = trio.open_memory_channel[bytes](0)
        self._response_type = DiscoveryResponse if variant is Variant.SOTW else DeltaDiscoveryResponse
        self._node: NodeMessage | None = NodeMessage(id=NODE.id)
        self.session = Session(
            self,
            SessionContext(
                catalog=world,
                decoder=Decoder(options.bounds),
                encoder=Encoder("test"),
                registry=self.registry,
                options=options,
                pushes=pushes or DuePushes(),
            ),
            self.registry.connect(variant, "test"),
        )

    @property
    def has_message(self) -> bool:
        return self._from_client.statistics().current_buffer_used > 0

    @property
    def is_readable(self) -> bool:
        return self.has_message or not self._from_client.statistics().open_send_channels

    def receive_at_once(self, take: Callable[[bytes], bool], on_news: Callable[[], None], /) -> None:
        self._take, self._on_news = take, on_news

    def send_at_once(self, message: bytes, /) -> bool:
        try:
            self._to_client.send_nowait(message)
        except trio.WouldBlock:
            return False
        return True

    async def recv_message(self) -> bytes | None:
        try:
            return await self._from_client.receive()
        except trio.EndOfChannel:
            return None

    async def send_message(self, message: bytes, /) -> None:
        await self._to_client.send(message)

    def send(self, request: DiscoveryRequest | DeltaDiscoveryRequest) -> None:
        if self._node is not None:
            request.node.CopyFrom(self._node)
            self._node = None
        message = request.SerializeToString()
        if self.has_message or not self._take(message):
            self._to_server.send_nowait(message)
            self._on_news()

    async def receive(self) -> DiscoveryResponse:
        return self._response_type.FromString(await self._from_server.receive())

    async def receive_and_ack(self, *names: str) -> DiscoveryResponse:
        response = await self.receive()
        self.ask(response.type_url, *names, response_nonce=response.nonce)
        return response

    def ask(self, type_url: str, *names: str, **fields: str) -> None:
        self.send(DiscoveryRequest(type_url=type_url, resource_names=names, **fields))

    def refuse(self, response: DiscoveryResponse) -> None:
        request = DiscoveryRequest(type_url=response.type_url, response_nonce=response.nonce)
        request.error_detail.message = "no"
        self.send(request)

    def publish(self, type_url: str, name: str, text: str) -> None:
        """A change of the world, as the reducer makes one."""
        self.world.put(type_url, name, text)
        self.registry.published(trio.current_time())

    def half_close(self) -> None:
        self._to_server.close()
        self._on_news()


@asynccontextmanager
async def connected(variant: Variant = Variant.SOTW, options: XdsOptions = OPTIONS) -> AsyncIterator[Client]:
    world = FakeWorld()
    for type_url in (CLUSTER, ENDPOINT, LISTENER, ROUTE):
        world.put(type_url, "a")
    client = Client(world, variant, options)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.session.run)
        yield client
        nursery.cancel_scope.cancel()


async def test_a_client_that_comes_back_has_one_turn_for_all_that_it_requests(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = FakeWorld()
    world.put(CLUSTER, "a")
    client = Client(world, Variant.SOTW)
    taken: list[Request] = []
    receive = client.session._receive_in_turn

    async def counted(request: Request) -> tuple[Request, float] | None:
        taken.append(request)
        return await receive(request)

    monkeypatch.setattr(client.session, "_receive_in_turn", counted)
    monkeypatch.setattr(session_module, "SLICE_SECONDS", inf)  # however slow the machine is
    client.ask(CLUSTER)
    client.ask(ENDPOINT, "a")
    client.ask(LISTENER)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.session.run)
        await client.receive()
        assert [request.type_url for request in taken] == [CLUSTER]
        assert [client.session.stream.requests(url) is not None for url in (CLUSTER, ENDPOINT, LISTENER)] == [True] * 3
        nursery.cancel_scope.cancel()


async def test_listeners_wait_a_while_for_the_endpoints_of_a_new_cluster(autojump_clock: MockClock) -> None:
    async with connected() as client:
        client.ask(CLUSTER)
        await client.receive_and_ack()
        client.ask(ENDPOINT, "a")
        await client.receive_and_ack("a")
        client.ask(LISTENER)
        await client.receive_and_ack()
        began = trio.current_time()
        client.world.put(CLUSTER, "b")
        client.world.put(ENDPOINT, "b")
        client.world.put(LISTENER, "a", "to b")
        assert (await client.receive_and_ack()).type_url == CLUSTER
        assert (await client.receive_and_ack()).type_url == LISTENER
        assert trio.current_time() - began == pytest.approx(3)


async def test_a_reconnecting_client_without_listeners_loses_its_old_clusters_soon(autojump_clock: MockClock) -> None:
    async with connected(Variant.DELTA) as client:
        client.send(DeltaDiscoveryRequest(type_url=CLUSTER, initial_resource_versions={"gone": "1"}))
        first = await client.receive()
        assert list(first.removed_resources) == []
        client.send(DeltaDiscoveryRequest(type_url=CLUSTER, response_nonce=first.nonce))
        assert list((await client.receive()).removed_resources) == ["gone"]
        assert trio.current_time() < 1


async def test_repeated_refusals_are_answered_ever_more_slowly(autojump_clock: MockClock) -> None:
    async with connected() as client:
        client.ask(LISTENER)
        waits = []
        for round_ in range(7):
            began = trio.current_time()
            client.refuse(await client.receive())
            waits.append(trio.current_time() - began)
            await wait_all_tasks_blocked()
            client.world.put(LISTENER, "a", f"bad {round_}")
        assert waits[:2] == [0, 0]
        for wait, longest in zip(waits[2:], (1, 2, 4, 5, 5), strict=True):
            assert longest / 2 <= wait <= longest
        await client.receive_and_ack()
        await wait_all_tasks_blocked()
        began = trio.current_time()
        client.world.put(LISTENER, "a", "good")
        await client.receive_and_ack()
        assert trio.current_time() == began
        client.world.put(LISTENER, "a", "bad again")
        client.refuse(await client.receive())
        await wait_all_tasks_blocked()
        client.world.put(LISTENER, "a", "good")
        await client.receive_and_ack()
        assert trio.current_time() == began


async def test_a_type_that_is_refused_does_not_slow_down_the_others(autojump_clock: MockClock) -> None:
    async with connected() as client:
        client.ask(LISTENER)
        for round_ in range(2):
            client.refuse(await client.receive())
            await wait_all_tasks_blocked()
            client.world.put(LISTENER, "a", f"bad {round_}")
        began = trio.current_time()
        client.ask(ROUTE, "a")
        assert (await client.receive()).type_url == ROUTE
        assert trio.current_time() == began


async def test_convergence_is_counted_from_the_publishing_to_the_last_ack(autojump_clock: MockClock) -> None:
    async with connected() as client:
        client.ask(CLUSTER)
        await client.receive_and_ack()
        client.ask(LISTENER)
        await client.receive_and_ack()
        await wait_all_tasks_blocked()
        assert sum(client.registry.statistics().times.convergence_seconds.counts) == 0
        client.publish(CLUSTER, "a", "new")
        client.publish(LISTENER, "a", "new")
        clusters, listeners = await client.receive(), await client.receive()
        await trio.sleep(2)
        client.ask(CLUSTER, response_nonce=clusters.nonce)
        await trio.sleep(2)
        client.ask(LISTENER, response_nonce=listeners.nonce)
        await wait_all_tasks_blocked()
        convergence = client.registry.statistics().times.convergence_seconds
        assert dict(zip(convergence.bounds, convergence.counts, strict=False))[5.0] == 1
        assert (sum(convergence.counts), convergence.sum) == (1, pytest.approx(4))
        await trio.sleep(10)
        client.publish(LISTENER, "a", "newer")
        await client.receive_and_ack()
        await wait_all_tasks_blocked()
        convergence = client.registry.statistics().times.convergence_seconds
        assert (sum(convergence.counts), convergence.sum) == (2, pytest.approx(4))


async def test_the_sender_sleeps_on_when_an_answer_leaves_nothing_to_send(autojump_clock: MockClock) -> None:
    async with connected() as client:
        for type_url in (CLUSTER, LISTENER):
            client.ask(type_url)
            await client.receive_and_ack()
        await trio.sleep(60)
        look = Stream.next_response
        with patch.object(Stream, "next_response", autospec=True, side_effect=look) as looks:
            client.publish(LISTENER, "a", "new")
            await client.receive_and_ack()
            await wait_all_tasks_blocked()
            assert looks.call_count == 2, "the response, and that there is no other"
            client.publish(CLUSTER, "a", "new")
            response = await client.receive()
            client.publish(CLUSTER, "a", "newer")
            await wait_all_tasks_blocked()
            client.ask(CLUSTER, response_nonce=response.nonce)
            assert (await client.receive_and_ack()).version_info != response.version_info


async def test_a_change_that_is_refused_is_not_counted(autojump_clock: MockClock) -> None:
    async with connected() as client:
        client.ask(LISTENER)
        await client.receive_and_ack()
        await wait_all_tasks_blocked()
        client.publish(LISTENER, "a", "bad")
        client.refuse(await client.receive())
        await wait_all_tasks_blocked()
        assert sum(client.registry.statistics().times.convergence_seconds.counts) == 0


async def test_a_change_that_does_not_touch_the_client_is_not_counted(autojump_clock: MockClock) -> None:
    async with connected() as client:
        client.ask(ENDPOINT, "a")
        await client.receive_and_ack("a")
        await wait_all_tasks_blocked()
        client.publish(ENDPOINT, "b", "new")
        await wait_all_tasks_blocked()
        assert sum(client.registry.statistics().times.convergence_seconds.counts) == 0


async def test_changes_while_the_client_does_not_read_are_one_response(autojump_clock: MockClock) -> None:
    async with connected() as client:
        client.ask(LISTENER)
        await wait_all_tasks_blocked()
        for round_ in range(10):
            client.world.put(LISTENER, "a", f"change {round_}")
            await wait_all_tasks_blocked()
        await client.receive_and_ack()
        assert [any.value for any in (await client.receive_and_ack()).resources] == [b"change 9"]
        await wait_all_tasks_blocked()
        assert client.registry.statistics().pushes == {LISTENER: 2}


async def test_a_client_that_half_closes_is_sent_what_there_is_and_let_go(autojump_clock: MockClock) -> None:
    world = FakeWorld()
    client = Client(world, Variant.SOTW)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.session.run)
        client.ask(CLUSTER)
        client.ask(LISTENER)
        client.half_close()
        assert [(await client.receive()).type_url for _ in range(2)] == [CLUSTER, LISTENER]


async def test_a_session_that_is_ended_sends_what_there_is_first(autojump_clock: MockClock) -> None:
    world = FakeWorld()
    client = Client(world, Variant.SOTW)
    error = StreamError(Code.UNAVAILABLE, "enough")
    caught = []

    async def run() -> None:
        try:
            await client.session.run()
        except StreamError as raised:
            caught.append(raised)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        client.ask(CLUSTER)
        await wait_all_tasks_blocked()
        client.session.end(error)
        assert (await client.receive()).type_url == CLUSTER
    assert caught == [error]


class Steps(trio.abc.Instrument):
    """Counts how often each task runs."""

    def __init__(self) -> None:
        self.of: Counter[trio.lowlevel.Task] = Counter()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.of[task] += 1


async def test_a_change_and_its_ack_wake_no_task_of_a_stream_that_is_up_to_date(autojump_clock: MockClock) -> None:
    async with connected() as client:
        client.ask(CLUSTER)
        await client.receive_and_ack()
        await wait_all_tasks_blocked()
        task = client.session._sleeper
        assert task is not None
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        for number in range(5):
            client.publish(CLUSTER, "a", f"change {number}")
            response = await client.receive_and_ack()
            assert [any.value for any in response.resources] == [f"change {number}".encode()]
            await wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(steps)
        assert steps.of[task] == 0 < steps.of.total()
        assert client.registry.statistics().acks == {CLUSTER: 6}
        assert client.registry.times.state().convergence_seconds.counts[0] == 5


async def test_what_does_not_fit_the_windows_is_sent_by_the_task_of_the_stream(autojump_clock: MockClock) -> None:
    async with connected() as client:
        client.ask(CLUSTER)
        await client.receive_and_ack()
        await wait_all_tasks_blocked()
        client.publish(CLUSTER, "a", "change")
        await wait_all_tasks_blocked()  # nobody receives
        assert client.session._sleeper is None
        client.publish(CLUSTER, "a", "change that has to wait for an answer")
        assert [any.value for any in (await client.receive_and_ack()).resources] == [b"change"]
        assert len((await client.receive_and_ack()).resources) == 1
        await wait_all_tasks_blocked()
        assert client.session.stream.is_settled


async def test_an_error_in_one_push_ends_that_stream_alone(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushes = DuePushes()
    world = FakeWorld()
    world.put(CLUSTER, "a")
    clients = [Client(world, Variant.SOTW, pushes=pushes) for _ in range(3)]
    ended: list[int] = []

    async def run(number: int) -> None:
        try:
            await clients[number].session.run()
        except ZeroDivisionError:
            ended.append(number)

    def broken(_: object) -> None:
        raise ZeroDivisionError("a bug")

    async with trio.open_nursery() as nursery:
        for number, client in enumerate(clients):
            nursery.start_soon(run, number)
            client.ask(CLUSTER)
            await client.receive_and_ack()
        await wait_all_tasks_blocked()
        monkeypatch.setattr(clients[1].session.stream, "next_response", broken)
        world.put(CLUSTER, "a", "change")
        for number in (0, 2):
            assert [any.value for any in (await clients[number].receive_and_ack()).resources] == [b"change"]
        await wait_all_tasks_blocked()
        assert ended == [1]
        nursery.cancel_scope.cancel()


async def test_an_answer_does_not_overtake_a_request_that_has_to_wait(autojump_clock: MockClock) -> None:
    bounds = attrs.evolve(OPTIONS.bounds, stream_requests_per_second=1)
    async with connected(options=attrs.evolve(OPTIONS, bounds=bounds, request_burst=1)) as client:
        taken: list[str] = []
        client.ask(CLUSTER)
        response = await client.receive()
        take = client.session._take
        client.session._take = lambda request: (taken.append(request.nonce), take(request))[1]  # type: ignore[method-assign]
        client.ask(LISTENER)  # one too many
        await wait_all_tasks_blocked()
        client.ask(CLUSTER, response_nonce=response.nonce)
        await wait_all_tasks_blocked()
        assert taken == []
        assert (await client.receive()).type_url == LISTENER
        assert taken == ["", response.nonce]


async def test_many_pushes_at_once_let_others_run(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_pushes, "SLICE_SECONDS", 0)
    pushes, order = DuePushes(), list[str]()
    for _ in range(3):
        pushes.add(lambda: order.append("push"))
    for _ in range(3):
        await trio.lowlevel.checkpoint()
        order.append("other")
    await wait_all_tasks_blocked()
    assert order.count("push") == 3
    assert order.index("other") < 2


async def test_the_log_tells_of_connecting_and_refusing(autojump_clock: MockClock) -> None:
    with capture_logs() as logs:
        async with connected() as client:
            client.ask(LISTENER)
            client.refuse(await client.receive())
            await wait_all_tasks_blocked()
    shown = [(entry["event"].split(":")[0], entry["log_level"]) for entry in logs if entry["log_level"] != "debug"]
    assert shown == [("proxy connected", "info"), ("NACK", "warning")]
    assert {entry["proxy"] for entry in logs} == {NODE.id}


async def test_a_type_that_is_not_served_is_logged_once_and_counted(autojump_clock: MockClock) -> None:
    unknown = "type.googleapis.com/istio.workload.Address"
    with capture_logs() as logs:
        async with connected() as client:
            client.ask(unknown)
            answer = await client.receive_and_ack()
            assert (answer.type_url, len(answer.resources), bool(answer.nonce)) == (unknown, 0, True)
            client.ask(CLUSTER)
            assert len((await client.receive_and_ack()).resources) == 1
            await wait_all_tasks_blocked()
            statistics = client.registry.statistics()
    assert statistics.unserved == 1
    assert statistics.pushes.keys() == statistics.bytes_sent.keys() == {CLUSTER}
    assert [(e["log_level"], e["type"]) for e in logs if "not served" in e["event"]] == [("info", unknown)]


def test_of_many_streams_that_ask_for_a_type_that_is_not_served_the_first_is_news() -> None:
    registry = StatusRegistry()
    assert [registry.unserved("a"), registry.unserved("a"), registry.unserved("b")] == [True, False, True]
    news = [registry.unserved(str(number)) for number in range(1000)]
    assert news.count(True) < 100
    assert registry.statistics().unserved == 1003
