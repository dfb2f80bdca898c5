"""gRPC on Trio: a server, a client channel, TLS and addresses, usable by themselves.

The gRPC vocabulary is grpclib's: handlers, statuses, metadata. The HTTP/2 connection is ours, on Trio's waiting and
cancellation, with h2 for all but payloads (``http2`` says why). No asyncio loop runs.


A service is any object with grpclib's ``__mapping__``: what betterproto2 and grpclib generate, or a table by hand.
A message type is a class with ``FromString`` and ``SerializeToString`` (protobuf, betterproto2), or ``bytes`` for
messages that are, or stay, encoded::

    class Ads:
        def __mapping__(self):
            path = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
            return {path: Handler(self.stream, Cardinality.STREAM_STREAM, DiscoveryRequest, bytes)}

        async def stream(self, stream: ServerStream[DiscoveryRequest, bytes]) -> None:
            async for request in stream:                    # ends when the client half-closes
                await stream.send_message(encoded_response) # waits while the client's window is full

    async with trio.open_nursery() as nursery:
        listeners = await open_listeners("127.0.0.1:0")
        server = await nursery.start(partial(serve, with_reflection([Ads(), Health()]), listeners))
        print(server.addresses)                             # ["127.0.0.1:40123"]
        ...
        await server.drain(timeout_seconds=5)               # GOAWAY, wait, cut; serve() then returns

What a handler sees: it is one Trio task. When the client resets the stream, its connection is lost or its deadline
passes, the handler is cancelled. Raising :class:`GRPCError` ends the stream with that status; another exception is
logged and ends it with INTERNAL. Receiving and sending may run in two tasks of the handler's own nursery; each of them
in only one at a time.

The client side::

    async with open_channel("127.0.0.1:15010", tls=None) as channel:
        reply = await channel.unary(path, request, Reply, timeout_seconds=5)
        async with channel.request(path, Cardinality.STREAM_STREAM, bytes, Reply) as call:
            await call.send_message(request_bytes)
            async for reply in call: ...

A channel is one connection: once lost, every call raises :class:`ConnectionLost`, and its owner opens another.
Generated stubs work on it, except those of bidirectional methods, which want asyncio: use ``channel.request``.

TLS: ``serve(..., tls=server_tls(CertificateFiles(certificate=..., key=..., trusted=...)))`` and ``open_channel(...,
tls=client_tls(...))``. Changed files hold for the next connection. ``stream.peer`` has the peer's SPIFFE ids.
"""

from typing import TYPE_CHECKING, Any

from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

from mesh_pilot.net.rpc.channel import Channel, open_channel
from mesh_pilot.net.rpc.client_call import ClientCall
from mesh_pilot.net.rpc.errors import AddressError, ConnectionLost, RpcError, TlsError
from mesh_pilot.net.rpc.limits import CLIENT_LIMITS, SERVER_LIMITS, Limits
from mesh_pilot.net.rpc.net import open_listeners, parse_address
from mesh_pilot.net.rpc.server import Servable, Server, connection_shares, serve
from mesh_pilot.net.rpc.server_stream import Peer, ServerStream
from mesh_pilot.net.rpc.statistics import ConnectionStatistics, ServerStatistics
from mesh_pilot.net.rpc.tls import (
    CertificateFiles,
    CertificatePem,
    TlsSource,
    client_tls,
    client_tls_in_memory,
    http_client_tls,
    http_client_tls_in_memory,
    server_tls,
    server_tls_in_memory,
)

if TYPE_CHECKING:
    from mesh_pilot.net.rpc.reflection import with_reflection
    from mesh_pilot.net.rpc.services import HealthService

__all__ = [
    "CLIENT_LIMITS",
    "SERVER_LIMITS",
    "AddressError",
    "Cardinality",
    "CertificateFiles",
    "CertificatePem",
    "Channel",
    "ClientCall",
    "ConnectionLost",
    "ConnectionStatistics",
    "GRPCError",
    "Handler",
    "HealthService",
    "Limits",
    "Peer",
    "RpcError",
    "Servable",
    "Server",
    "ServerStatistics",
    "ServerStream",
    "Status",
    "StreamTerminatedError",
    "TlsError",
    "TlsSource",
    "client_tls",
    "client_tls_in_memory",
    "connection_shares",
    "http_client_tls",
    "http_client_tls_in_memory",
    "open_channel",
    "open_listeners",
    "parse_address",
    "serve",
    "server_tls",
    "server_tls_in_memory",
    "with_reflection",
]


def __getattr__(name: str) -> Any:
    """gRPC's own services are loaded when they are used: they need protobuf, and a client or an agent does not."""
    if name == "HealthService":
        from mesh_pilot.net.rpc.services import HealthService

        return HealthService
    if name == "with_reflection":
        from mesh_pilot.net.rpc.reflection import with_reflection

        return with_reflection
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
