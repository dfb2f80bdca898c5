"""A port comes, goes and comes back: whoever is let in by its listener is answered by routes that are up to date.

Envoy continues with the route table of a listener that is gone as long as that drains, minutes mostly. If the listener
comes back meanwhile it takes that very table at once, whatever is in it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import attrs
import h11
import pytest
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.proxy import NodeType
from tests.support.fleet import fleet
from tests.support.manifests import at, manifest, service
from tests.support.shop import CLIENT, EDGE

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]

ROUNDS = 12


def sidecar_config(port: int, number: int, backend: dict[str, object]) -> str:
    return service(f"x{number}.test", port, backend)


def gateway_config(port: int, number: int, backend: dict[str, object]) -> str:
    """The port of the Gateway is another, and so is the host."""
    server = {"port": {"number": port, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}
    route = [{"destination": {"host": "app.test"}}]
    spec = {"hosts": [f"x{number}.test"], "gateways": ["edge"], "http": [{"retries": {"attempts": 0}, "route": route}]}
    return (
        manifest("Gateway", "edge", {"selector": {"istio": "edge"}, "servers": [server]})
        + manifest("VirtualService", "x", spec)
        + service("app.test", 80, backend)
    )


CASES: dict[str, tuple[EnvoyNode, Callable[[int, int, dict[str, object]], str]]] = {
    NodeType.SIDECAR: (CLIENT, sidecar_config),
    NodeType.ROUTER: (EDGE, gateway_config),
}


async def first_answer(port: int, host: str) -> int:
    """The status of the first request on a new connection that is let in."""
    while True:
        # A listener that is being closed resets what waits to be let in.
        with suppress(OSError, trio.BrokenResourceError):
            return await answer_of(await trio.open_tcp_stream("127.0.0.1", port), f"{host}:{port}")


async def answer_of(stream: trio.SocketStream, authority: str) -> int:
    async with stream:
        talk = h11.Connection(h11.CLIENT)
        head = talk.send(h11.Request(method="GET", target="/", headers=[("host", authority), ("connection", "close")]))
        assert head is not None
        await stream.send_all(head + (talk.send(h11.EndOfMessage()) or b""))
        while True:
            event = talk.next_event()
            if event is h11.NEED_DATA:
                talk.receive_data(await stream.receive_some())
            elif isinstance(event, h11.Response):
                return event.status_code


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("variant", ["sotw", "delta", "split"])
async def test_a_port_that_comes_back_serves_at_once_what_it_should(
    tmp_path: Path, free_ports: Ports, kind: str, variant: str
) -> None:
    ports = free_ports(2)
    node, config = CASES[kind]
    if variant == "split":
        node = attrs.evolve(node, metadata={**node.metadata, "VIRTUAL_HOSTS": "split"})
    async with fleet(tmp_path) as mesh:
        backend = at(await mesh.backend("app"))
        await mesh.apply(config(ports[0], 0, backend))
        await mesh.envoy(node, delta=variant != "sotw")
        answers = [await first_answer(ports[0], "x0.test")]
        for number in range(1, ROUNDS):
            port = ports[number % 2]
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(mesh.apply, config(port, number, backend))
                    answers.append(await first_answer(port, f"x{number}.test"))
        assert answers == [200] * ROUNDS
        await mesh.assert_all_taken()
