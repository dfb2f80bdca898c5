"""UDPRoutes at a real Envoy: datagrams of clients reach two servers, and what ends a session and what does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.datagrams import DatagramBackend, DatagramClient, Reply, udp_backend, udp_clients
from tests.support.echo import greeting
from tests.support.envoy import eventually
from tests.support.fleet import fleet
from tests.support.manifests import at, manifest, service
from tests.traffic.test_gateway_api_features import EDGE, gateway, route, to

pytestmark = pytest.mark.envoy

Sockets = Callable[[int, int], list[DatagramClient]]


@pytest.fixture
async def udp_sockets() -> AsyncIterator[Sockets]:
    """Makes clients of a port."""
    with ExitStack() as stack:
        yield lambda port, count: stack.enter_context(udp_clients(port, count))


def backends(red: int, blue: int) -> str:
    """A UDPRoute with these weights."""
    refs = f"{to('red.test', 70, f', weight: {red}')}, {to('blue.test', 70, f', weight: {blue}')}"
    return route("UDPRoute", f"  - backendRefs: [{refs}]\n", "udp")


def of(host: str, *servers: DatagramBackend) -> str:
    return service(host, 70, *map(at, servers), protocol="UDP")


def sessions(replies: list[Reply]) -> list[tuple[str, int]]:
    return [(each.name, each.session) for each in replies]


async def test_datagrams_go_to_backends_by_weight_and_a_session_lasts_until_its_endpoint_goes(
    tmp_path: Path, free_ports: Callable[[int], list[int]], udp_sockets: Sockets
) -> None:
    (port,) = free_ports(1)
    clients = udp_sockets(port, 40)
    async with (
        udp_backend("red") as red,
        udp_backend("red2") as red2,
        udp_backend("blue") as blue,
        fleet(tmp_path) as mesh,
    ):
        tcp = await mesh.tcp_backend("tcp")
        stream = service("tcp.test", 70, at(tcp), protocol="TCP")
        stream += route("TCPRoute", f"  - backendRefs: [{to('tcp.test', 70)}]\n", "tcp")
        # One port number for both protocols.
        rest = stream + gateway(tcp=("TCP", port), udp=("UDP", port)) + of("blue.test", blue)
        await mesh.apply(rest + of("red.test", red) + backends(1, 1))
        await mesh.envoy(EDGE)
        assert await greeting("127.0.0.1", port) == "tcp"

        async def ask() -> list[Reply]:
            return [await client.ask() for client in clients]

        first = await ask()
        shares = Counter(each.name for each in first)
        assert set(shares) == {"red", "blue"} and min(shares.values()) >= 5, shares
        assert sessions(await ask()) == sessions(first)

        # An endpoint that comes takes new sessions only.
        await mesh.apply(rest + of("red.test", red, red2) + backends(1, 1))

        async def reached() -> bool:
            with udp_clients(port, 1) as (client,):
                return (await client.ask()).name == "red2"

        await eventually(reached, what="the new endpoint has a session")
        assert sessions(await ask()) == sessions(first)

        # One that goes ends its own sessions only: the next datagram begins another one.
        await mesh.apply(rest + of("red.test", red2) + backends(1, 1))

        async def left() -> bool:
            return {each.name for each in await ask()} == {"red2", "blue"}

        await eventually(left, what="sessions leave the endpoint that is gone")
        second = await ask()
        kept = [pair for pair in sessions(first) if pair[0] == "blue"]
        assert [pair for pair in sessions(second) if pair[0] == "blue"] == kept

        # Other weights move the clients that they have to, each to one backend; and back.
        await mesh.apply(rest + of("red.test", red2) + backends(0, 1))

        async def blue_only() -> bool:
            return {each.name for each in await ask()} == {"blue"}

        await eventually(blue_only, what="all datagrams go to blue")
        await mesh.apply(rest + of("red.test", red2) + backends(1, 1))
        await eventually(left, what="datagrams go to both")
        assert [each.name for each in await ask()] == [each.name for each in second]
        assert await greeting("127.0.0.1", port) == "tcp"
        await mesh.assert_all_taken()


async def test_a_backend_that_is_not_there_gets_its_share_and_answers_nothing(
    tmp_path: Path, free_ports: Callable[[int], list[int]], udp_sockets: Sockets
) -> None:
    (port,) = free_ports(1)
    clients = udp_sockets(port, 20)
    async with udp_backend("red") as red, fleet(tmp_path) as mesh:
        rest = gateway(udp=("UDP", port)) + of("red.test", red)
        await mesh.apply(rest + backends(1, 1))
        await mesh.envoy(EDGE)
        answers = [await client.try_once() for client in clients]
        assert {each.name if each else "" for each in answers} == {"red", ""}
        # An object that is refused takes nothing away, and the listener goes with its route.
        mesh.write(rest + backends(1, 1) + _REFUSED)
        await eventually(lambda: bool(mesh.plane.state.world.rejections()), what="an object is refused")
        assert {each.name for client in clients if (each := await client.try_once())} == {"red"}
        await mesh.apply(rest + backends(1, 0))

        async def all_red() -> bool:
            return all([await client.try_once() for client in clients])

        await eventually(all_red, what="every client is answered")
        await mesh.apply(rest)

        async def nothing() -> bool:
            return await clients[0].try_once() is None

        await eventually(nothing, what="no route: nothing listens")
        await mesh.assert_all_taken()


_REFUSED = route("UDPRoute", "  - backendRefs: []\n", "udp").replace("name: udp,", "name: bad,")


async def test_a_session_ends_when_it_is_idle_and_one_address_stays_with_one_endpoint_if_a_rule_says_so(
    tmp_path: Path, free_ports: Callable[[int], list[int]], udp_sockets: Sockets
) -> None:
    (port,) = free_ports(1)
    clients = udp_sockets(port, 12)
    async with udp_backend("one") as one, udp_backend("two") as two, fleet(tmp_path) as mesh:
        policy = "host: red.test\ntrafficPolicy:\n  connectionPool: {tcp: {idleTimeout: 1s}}\n"
        policy += "  loadBalancer: {consistentHash: {useSourceIp: true}}\n"
        text = gateway(udp=("UDP", port)) + of("red.test", one, two) + manifest("DestinationRule", "red", policy)
        await mesh.apply(text + backends(1, 0))
        envoy = await mesh.envoy(EDGE)
        first = [await client.ask() for client in clients]
        assert len({each.name for each in first}) == 1

        async def idle() -> bool:
            return await envoy.counted("udp.*downstream_sess_active$") == 0

        await eventually(idle, what="sessions end")
        again = [await client.ask() for client in clients]
        assert {each.name for each in again} == {each.name for each in first}
        assert await envoy.counted("udp.*downstream_sess_total$") == 24
        await mesh.assert_all_taken()
