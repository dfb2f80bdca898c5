"""Addresses, listeners and their errors."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest
import trio

from mesh_pilot.net.rpc import AddressError, open_listeners, parse_address
from mesh_pilot.net.rpc.net import DEAD_AFTER_SECONDS, TcpAddress, UnixAddress, address_of, connect


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:15010", TcpAddress("127.0.0.1", 15010)),
        ("istiod.mesh:15012", TcpAddress("istiod.mesh", 15012)),
        ("[::]:0", TcpAddress("::", 0)),
        ("[::1]:65535", TcpAddress("::1", 65535)),
        (":15010", TcpAddress("", 15010)),
        ("unix:///run/mesh.sock", UnixAddress(Path("/run/mesh.sock"))),
        ("unix:mesh.sock", UnixAddress(Path("mesh.sock"))),
    ],
)
def test_addresses_are_parsed(text: str, address: TcpAddress | UnixAddress) -> None:
    assert parse_address(text) == address
    if text != "unix:mesh.sock":
        assert str(address) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no port"),
        ("localhost", "has no port"),
        ("localhost:", "has no valid port"),
        ("localhost:http", "has no valid port"),
        ("localhost:65536", "has no valid port"),
        ("localhost:-1", "has no valid port"),
        ("localhost:١٢", "has no valid port"),
        ("::1:80", "put an IPv6 address in brackets"),
        ("unix:", "names no socket file"),
        ("unix:///", "names no socket file"),
    ],
)
def test_bad_addresses_say_what_is_wrong_and_how_to_write_them(text: str, reason: str) -> None:
    with pytest.raises(AddressError) as caught:
        parse_address(text)
    assert reason in str(caught.value)
    assert str(caught.value).endswith("write host:port, [::1]:port, :port or unix:///path")


async def close(listeners: list[trio.SocketListener]) -> None:
    for listener in listeners:
        await listener.aclose()


@pytest.mark.parametrize("text", ["127.0.0.1:0", "localhost:0", ":0", "[::1]:0", "[::]:0"])
async def test_port_0_is_one_free_port_on_every_address(text: str) -> None:
    listeners = await open_listeners(text)
    ports = {parse_address(address_of(listener.socket)).port for listener in listeners}  # type: ignore[union-attr]
    assert len(ports) == 1
    assert ports != {0}
    await close(listeners)


async def test_a_listener_on_every_interface_takes_ipv4_and_ipv6() -> None:
    (listener,) = await open_listeners(":0")
    port = listener.socket.getsockname()[1]
    for host in ("127.0.0.1", "::1"):
        async with await trio.open_tcp_stream(host, port), await listener.accept() as accepted:
            peer = parse_address(address_of(accepted.socket, peer=True))
            assert isinstance(peer, TcpAddress)
            assert peer.host == host
    await close([listener])


async def test_a_taken_port_is_one_clear_line() -> None:
    listeners = await open_listeners("127.0.0.1:0")
    address = address_of(listeners[0].socket)
    with pytest.raises(AddressError, match=f"^cannot listen on {address}: Address already in use$"):
        await open_listeners(address)
    await close(listeners)


async def test_an_unknown_host_is_one_clear_line() -> None:
    with pytest.raises(AddressError, match=r"^cannot listen on nowhere.invalid:80: .*not known|failure"):
        await open_listeners("nowhere.invalid:80")


async def test_a_unix_socket_belongs_to_its_owner_and_a_stale_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "mesh.sock"
    address = f"unix://{path}"
    (first,) = await open_listeners(address)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert address_of(first.socket) == address
    with pytest.raises(AddressError, match=f"^cannot listen on {address}: Address already in use$"):
        await open_listeners(address)
    await first.aclose()  # as a server that died: the file stays
    assert path.exists()
    (second,) = await open_listeners(address)
    async with await trio.open_unix_socket(path):
        pass
    await second.aclose()


async def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious.txt"
    path.write_text("keep me")
    with pytest.raises(AddressError, match=r"Address already in use$"):
        await open_listeners(f"unix://{path}")
    assert path.read_text() == "keep me"


async def test_a_unix_socket_in_a_missing_folder_or_with_a_long_name_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(AddressError, match=r"No such file or directory$"):
        await open_listeners(f"unix://{tmp_path}/missing/mesh.sock")
    with pytest.raises(AddressError, match=r"^cannot listen on unix://.*: AF_UNIX path too long$"):
        await open_listeners(f"unix://{tmp_path}/{'x' * 120}")


async def test_a_connection_that_we_open_notices_a_dead_host_without_http2_pings() -> None:
    listeners = await open_listeners("127.0.0.1:0")
    with await connect(address_of(listeners[0].socket)) as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle, every, times, unanswered = (
            sock.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        )
        assert idle + every * times == DEAD_AFTER_SECONDS
        assert unanswered == DEAD_AFTER_SECONDS * 1000
    await close(listeners)
