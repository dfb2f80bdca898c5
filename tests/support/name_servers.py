"""A name server that tests script, a client that speaks DNS with dnspython, and our server between them."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import trio

from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.agent.dns.server import DnsServer
from mesh_pilot.agent.relay.subscriptions import NameRow
from mesh_pilot.agent.settings import DnsSettings

Message = dns.message.Message
Script = Callable[[Message], Message | bytes | None]
"""The answer to a query; None: there is none."""


def answer(query: Message, *records: str, code: int = dns.rcode.NOERROR, authority: Sequence[str] = ()) -> Message:
    """An answer with records such as ``60 A 10.0.0.1`` for the name that was asked for."""
    response = dns.message.make_response(query)
    response.flags |= dns.flags.RA
    response.set_rcode(dns.rcode.Rcode(code))
    for section, texts in ((response.answer, records), (response.authority, authority)):
        for text in texts:
            ttl, kind, data = text.split(" ", 2)
            found = dns.rrset.from_text(query.question[0].name, int(ttl), "IN", kind, data)
            section.append(found)
    return response


@attrs.define(eq=False)
class ScriptedNameServer:
    """Answers by ``script``; over UDP cut to the client's size, as it must be."""

    script: Script
    address: str = ""
    asked: list[Message] = attrs.field(factory=list)
    over_tcp: int = 0

    @property
    def names(self) -> list[str]:
        return [each.question[0].name.to_text(omit_final_dot=True) for each in self.asked]

    async def serve(self, task_status: trio.TaskStatus[None]) -> None:
        for _ in range(10):
            datagrams = trio.socket.socket(type=socket.SOCK_DGRAM)
            await datagrams.bind(("127.0.0.1", 0))
            port = datagrams.getsockname()[1]
            try:
                listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
                break
            except OSError:
                datagrams.close()
        self.address = f"127.0.0.1:{port}"
        with datagrams:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._datagrams, datagrams)
                nursery.start_soon(trio.serve_listeners, self._stream, listeners)
                task_status.started()

    def _answer(self, packet: bytes, limit: int) -> bytes | None:
        """``limit``: the size of an answer; 0: that which the client takes over UDP."""
        try:
            query = dns.message.from_wire(packet)
        except dns.exception.DNSException:
            return None
        self.asked.append(query)
        found = self.script(query)
        if isinstance(found, Message):
            return found.to_wire(max_size=limit or query.payload or 512, prefer_truncation=True)
        return found

    async def _datagrams(self, sock: trio.socket.SocketType) -> None:
        while True:
            packet, sender = await sock.recvfrom(65535)
            found = self._answer(packet, 0)
            if found is not None:
                await sock.sendto(found, sender)

    async def _stream(self, stream: trio.SocketStream) -> None:
        async with stream:
            head = await stream.receive_some(2)
            packet = await stream.receive_some(int.from_bytes(head, "big"))
            self.over_tcp += 1
            found = self._answer(bytes(packet), 65535)
            if found is not None:
                await stream.send_all(len(found).to_bytes(2, "big") + found)


def no_answer(_: Message) -> None:
    """A script of a name server that is away."""


def no_such_name(query: Message) -> Message:
    """A script of a name server that knows no name."""
    return answer(query, code=dns.rcode.NXDOMAIN, authority=("60 SOA ns. root. 1 60 60 60 20",))


@attrs.define(eq=False)
class Resolving:
    """A DNS server of ours, with its name servers."""

    server: DnsServer
    names: Observable[dict[str, NameRow] | None]
    upstreams: list[ScriptedNameServer]

    async def ask(self, name: str, kind: str = "A", *, tcp: bool = False, **options: Any) -> Message:
        """The answer to a query by a client of dnspython. ``options`` are those of ``make_query``."""
        query = dns.message.make_query(name, kind, **options)
        packet = await self.send(query.to_wire(), tcp=tcp)
        response = dns.message.from_wire(packet)
        assert query.is_response(response)
        assert response.flags & dns.flags.RA
        return response

    async def addresses(self, name: str, kind: str = "A", **options: Any) -> list[str]:
        """The addresses of a name, sorted."""
        response = await self.ask(name, kind, **options)
        return sorted(data.to_text() for rrset in response.answer for data in rrset)

    async def send(self, packet: bytes, *, tcp: bool = False) -> bytes:
        """Send a packet, and receive one."""
        with trio.fail_after(60):
            if tcp:
                async with await self.connect() as stream:
                    await stream.send_all(len(packet).to_bytes(2, "big") + packet)
                    return await receive(stream)
            with trio.socket.socket(type=socket.SOCK_DGRAM) as sock:
                await sock.connect(("127.0.0.1", self.server.port))
                await sock.send(packet)
                return await sock.recv(65535)

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.server.port)


async def receive(stream: trio.SocketStream) -> bytes:
    """One message of a TCP connection."""
    received = b""
    while len(received) < 2 or len(received) < 2 + int.from_bytes(received[:2], "big"):
        more = await stream.receive_some(65535)
        assert more, "the connection ended"
        received += more
    return received[2:]


NODE = EnvoyNode("web-1", "shop")


@asynccontextmanager
async def resolving(
    rows: dict[str, NameRow] | None = None,
    *scripts: Script,
    node: EnvoyNode = NODE,
    resolv_conf: Path = Path("/nonexistent/resolv.conf"),
) -> AsyncIterator[Resolving]:
    """Our server with rows of names, in front of name servers that answer by scripts."""
    upstreams = [ScriptedNameServer(script) for script in scripts]
    async with trio.open_nursery() as nursery:
        for upstream in upstreams:
            await nursery.start(upstream.serve)
        settings = DnsSettings(True, resolv_conf, tuple(upstream.address for upstream in upstreams))
        names: Observable[dict[str, NameRow] | None] = Observable(rows)
        server = DnsServer(settings, 0, node, names)
        await nursery.start(server.run)
        yield Resolving(server, names, upstreams)
        nursery.cancel_scope.cancel()
