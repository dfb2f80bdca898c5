"""What processes say to each other arrives as it was, on a link that holds nobody up."""

from __future__ import annotations

import os
import random
import socket

import pytest
import trio
import trio.testing

from mesh_pilot.model.config import Config
from mesh_pilot.model.events import Upsert
from mesh_pilot.replicas.workers.frames import Applied, Fork, decode, encode, receive
from mesh_pilot.replicas.workers.link import Link, LinkClosed
from tests.door.objects import NAMES, random_object
from tests.support.worlds import configs

ENTRY = """
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: a, labels: {x: "1"}}
spec:
  hosts: [a.test]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.0.0.1, labels: {version: v1}}]
"""


async def nothing(question: object) -> object:
    return None


def ignore(message: object) -> None:
    """Of a test's end of a link."""


def test_events_arrive_with_origin_and_without_being_encoded_anew() -> None:
    event = Upsert("files", configs(ENTRY)[0], "Consul index 12")
    sent = Applied(7, (event,), 1.0, 2.0)
    arrived = decode(encode(sent))
    assert arrived == sent
    assert isinstance(arrived, Applied)
    [got] = arrived.events
    assert isinstance(got, Upsert)
    assert isinstance(got.item, Config)
    assert isinstance(event.item, Config)
    assert got.cause == event.cause
    assert (got.item.origin, got.item.labels) == (event.item.origin, event.item.labels)


@pytest.mark.parametrize("kind", NAMES)
def test_objects_of_every_kind_arrive_equal(kind: str) -> None:
    for seed in range(20):
        found = random_object(random.Random(seed), kind, f"a{seed}")
        if found is not None:
            arrived = decode(encode(found.item))
            assert arrived == found.item
            assert repr(arrived) == repr(found.item)


def test_messages_and_descriptors_arrive_in_order_over_a_blocking_socket() -> None:
    async def send(ours: socket.socket) -> None:
        link = Link(ours)
        reader, writer = os.pipe()
        link.put("first")
        link.put(Fork(2, 0), [writer])
        link.put_frame(lambda: encode("made when its turn has come"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run, ignore, nothing)
            found = [await trio.to_thread.run_sync(receive, theirs) for _ in range(3)]
            assert [each[0] for each in found if each] == ["first", Fork(2, 0), "made when its turn has come"]
            assert found[1] is not None
            [descriptor] = found[1][1]
            os.write(descriptor, b"x")
            os.close(descriptor)
            assert os.read(reader, 2) == b"x"
            assert os.read(reader, 2) == b""  # the sender has closed its own
            os.close(reader)
            nursery.cancel_scope.cancel()

    ours, theirs = socket.socketpair()
    with theirs:
        trio.run(send, ours)
        assert receive(theirs) is None


async def test_questions_are_answered_in_both_directions() -> None:
    ours, theirs = map(Link, socket.socketpair())

    async def double(question: object) -> object:
        assert isinstance(question, int)
        return question * 2

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.run, ignore, double)
        nursery.start_soon(theirs.run, ignore, double)
        assert await ours.ask(4) == 8
        assert await theirs.ask(5) == 10
        theirs.close("enough")
    with pytest.raises(LinkClosed):
        await ours.ask(6)


async def test_a_question_fails_when_the_other_end_goes() -> None:
    ours, theirs = map(Link, socket.socketpair())
    failed = []

    async def ask() -> None:
        try:
            await ours.ask("anybody there?")
        except LinkClosed:
            failed.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        theirs.close("gone")
        nursery.start_soon(ours.run, ignore, nothing)
        nursery.start_soon(theirs.run, ignore, nothing)
    assert failed == [True]


async def test_a_worker_that_does_not_read_ends_its_link_and_delays_nobody() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        link = Link(ours, buffered_bytes=1 << 20)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run, ignore, nothing)
            for _ in range(100):
                link.put(random.randbytes(100_000))
                await trio.lowlevel.checkpoint()
        assert link.reason == "it has not read 1 MB"


async def test_an_answer_that_cannot_be_sent_is_none() -> None:
    ours, theirs = map(Link, socket.socketpair())

    async def answer(question: object) -> object:
        return lambda: question  # no pickle takes a lambda

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.run, ignore, nothing)
        nursery.start_soon(theirs.run, ignore, answer)
        assert await ours.ask("what?") is None
        theirs.close("enough")


async def test_a_frame_that_cannot_be_read_ends_the_link_alone() -> None:
    ours, theirs = map(Link, socket.socketpair())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.run, ignore, nothing)
        nursery.start_soon(theirs.run, ignore, nothing)
        theirs.put_frame(b"cno.such.module\nThing\n.")
    assert ours.reason.startswith("it sends what cannot be read: ")
