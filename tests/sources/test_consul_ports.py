"""Ports that metadata of Consul names are in one order, on every replica and after every restart."""

from __future__ import annotations

from tests.sources.test_consul_mapping import entry, service

NAMES = [f"p{number}" for number in range(10)]


def test_further_ports_are_in_the_order_of_their_names() -> None:
    meta = {f"port_{name}": str(9000 + number) for number, name in enumerate(NAMES)}
    assert [port.name for port in service(entry(meta=meta)).ports[1:]] == NAMES
