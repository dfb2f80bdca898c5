"""The agent's DNS server with a large name table: CPU time of lookups in it and of answers over UDP.

    python bench/name_lookups.py [HOSTS]

Not named ``dns``: it would stand in front of dnspython.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import dns.message
import trio

from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.agent.dns.messages import read_query, write_answer
from mesh_pilot.agent.dns.names import MeshNames
from mesh_pilot.agent.dns.server import DnsServer
from mesh_pilot.agent.relay.subscriptions import NameRow
from mesh_pilot.agent.settings import DnsSettings

QUERIES = 10_000
IN_FLIGHT = 16


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def microseconds(began: float, count: int) -> str:
    return f"{(time.process_time() - began) / count * 1e6:.1f} us"


def packet(host: str) -> bytes:
    return dns.message.make_query(host, "A", use_edns=0).to_wire()


async def over_udp(rows: dict[str, NameRow], packets: list[bytes]) -> str:
    """The time for each of the queries, a few at a time on one socket; client and server share the processor."""
    settings = DnsSettings(True, Path("/nonexistent"), ("127.0.0.1:9",))
    server = DnsServer(settings, 0, EnvoyNode("bench"), Observable(rows))
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        with trio.socket.socket(type=trio.socket.SOCK_DGRAM) as sock:
            await sock.connect(("127.0.0.1", server.port))
            began = time.process_time()
            for number, each in enumerate(packets):
                await sock.send(each)
                if number >= IN_FLIGHT:
                    await sock.recv(512)
            for _ in range(IN_FLIGHT):
                await sock.recv(512)
            took = microseconds(began, len(packets))
        nursery.cancel_scope.cancel()
    return took


def main() -> None:
    hosts = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    rows = {
        f"service-{n}.service.consul": NameRow((f"241.{n >> 16}.{n >> 8 & 255}.{n & 255}",), "Consul")
        for n in range(hosts)
    }
    asked = [f"service-{n * 7919 % hosts}.service.consul" for n in range(QUERIES)]
    before = resident_mb()
    began = time.process_time()
    names = MeshNames(rows, "default", "cluster.local", ("corp.example", "lab.example"))
    print(f"{hosts} rows: indexed in {(time.process_time() - began) * 1e3:.1f} ms, {resident_mb() - before:.1f} MB")

    began = time.process_time()
    for host in asked:
        names.find(host)
    print("a name found:", microseconds(began, QUERIES))
    began = time.process_time()
    for host in asked:
        names.find(f"x.{host}")
    print("a name not found:", microseconds(began, QUERIES))

    packets = [packet(host) for host in asked]
    began = time.process_time()
    queries = [read_query(each) for each in packets]
    print("a query read:", microseconds(began, QUERIES))
    began = time.process_time()
    for query in queries:
        assert query is not None
        found = names.find(query.name)
        assert found is not None
        write_answer(query, names.data_of(found), ttl=30, limit=query.udp_size)
    print("its answer written:", microseconds(began, QUERIES))
    print("over UDP, with the client:", trio.run(over_udp, rows, packets))


if __name__ == "__main__":
    main()
