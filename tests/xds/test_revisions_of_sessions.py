"""The tallies of revisions, counted by sessions: bytes as they were sent, the clock of the last ACK, refusals."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mesh_pilot.model.history import ProxyRevision, RevisionOutcome
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER
from tests.xds.test_xds_session import Client, connected

LATEST = ProxyRevision(None, is_refusing=False)


def publish(client: Client, number: int, type_url: str, name: str, text: str) -> None:
    """A revision, as the reducer makes one."""
    client.world.put(type_url, name, text)
    client.registry.published(trio.current_time(), number)


def outcomes(client: Client) -> dict[int, RevisionOutcome]:
    return {outcome.revision: outcome for outcome in client.registry.revisions.recent()}


def position(client: Client) -> ProxyRevision:
    (connection,) = client.registry.connections()
    return connection.position


async def begin(client: Client) -> None:
    client.ask(CLUSTER)
    await client.receive_and_ack()
    client.ask(ENDPOINT, "a")
    await client.receive_and_ack("a")
    await wait_all_tasks_blocked()


async def test_what_a_client_gets_when_it_connects_belongs_to_no_revision(autojump_clock: MockClock) -> None:
    async with connected() as client:
        client.registry.published(0.0, 7)
        assert position(client) == ProxyRevision(0, is_refusing=False)
        await begin(client)
        assert position(client) == LATEST
        assert outcomes(client)[7] == RevisionOutcome(7, 0, 0, 0, None, (), 0, True)


async def test_a_revision_has_the_bytes_that_were_sent_and_the_time_of_the_last_ack(
    autojump_clock: MockClock,
) -> None:
    async with connected() as client:
        await begin(client)
        publish(client, 1, CLUSTER, "a", "changed")
        assert outcomes(client)[1].waiting == 1
        response = await client.receive()
        await trio.sleep(4)
        assert position(client) == ProxyRevision(0, is_refusing=False)
        client.ask(CLUSTER, response_nonce=response.nonce)
        size = response.ByteSize()
        again = await client.receive()  # Envoy waits for the endpoints of a cluster that changed
        await trio.sleep(1)
        client.ask(ENDPOINT, "a", response_nonce=again.nonce)
        await wait_all_tasks_blocked()
        found = outcomes(client)[1]
        assert (found.proxies, found.waiting, found.bytes) == (1, 0, size + again.ByteSize())
        assert found.acked_seconds == pytest.approx(5)
        assert position(client) == LATEST


async def test_revisions_that_a_slow_client_gets_in_one_response_all_count(autojump_clock: MockClock) -> None:
    async with connected() as client:
        await begin(client)
        publish(client, 1, ENDPOINT, "a", "1")
        response = await client.receive()
        for number in (2, 3):
            await trio.sleep(1)
            publish(client, number, ENDPOINT, "a", str(number))
        client.ask(ENDPOINT, "a", response_nonce=response.nonce)
        merged = await client.receive_and_ack("a")
        await wait_all_tasks_blocked()
        found = outcomes(client)
        assert [found[number].proxies for number in (1, 2, 3)] == [1, 1, 1]
        assert [found[number].bytes for number in (1, 2, 3)] == [response.ByteSize(), 0, merged.ByteSize()]
        assert all(outcome.is_over for outcome in found.values())
        assert [found[number].acked_seconds for number in (1, 2, 3)] == [pytest.approx(t) for t in (2, 1, 0)]


async def test_a_refusal_is_kept_with_its_words_and_the_client_stays_where_it_was(autojump_clock: MockClock) -> None:
    async with connected() as client:
        client.ask(LISTENER)
        await client.receive_and_ack()
        publish(client, 1, LISTENER, "a", "1")
        await client.receive_and_ack()
        await wait_all_tasks_blocked()
        publish(client, 2, LISTENER, "a", "2")
        client.refuse(await client.receive())
        await wait_all_tasks_blocked()
        (nack,) = outcomes(client)[2].nacks
        assert (nack.type, nack.names, nack.reason) == ("LDS", ("a",), "no")
        assert outcomes(client)[2].is_over
        assert position(client) == ProxyRevision(1, is_refusing=True)
        publish(client, 3, LISTENER, "a", "3")
        await client.receive_and_ack()
        await wait_all_tasks_blocked()
        assert position(client) == LATEST


async def test_a_client_that_leaves_is_not_waited_for(autojump_clock: MockClock) -> None:
    async with connected() as client:
        await begin(client)
        publish(client, 1, ENDPOINT, "a", "1")
        await client.receive()
        connection = next(iter(client.registry.proxies()))
        client.registry.disconnect(connection)
        found = outcomes(client)[1]
        assert (found.proxies, found.waiting, found.acked_seconds, found.is_over) == (1, 0, None, True)
