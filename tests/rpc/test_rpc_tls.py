"""TLS and mutual TLS, both ways with grpcio; wrong certificates; certificates that change."""

from __future__ import annotations

import os
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from structlog.testing import capture_logs

from mesh_pilot.net.rpc import CertificateFiles, Limits, Peer, Server, TlsError, client_tls, open_channel, server_tls
from mesh_pilot.net.rpc.tls_session import TlsSession, handshake
from tests.rpc.rpc_support import UNLIMITED, Bytes, Echo, RawPeer, in_thread, serving, settled
from tests.support.certificates import CertificateFiles as Leaf
from tests.support.certificates import write_certificates

UNARY = "/test.Echo/Unary"
REQUEST = [
    (":method", "POST"),
    (":scheme", "https"),
    (":path", UNARY),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]
REVIEWS = "spiffe://cluster.local/ns/default/sa/reviews"


@pytest.fixture
def server_leaf(tmp_path: Path) -> Leaf:
    return write_certificates(tmp_path, "server")


@pytest.fixture
def client_leaf(tmp_path: Path, server_leaf: Leaf) -> Leaf:
    return write_certificates(tmp_path, "client", uris=(REVIEWS, "https://example.com/not-an-identity"))


@pytest.fixture
def stranger(tmp_path: Path) -> Leaf:
    (tmp_path / "elsewhere").mkdir()
    return write_certificates(tmp_path / "elsewhere", "stranger")


def files(leaf: Leaf, *, trust: Leaf | None = None) -> CertificateFiles:
    return CertificateFiles(certificate=leaf.certificate, key=leaf.key, trusted=trust.ca if trust else None)


def grpcio_call(server: Server, trusted: Leaf, own: Leaf | None = None, request: bytes = b"ping") -> bytes:
    credentials = grpc.ssl_channel_credentials(
        trusted.ca.read_bytes(),
        own.key.read_bytes() if own else None,
        own.certificate.read_bytes() if own else None,
    )
    port = server.addresses[0].rpartition(":")[2]
    with grpc.secure_channel(f"localhost:{port}", credentials, options=UNLIMITED) as channel:
        reply: bytes = channel.unary_unary(UNARY)(request, timeout=60)
        return reply


def test_all_records_that_have_arrived_are_decrypted_at_once(server_leaf: Leaf) -> None:
    """A session that kept a whole record for the next read would keep it until the peer sends more."""
    server = TlsSession(server_tls(files(server_leaf)).context(), server_side=True)
    trust = client_tls(CertificateFiles(trusted=server_leaf.ca))
    client = TlsSession(trust.context(), server_side=False, server_hostname="localhost")
    told, done = b"", False
    while not done:
        _, asked = client.handshake(told)
        done, told = server.handshake(asked)
    client.handshake(told)
    messages = [bytes([number]) * size for number, size in enumerate((1, 40_000, 5, 16_384, 16_385, 300, 70_000, 2))]
    for cut in (200_000, 1000, 16_000, 40_001, 3):
        records = b"".join(client.encrypt(message) for message in messages)
        plain = [server.decrypt(piece)[0] or b"" for piece in (records[:cut], records[cut:]) if piece]
        assert b"".join(plain) == b"".join(messages)
    assert server.decrypt(client.farewell()) == (b"", b"")


def test_a_server_makes_no_tickets(server_leaf: Leaf, client_leaf: Leaf) -> None:
    context = server_tls(files(server_leaf, trust=client_leaf)).context()
    server = TlsSession(context, server_side=True)
    own = client_tls(files(client_leaf, trust=server_leaf))
    client = TlsSession(own.context(), server_side=False, server_hostname="localhost")
    told, done = b"", False
    while not done:
        _, asked = client.handshake(told)
        done, told = server.handshake(asked)
    assert told == b""
    assert server.spiffe_ids_and_end()[0] == (REVIEWS,)


async def test_a_request_that_comes_with_the_end_of_the_handshake_is_read_at_once(server_leaf: Leaf) -> None:
    """A client may send all of this in one piece, and then only wait."""
    trust = client_tls(CertificateFiles(trusted=server_leaf.ca)).context()
    async with serving(Echo(), tls=server_tls(files(server_leaf))) as server:
        stream = await trio.open_tcp_stream("127.0.0.1", int(server.addresses[0].rsplit(":", 1)[1]))
        client = TlsSession(trust, server_side=False, server_hostname="localhost")
        h2 = H2Connection(H2Configuration(client_side=True))
        h2.initiate_connection()
        h2.send_headers(1, REQUEST)
        h2.send_data(1, b"\0\0\0\0\4ping", end_stream=True)
        done, out = client.handshake(b"")
        while not done:
            await stream.send_all(out)
            done, out = client.handshake(bytes(await stream.receive_some()))
        await stream.send_all(out + client.encrypt(h2.data_to_send()))
        answer = b""
        while b"ping" not in answer:
            answer += client.decrypt(bytes(await stream.receive_some()))[0] or b""
        await stream.aclose()


class WhoAmI(Echo):
    """Keeps the peer of the last call."""

    peer: Peer | None = None

    async def unary(self, stream: Bytes) -> None:
        self.peer = stream.peer
        await super().unary(stream)


async def test_grpcio_talks_tls_with_our_server_also_in_large_messages(server_leaf: Leaf) -> None:
    service = WhoAmI()
    async with serving(service, tls=server_tls(files(server_leaf))) as server:
        assert await in_thread(grpcio_call, server, server_leaf) == b"ping"
        assert service.peer is not None
        assert (service.peer.tls, service.peer.certificate, service.peer.spiffe_ids) == (True, None, ())
        large = os.urandom(4_000_000)
        assert await in_thread(grpcio_call, server, server_leaf, None, large) == large


async def test_a_handler_sees_the_spiffe_ids_of_a_mutual_tls_peer(server_leaf: Leaf, client_leaf: Leaf) -> None:
    service = WhoAmI()
    async with serving(service, tls=server_tls(files(server_leaf, trust=client_leaf))) as server:
        assert await in_thread(grpcio_call, server, server_leaf, client_leaf) == b"ping"
        assert service.peer is not None
        assert service.peer.spiffe_ids == (REVIEWS,)
        assert service.peer.certificate is not None
        tls = client_tls(files(client_leaf, trust=server_leaf))
        async with open_channel(server.addresses[0], tls=tls) as channel:
            assert await channel.unary(UNARY, bytes(1_000_000), bytes) == bytes(1_000_000)
        assert service.peer.spiffe_ids == (REVIEWS,)


async def test_clients_without_a_certificate_or_of_a_wrong_ca_are_refused(
    server_leaf: Leaf, client_leaf: Leaf, stranger: Leaf
) -> None:
    async with serving(Echo(), tls=server_tls(files(server_leaf, trust=client_leaf))) as server:
        with capture_logs() as logs:
            for own in (None, stranger):
                with pytest.raises(grpc.RpcError) as caught:
                    await in_thread(grpcio_call, server, server_leaf, own)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            await settled(lambda: server.statistics().handshakes_failed >= 2)
            assert server.statistics().failed_handshakes.keys() == {"handshake", "unknown_issuer"}
        reasons = {entry["reason"] for entry in logs}
        assert "TLS handshake failed: peer did not return a certificate" in reasons
        assert any(reason.startswith("the peer's certificate is refused: ") for reason in reasons)
        assert await in_thread(grpcio_call, server, server_leaf, client_leaf) == b"ping"


async def test_a_client_certificate_may_be_optional(server_leaf: Leaf, client_leaf: Leaf) -> None:
    service = WhoAmI()
    tls = server_tls(files(server_leaf, trust=client_leaf), require_client_certificate=False)
    async with serving(service, tls=tls) as server:
        assert await in_thread(grpcio_call, server, server_leaf) == b"ping"
        assert service.peer is not None
        assert service.peer.spiffe_ids == ()
        assert await in_thread(grpcio_call, server, server_leaf, client_leaf) == b"ping"
        assert service.peer.spiffe_ids == (REVIEWS,)


async def test_our_channel_talks_tls_with_grpcio(server_leaf: Leaf, client_leaf: Leaf) -> None:
    grpcio = grpc.server(ThreadPoolExecutor(2))
    method = grpc.unary_unary_rpc_method_handler(lambda request, _: request)
    grpcio.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", {"Unary": method}),))
    credentials = grpc.ssl_server_credentials(
        [(server_leaf.key.read_bytes(), server_leaf.certificate.read_bytes())],
        client_leaf.ca.read_bytes(),
        require_client_auth=True,
    )
    port = grpcio.add_secure_port("127.0.0.1:0", credentials)
    grpcio.start()
    tls = client_tls(files(client_leaf, trust=server_leaf))
    async with open_channel(f"localhost:{port}", tls=tls) as channel:
        assert await channel.unary(UNARY, bytes(1_000_000), bytes) == bytes(1_000_000)
    await in_thread(grpcio.stop(0).wait)


async def test_a_channel_refuses_a_server_of_a_wrong_ca_or_name(server_leaf: Leaf, stranger: Leaf) -> None:
    async with serving(Echo(), tls=server_tls(files(server_leaf))) as server:
        wrong_ca = client_tls(CertificateFiles(trusted=stranger.ca))
        with pytest.raises(TlsError, match=r"^the peer's certificate is refused: "):
            async with open_channel(server.addresses[0], tls=wrong_ca):
                pass
        right_ca = client_tls(CertificateFiles(trusted=server_leaf.ca))
        with pytest.raises(TlsError, match=r"certificate is not valid for 'reviews.test'"):
            async with open_channel(server.addresses[0], tls=right_ca, server_hostname="reviews.test"):
                pass
        unnamed = client_tls(CertificateFiles(trusted=server_leaf.ca), check_hostname=False)
        async with open_channel(server.addresses[0], tls=unnamed, server_hostname="reviews.test") as channel:
            assert await channel.unary(UNARY, b"ping", bytes) == b"ping"


async def test_a_plaintext_client_on_a_tls_port_fails_alone(server_leaf: Leaf) -> None:
    async with serving(Echo(), tls=server_tls(files(server_leaf))) as server:

        def plaintext() -> None:
            peer = RawPeer(server.addresses[0])
            try:
                while peer.socket.recv(65536):
                    pass
            except ConnectionResetError:
                pass
            peer.close()

        await in_thread(plaintext)
        assert server.statistics().handshakes_failed == 1
        assert await in_thread(grpcio_call, server, server_leaf) == b"ping"


async def test_a_handshake_that_stalls_is_given_up(server_leaf: Leaf) -> None:
    limits = Limits(handshake_timeout_seconds=0.05)
    with capture_logs() as logs:
        async with serving(Echo(), tls=server_tls(files(server_leaf)), limits=limits) as server:
            port = int(server.addresses[0].rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port)):
                await settled(lambda: server.statistics().handshakes_failed == 1)
            assert server.statistics().connections_open == 0
    assert logs[0]["reason"] == "TLS handshake not done within 0.05 s"


class FalseAlarms:
    """A socket of which every other wakeup is one without data."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reads = 0

    def fileno(self) -> int:
        return self._sock.fileno()

    def recv(self, size: int) -> bytes:
        self._reads += 1
        if not self._reads % 2:
            raise BlockingIOError
        return self._sock.recv(size)


class Listener:
    """A session that takes in bytes until it has all of them."""

    def __init__(self) -> None:
        self.taken = b""

    def handshake(self, received: bytes) -> tuple[bool, bytes]:
        self.taken += received
        return len(self.taken) >= len(b"hello again"), b""


async def test_a_wakeup_without_data_takes_nothing_in_twice() -> None:
    ours, theirs = socket.socketpair()
    listener = Listener()

    async def listen(session: Any, sock: Any) -> None:
        await handshake(session, sock, timeout_seconds=60)

    with ours, theirs:
        ours.setblocking(False)
        theirs.send(b"hello")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen, listener, FalseAlarms(ours))
            await settled(lambda: listener.taken == b"hello")
            theirs.send(b" again")
    assert listener.taken == b"hello again"


async def test_changed_certificate_files_serve_the_next_connection(tmp_path: Path, server_leaf: Leaf) -> None:
    (tmp_path / "new").mkdir()
    successor = write_certificates(tmp_path / "new", "server")
    in_use = CertificateFiles(certificate=server_leaf.certificate, key=server_leaf.key)
    old_ca = CertificateFiles(trusted=server_leaf.ca)
    new_ca = CertificateFiles(trusted=successor.ca)
    async with (
        serving(Echo(), tls=server_tls(in_use)) as server,
        open_channel(server.addresses[0], tls=client_tls(old_ca)) as before,
    ):
        with capture_logs() as logs:
            shutil.copy(successor.certificate, server_leaf.certificate)  # half of the change: they do not match
            async with open_channel(server.addresses[0], tls=client_tls(old_ca)) as channel:
                assert await channel.unary(UNARY, b"old", bytes) == b"old"
        assert logs[0]["event"] == "changed certificate files cannot be loaded; the previous ones are kept"
        shutil.copy(successor.key, server_leaf.key)
        async with open_channel(server.addresses[0], tls=client_tls(new_ca)) as after:
            assert await after.unary(UNARY, b"new", bytes) == b"new"
        assert await before.unary(UNARY, b"old", bytes) == b"old"


def test_certificate_files_that_do_not_load_are_named(tmp_path: Path, server_leaf: Leaf) -> None:
    missing = tmp_path / "missing.pem"
    with pytest.raises(TlsError, match=f"^cannot load the certificate {missing}: No such file or directory$"):
        server_tls(CertificateFiles(certificate=missing))
    with pytest.raises(TlsError, match=r"^cannot load the trusted certificates .*: No such file or directory$"):
        client_tls(CertificateFiles(trusted=missing))
    other = write_certificates(tmp_path, "other")
    with pytest.raises(TlsError, match=r"key values mismatch$"):
        server_tls(CertificateFiles(certificate=server_leaf.certificate, key=other.key))
    with pytest.raises(TlsError, match=r"^a TLS server needs a certificate file$"):
        server_tls(CertificateFiles())
