"""Control planes that refuse a proxy, in the words of the log: not as ones that are not reached."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from mesh_pilot.net.rpc import Status
from tests.agent.relay.test_relay import envoy_stream, request
from tests.support.certificates import write_certificates
from tests.support.envoy import eventually
from tests.support.fake_plane import fake_plane
from tests.support.relayed import relayed


@pytest.mark.parametrize(
    ("status", "event"),
    [
        (Status.UNAUTHENTICATED, "control plane refuses this proxy"),
        (Status.PERMISSION_DENIED, "control plane refuses this proxy"),
        (Status.UNAVAILABLE, "control plane not reached"),
    ],
)
async def test_a_refusal_is_not_called_an_absence(tmp_path: Path, status: Status, event: str) -> None:
    async with fake_plane() as plane:
        plane.refuses = status
        with capture_logs() as lines:
            async with relayed(tmp_path, plane.address) as relay, envoy_stream(relay.address, request()):

                def waits() -> bool:
                    return any("envoy waits" in line["event"] for line in lines)

                await eventually(waits, what=f"Envoy waits: {lines}")
    (found,) = {line["event"] for line in lines if status.name in line.get("reason", "")}
    assert found == event
    assert not any("answers" in line["event"] for line in lines)


async def test_plaintext_to_the_port_of_tls_says_which_port_it_may_be(tmp_path: Path) -> None:
    files = write_certificates(tmp_path, "server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    listeners = [trio.SSLListener(each, context) for each in await trio.open_tcp_listeners(0, host="127.0.0.1")]
    port = listeners[0].transport_listener.socket.getsockname()[1]

    async def serve(stream: trio.SSLStream[trio.SocketStream]) -> None:
        try:
            await stream.do_handshake()
        except trio.BrokenResourceError:
            await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        with capture_logs() as lines:
            async with relayed(tmp_path, f"127.0.0.1:{port}") as relay, envoy_stream(relay.address, request()):

                def is_said() -> bool:
                    return any("if it is the port of TLS (15012)" in line.get("reason", "") for line in lines)

                await eventually(is_said, what=f"the hint: {lines}")
        nursery.cancel_scope.cancel()
