"""Who is connected, as quarantine remembers it."""

from __future__ import annotations

from typing import cast

import attrs

from mesh_pilot.model.proxy import NodeType, Proxy
from mesh_pilot.safety.quarantine.clients import Client, domains_of
from mesh_pilot.safety.quarantine.memory import Memory
from mesh_pilot.xds.ads.stream import Stream


def client(number: int, name: str) -> Client:
    """A stream of a proxy of this name; nothing here looks into it."""
    proxy = Proxy(f"sidecar~10.0.0.1~{name}~test", NodeType.SIDECAR, ("10.0.0.1",), name, "test", "test")
    return Client(number, attrs.evolve(proxy, domains=domains_of(proxy, number)), cast(Stream, None), lambda: None)


def test_a_proxy_is_connected_until_the_last_of_its_streams_has_left() -> None:
    memory, clients = Memory(), [client(1, "web"), client(2, "web"), client(3, "api")]
    for each in clients:
        memory.joined(each)
    web, api = clients[0].own_domain, clients[2].own_domain
    memory.left(1)
    assert memory.has_stream(web) and memory.has_stream(api)
    memory.left(2)
    memory.left(2)
    assert not memory.has_stream(web) and memory.has_stream(api)
